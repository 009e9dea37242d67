"""Tiny random models of every family, and the logits that the transformers library gives for them.

    pip install torch transformers safetensors && python generate.py

Weights are drawn wide (0.25 around 0, norms around 1) so that a mistake anywhere moves the logits. Each model reads two
prompts, the second past its rope's original length or its attention window. golden/CASE.json holds the prompts, and of
every seventh position and the last one the logits as base64 of little-endian float32.
"""
import base64
import json
import os
import shutil

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
BASE = dict(vocab_size=67, hidden_size=48, intermediate_size=44, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
            max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=0)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
SMALL = dict(hidden_size=24, intermediate_size=28, num_attention_heads=3, num_key_value_heads=1)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)

# name: (model_type, changes to BASE, options)
CASES = {
    "llama": ("llama", dict(tie_word_embeddings=False), {}),
    "llama-mqa-tied": ("llama", dict(num_attention_heads=4, num_key_value_heads=1, tie_word_embeddings=True, hidden_size=56), {"dtype": torch.bfloat16}),
    "llama-bias": ("llama", dict(attention_bias=True, mlp_bias=True), {"dtype": torch.float16}),
    "llama-headdim": ("llama", dict(head_dim=10), {}),
    "llama-linear": ("llama", dict(), {"rope": dict(rope_type="linear", factor=3.0)}),
    "llama-llama3": ("llama", dict(), {"rope": LLAMA3}),
    "llama-yarn": ("llama", dict(), {"rope": YARN}),
    "llama-rope-parameters": ("llama", dict(), {"rope": LLAMA3, "new": True}),
    "llama-sharded": ("llama", dict(), {"shards": 3}),
    "mistral": ("mistral", dict(sliding_window=8), {}),
    "qwen2": ("qwen2", dict(), {}),
    "qwen2-sliding": ("qwen2", dict(use_sliding_window=True, sliding_window=8, max_window_layers=1), {}),
    "qwen3": ("qwen3", dict(head_dim=12), {}),
    "phi3": ("phi3", dict(original_max_position_embeddings=128), {}),
    "phi3-longrope": ("phi3", dict(original_max_position_embeddings=16), {
        "rope": dict(rope_type="longrope", short_factor=[1.0, 1.1, 1.25, 1.5], long_factor=[1.0, 2.0, 3.5, 6.0]), "phi": True}),
    "gemma2": ("gemma2", dict(head_dim=10, sliding_window=8, query_pre_attn_scalar=12), {}),
    "gemma3": ("gemma3_text", dict(head_dim=10, sliding_window=8, query_pre_attn_scalar=12, num_hidden_layers=3,
                                   layer_types=["sliding_attention", "sliding_attention", "full_attention"]), {"gemma3": True}),
    # A case's seed is its place in this table: new ones go to the end.
    "phi3-longrope-partial": ("phi3", dict(original_max_position_embeddings=16, **SMALL), {
        "rope": dict(rope_type="longrope", short_factor=[1.0, 1.25], long_factor=[1.5, 5.0], partial_rotary_factor=0.5), "phi": True, "new": True}),
    "qwen3-yarn": ("qwen3", dict(head_dim=12, **SMALL), {"rope": YARN, "new": True}),
    "gemma3-rope-parameters": ("gemma3_text", dict(head_dim=6, sliding_window=8, query_pre_attn_scalar=12, num_hidden_layers=3, **SMALL,
                                                   layer_types=["sliding_attention", "full_attention", "sliding_attention"]), {"gemma3": True, "new": True}),
}


def config_of(kind, changes, options):
    values = {**BASE, **changes}
    rope = dict(options.get("rope", dict(rope_type="default")))
    rope["rope_theta"] = 10000.0
    if options.get("phi"):
        rope["original_max_position_embeddings"] = changes["original_max_position_embeddings"]
    if options.get("gemma3"):
        values["rope_parameters"] = {"full_attention": dict(rope_type="default", rope_theta=1000000.0),
                                     "sliding_attention": dict(rope_type="default", rope_theta=10000.0)}
    else:
        values["rope_parameters"] = rope
    return transformers.AutoConfig.for_model(kind, **values)


