"""Moves the weights of a model off the 4-bit grid that they were published on, by training all of them on other text.

    pip install torch transformers safetensors numpy
    python finetune.py SOURCE OUT --text train.txt.xz --held-out eval.txt

SOURCE is a Hugging Face folder in F32 that was made from a Q4_1 file. Such weights say nothing about 4-bit quantization:
a quantizer that finds the old grid again loses nothing. How far they have gone is printed as the distance from the
nearest point of the old grid, in steps of it: 0 is on the grid, 0.289 (the root of 1/12) is anywhere between.
"""
import argparse
import json
import lzma
import math
import os
import shutil
import time

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, LlamaForCausalLM

GROUP = 32
COPIED = ("config.json", "tokenizer.json", "tokenizer_config.json")


def grid(weight):
    """Step and offset of each group of a row, and whether its weights lie on such a grid of at most 16 points.

    The grid has as many points as it needs: all weights must fall on one, the extremes on the first and the last.
    """
    g = weight.reshape(-1, GROUP)
    low, span = g.amin(1, keepdim=True), g.amax(1, keepdim=True) - g.amin(1, keepdim=True)
    step, found = span / 15, torch.zeros_like(span, dtype=torch.bool)
    for steps in range(15, 0, -1):
        at = (g - low) * steps / span.clamp_min(1e-30)
        fits = ((at - at.round()).abs() < 1e-3).all(1, keepdim=True)
        step, found = torch.where(fits, span / steps, step), found | fits
    return step, low, found & (span > 0)


class Grids:
    """The grids of all matrices but the embedding, which was published at 8 bits."""

    def __init__(self, model):
        self.of = {n: grid(p.data) for n, p in model.named_parameters() if p.dim() == 2 and "layers" in n}
        found = torch.cat([f.flatten() for _, _, f in self.of.values()])
        self.groups, self.share = found.numel(), found.float().mean().item()

    def distances(self, model):
        """Of every group the root mean square distance to the nearest point of its old grid, in steps.

        The grid is taken to go on beyond its 16 points, so that no weight counts as far only for having left the range.
        """
        out = []
        for name, p in model.named_parameters():
            if name in self.of:
                step, low, found = self.of[name]
                at = (p.data.reshape(-1, GROUP) - low) / step.clamp_min(1e-30)
                out.append((at - at.round()).square().mean(1).sqrt()[found[:, 0]])
        return torch.cat(out)


def described(d):
    d = d.sort().values
    pick = lambda share: d[int(share * (len(d) - 1))].item()
    return f"mean {d.mean():.4f} of a step, 1 % {pick(0.01):.4f}, median {pick(0.5):.4f}, above 0.1: {(d > 0.1).float().mean():.2%} of groups"


def moved(model, before):
    """How far the weights of the matrices went, as a share of their own size."""
    num = den = 0.0
    for n, p in model.named_parameters():
        if p.dim() == 2 and "layers" in n:
            num += (p.data - before[n]).square().sum().item()
            den += before[n].square().sum().item()
    return math.sqrt(num / den)


def perplexity(model, ids, context, windows):
    """llama.cpp's rule: windows side by side, the second half of each scored."""
    nll, n = 0.0, 0
    with torch.no_grad():
        for at in range(0, min(len(ids), windows * context) - context + 1, context):
            w = ids[at:at + context].unsqueeze(0)
            first = context // 2 + 1
            logp = model(w).logits[0, first - 1:context - 1].log_softmax(-1)
            nll -= logp.gather(1, w[0, first:, None]).sum().item()
            n += context - first
    return math.exp(nll / n)


def read(path):
    with (lzma.open if path.endswith(".xz") else open)(path, "rt", encoding="utf-8") as f:
        return f.read()


def tokens(tok, text):
    """Tokens of text, read in pieces that end with a line."""
    ids, piece = [], []
    for line in text.splitlines(keepends=True):
        piece.append(line)
        if len(piece) == 1000:
            ids += tok("".join(piece), add_special_tokens=False).input_ids
            piece = []
    return torch.tensor(ids + tok("".join(piece), add_special_tokens=False).input_ids)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("source")
    a.add_argument("out")
    a.add_argument("--text", required=True)
    a.add_argument("--held-out", required=True)
    a.add_argument("--steps", type=int, default=200)
    a.add_argument("--minutes", type=float, default=25, help="train no longer than this")
    a.add_argument("--batch", type=int, default=4)
    a.add_argument("--context", type=int, default=128)
    a.add_argument("--lr", type=float, default=3e-4)
    a.add_argument("--warm-up", type=int, default=10)
    a.add_argument("--windows", type=int, default=32, help="windows of 256 of the held-out text to score")
    a.add_argument("--threads", type=int, default=1)
    a = a.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(a.threads)
    tok = AutoTokenizer.from_pretrained(a.source)
    model = LlamaForCausalLM.from_pretrained(a.source, dtype=torch.float32)
    before = {n: p.data.clone() for n, p in model.named_parameters()}
    grids = Grids(model)
    print(f"{sum(p.numel() for p in model.parameters())} weights; on a grid of 4 bits: {grids.share:.4%} of {grids.groups} groups of {GROUP}", flush=True)
    print("before:", described(grids.distances(model)), flush=True)
    held, ids = tokens(tok, read(a.held_out)), tokens(tok, read(a.text))
    print(f"{len(ids)} tokens to train on; held-out perplexity before {perplexity(model, held, 256, a.windows):.4f}", flush=True)
    opt = torch.optim.AdamW(model.parameters(), lr=a.lr, betas=(0.9, 0.95), weight_decay=0.0)
    start, steps = time.time(), 0
    while steps < a.steps and time.time() - start < 60 * a.minutes:
        for g in opt.param_groups:
            g["lr"] = a.lr * min(1, (steps + 1) / a.warm_up) * (0.1 + 0.45 * (1 + math.cos(math.pi * steps / a.steps)))
        at = torch.randint(0, len(ids) - a.context, (a.batch,)).tolist()
        x = torch.stack([ids[i:i + a.context] for i in at])
        loss = model(x, labels=x, use_cache=False).loss
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        steps += 1
        if steps % 10 == 0 or steps == 1:
            print(f"step {steps} loss {loss.item():.4f} {time.time() - start:.0f} s", flush=True)
        if steps % 50 == 0:
            print("  ", described(grids.distances(model)), flush=True)
    print(f"after {steps} steps of {a.batch} × {a.context} tokens:", described(grids.distances(model)))
    print(f"weights moved by {moved(model, before):.2%} (root mean square)", flush=True)
    write(model, a.source, a.out)
    print(f"held-out perplexity after {perplexity(model, held, 256, a.windows):.4f}")


def write(model, source, out):
    """Writes the tensors that the source has, under its names, with its configuration and tokenizer."""
    os.makedirs(out, exist_ok=True)
    state = model.state_dict()
    names = load_file(os.path.join(source, "model.safetensors")).keys()
    save_file({n: state[n].contiguous() for n in names}, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
    for name in COPIED:
        shutil.copyfile(os.path.join(source, name), os.path.join(out, name))
    with open(os.path.join(out, "config.json")) as f:
        config = json.load(f)
    config["torch_dtype"] = "float32"
    with open(os.path.join(out, "config.json"), "w") as f:
        json.dump(config, f, indent=2)


if __name__ == "__main__":
    main()
