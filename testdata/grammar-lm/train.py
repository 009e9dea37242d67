"""Makes everything in this folder from grammar.py: texts, tokenizer, and a LLaMA trained until it knows the grammar.

    pip install torch transformers tokenizers safetensors && python train.py

Sizes are odd on purpose: the rows of the projections have 96 elements (a multiple of 32, not of 256), those of o_proj
256, those of down_proj 164 (a multiple of neither).
"""
import argparse
import json
import math
import os
import time

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM

from grammar import Writer

HERE = os.path.dirname(os.path.abspath(__file__))
CONTEXT = 256


def train_tokenizer(text):
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    special = ["<unk>", "<s>", "</s>"]
    # Pieces are cut at spaces while merges are learned, so that no token spans words; encoding needs no cutting.
    trainer = trainers.BpeTrainer(vocab_size=512 - 256, special_tokens=special, show_progress=False)
    t.train_from_iterator([" " + w for w in text.replace("\n", " ").split(" ") if w], trainer)
    model = json.loads(t.to_str())
    learned = [k for k, _ in sorted(model["model"]["vocab"].items(), key=lambda kv: kv[1]) if k not in special]
    order = special + [f"<0x{b:02X}>" for b in range(256)] + learned
    model["model"]["vocab"] = {k: i for i, k in enumerate(order)}
    t = Tokenizer.from_str(json.dumps(model))
    t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return t


def perplexity(model, ids, context=CONTEXT):
    """llama.cpp's rule: windows side by side, BOS first in each, the second half scored."""
    nll, n = 0.0, 0
    with torch.no_grad():
        for at in range(0, len(ids) - context + 1, context):
            w = torch.tensor([ids[at:at + context]])
            w[0, 0] = 1
            logp = model(w).logits[0].float().log_softmax(-1)
            first = context // 2 + 1
            nll -= logp[torch.arange(first - 1, context - 1), w[0, first:]].sum().item()
            n += context - first
    return math.exp(nll / n)


def rounded(model, bits, group=32):
    """A copy whose linear weights are rounded to bits by the largest magnitude of each group."""
    copy = LlamaForCausalLM(model.config).eval()
    copy.load_state_dict(model.state_dict())
    most = 2 ** (bits - 1) - 1
    for name, p in copy.named_parameters():
        if p.dim() == 2 and "layers" in name:
            for row in p.data:
                for g in row.split(group):
                    scale = g.abs().max() / most
                    g.copy_((g / scale).round().clamp(-most - 1, most) * scale)
    return copy


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--steps", type=int, default=2600)
    a.add_argument("--batch", type=int, default=16)
    a = a.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    text = Writer(1).text(6_000_000)
    for name, seed in (("eval", 2), ("calib", 3)):
        with open(os.path.join(HERE, name + ".txt"), "w") as f:
            f.write(Writer(seed).text(70_000))
    tok = train_tokenizer(text[:1_000_000])
    tok.save(os.path.join(HERE, "tokenizer.json"))
    config = LlamaConfig(
        vocab_size=tok.get_vocab_size(), hidden_size=96, intermediate_size=164, num_hidden_layers=3, num_attention_heads=8,
        num_key_value_heads=4, head_dim=32, max_position_embeddings=256, rms_norm_eps=1e-5, rope_theta=10000.0,
        tie_word_embeddings=True, bos_token_id=1, eos_token_id=2)
    model = LlamaForCausalLM(config)
    print(config.vocab_size, "tokens,", sum(p.numel() for p in model.parameters()), "parameters", flush=True)
    ids = torch.tensor([i for line in text.split("\n") for i in tok.encode(line + "\n", add_special_tokens=False).ids])
    print(len(ids), "training tokens", flush=True)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.05)
    start = time.time()
    for step in range(a.steps):
        lr = 3e-3 * min(1, (step + 1) / 100) * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * step / a.steps)))
        for g in opt.param_groups:
            g["lr"] = lr
        at = torch.randint(0, len(ids) - CONTEXT, (a.batch,)).tolist()
        x = torch.stack([ids[i:i + CONTEXT] for i in at])
        x[:, 0] = 1
        loss = model(x, labels=x).loss
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f} {time.time() - start:.0f} s", flush=True)
    model = model.to(torch.bfloat16)
    write(model, tok)
    report(tok)


def write(model, tok):
    from safetensors.torch import save_file
    state = {k: v.contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"}
    save_file(state, os.path.join(HERE, "model.safetensors"), metadata={"format": "pt"})
    os.chmod(os.path.join(HERE, "model.safetensors"), 0o644)
    c = model.config
    files = {
        "config.json": {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": c.vocab_size, "hidden_size": c.hidden_size,
            "intermediate_size": c.intermediate_size, "num_hidden_layers": c.num_hidden_layers, "num_attention_heads": c.num_attention_heads,
            "num_key_value_heads": c.num_key_value_heads, "head_dim": c.head_dim, "max_position_embeddings": c.max_position_embeddings,
            "rms_norm_eps": c.rms_norm_eps, "rope_theta": 10000.0, "rope_scaling": None, "hidden_act": "silu", "attention_bias": False,
            "mlp_bias": False, "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16"},
        "generation_config.json": {"bos_token_id": 1, "eos_token_id": 2},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": True, "add_eos_token": False, "bos_token": "<s>",
            "eos_token": "</s>", "unk_token": "<unk>", "clean_up_tokenization_spaces": False, "model_max_length": 256},
    }
    for name, value in files.items():
        with open(os.path.join(HERE, name), "w") as f:
            json.dump(value, f, indent=2)
            f.write("\n")


def report(tok):
    """Prints the figures of README.md and writes what the Go tests compare with."""
    model = LlamaForCausalLM.from_pretrained(HERE, dtype=torch.float32, attn_implementation="eager").eval()
    text = open(os.path.join(HERE, "eval.txt")).read()
    ids = tok.encode(text).ids
    counts = torch.bincount(torch.tensor(ids), minlength=tok.get_vocab_size()).float()
    p = counts / counts.sum()
    unigram = math.exp(-(p * p.clamp_min(1e-12).log()).sum().item())
    figures = {"unigram": unigram, "model": perplexity(model, ids)}
    for bits in (4, 3, 2):
        figures[f"{bits} bits"] = perplexity(rounded(model, bits), ids)
    print(json.dumps(figures, indent=1))
    strings = ["On Monday Anna took", " two  spaces", "naïve 🙂 日本", "", "Note: {red (blue)}.\n"]
    prompt = tok.encode("On Monday Anna took her red lamp to the").ids
    with torch.no_grad():
        logits = model(torch.tensor([ids[:64]])).logits[0, -1]
        out = model.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False)[0].tolist()
    golden = {
        "encodings": [{"text": s, "ids": tok.encode(s).ids} for s in strings], "logits": [round(v, 5) for v in logits.tolist()],
        "prompt": prompt, "greedy": out[len(prompt):], "perplexity": figures["model"], "context": CONTEXT}
    os.makedirs(os.path.join(HERE, "golden"), exist_ok=True)
    with open(os.path.join(HERE, "golden", "golden.json"), "w") as f:
        json.dump(golden, f)
        f.write("\n")


if __name__ == "__main__":
    main()