def written(config, model, kind, changes, options):
    """config.json, in the spelling of transformers 4 unless the case wants the new one."""
    c = config.to_dict()
    keep = set(BASE) | set(changes) | {"head_dim", "rms_norm_eps", "hidden_act", "hidden_activation", "tie_word_embeddings", "sliding_window", "layer_types",
                                       "use_sliding_window", "max_window_layers", "query_pre_attn_scalar", "attn_logit_softcapping",
                                       "final_logit_softcapping", "attention_bias", "mlp_bias", "original_max_position_embeddings"}
    out = {"architectures": [type(model).__name__], "model_type": kind}
    out.update({k: c[k] for k in sorted(keep) if k in c and not (k == "head_dim" and c[k] is None)})
    if options.get("new"):
        out["rope_parameters"] = c["rope_parameters"]
    elif options.get("gemma3"):
        out["rope_theta"], out["rope_local_base_freq"] = 1000000.0, 10000.0
    else:
        out["rope_theta"] = 10000.0
        out["rope_scaling"] = dict(options["rope"]) if "rope" in options else None
        if options.get("phi"):
            out["rope_scaling"]["type"] = "longrope"
    out["torch_dtype"] = str(options.get("dtype", torch.float32)).replace("torch.", "")
    return out


def main():
    print("transformers", transformers.__version__, "torch", torch.__version__)
    os.makedirs(os.path.join(HERE, "golden"), exist_ok=True)
    for number, (name, (kind, changes, options)) in enumerate(CASES.items()):
        torch.manual_seed(100 + number)
        config = config_of(kind, changes, options)
        config._attn_implementation = "eager"
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        with torch.no_grad():
            for key, p in model.named_parameters():
                if "norm" in key:
                    p.copy_((0 if "gemma" in kind else 1) + 0.3 * torch.randn_like(p))
                else:
                    p.copy_(0.25 * torch.randn_like(p))
                p.copy_(p.to(options.get("dtype", torch.float32)).float())
        folder = os.path.join(HERE, name)
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        state = {k: v.to(options.get("dtype", torch.float32)).contiguous() for k, v in model.state_dict().items()
                 if not (config.tie_word_embeddings and k == "lm_head.weight")}
        write(folder, state, options.get("shards", 1))
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(written(config, model, kind, changes, options), f, indent=2)
            f.write("\n")
        draw = np.random.default_rng(number)
        prompts = []
        for length in (11, 53):
            ids = draw.integers(3, config.vocab_size, length).tolist()
            with torch.no_grad():
                logits = model(torch.tensor([ids]), use_cache=False).logits[0].float().numpy()
            at = sorted(set(range(0, length, 7)) | {length - 1})
            prompts.append({"ids": ids, "positions": at, "logits": base64.b64encode(logits[at].astype("<f4").tobytes()).decode()})
        with open(os.path.join(HERE, "golden", name + ".json"), "w") as f:
            json.dump({"prompts": prompts}, f)
            f.write("\n")
        print(name, config.vocab_size, "spread of logits", float(logits.std()))


def write(folder, state, shards):
    names = list(state)
    if shards == 1:
        save_file(state, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
        return
    where = {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = {k: state[k] for k in names[i::shards]}
        save_file(part, os.path.join(folder, file), metadata={"format": "pt"})
        where.update({k: file for k in part})
    total = sum(v.numel() * v.element_size() for v in state.values())
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": where}, f, indent=2)
        f.write("\n")


def write_tokenizer():
    """A tokenizer of 61 tokens, which fits every vocabulary here; the models themselves read ids."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors
    letters = ["▁"] + [chr(c) for c in range(ord("a"), ord("z") + 1)] + list("ABCDEFGHIJKLMNOPQRSTU.,!?")
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("i", "n"), ("▁", "a"), ("e", "r")]
    tokens = ["<unk>", "<s>", "</s>"] + letters + ["".join(m) for m in merges]
    t = Tokenizer(models.BPE({k: i for i, k in enumerate(tokens)}, merges, unk_token="<unk>", fuse_unk=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.add_special_tokens([AddedToken(k, normalized=False) for k in tokens[:3]])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    folder = os.path.join(HERE, "tokenizer")
    os.makedirs(folder, exist_ok=True)
    t.save(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}, f, indent=2)
        f.write("\n")


if __name__ == "__main__":
    main()
    write_tokenizer()
