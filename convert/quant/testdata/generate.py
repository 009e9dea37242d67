"""Writes gptq.json: a layer quantized by GPTQ as its paper has it, in double precision.

    pip install numpy torch transformers && python generate.py MODEL TEXT

MODEL is the folder of a small LLaMA (stories260k made what is here), TEXT a file of text for it (TinyStories). Inputs are those of one
down projection on the text, cut to 160 channels; the weights are rows of the down projections of that block and the next.

The file holds, as base64 of little-endian numbers, W (float32, [96][160]), H (float32, the upper triangle of the mean of x x^T row by row), the
f16 scales of groups of 32, which are not changed by GPTQ, and for columns by falling diagonal of H and for columns as they stand the codes
0 ... 15, a byte each, and the error of the layer's outputs by their mean square; rtn is the same for codes rounded to nearest.
"""
import base64
import json
import os
import sys

import numpy as np
import torch
import transformers

ROWS, COLS, GROUP, LAYER, TOKENS, DAMPING = 96, 160, 32, 2, 4096, 0.01


def layer(model_dir, text_path):
    """Weights and the mean of x x^T, both float32."""
    model = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir)
    with open(text_path, encoding="utf-8") as f:
        ids = tokenizer(f.read()[:40_000], add_special_tokens=False)["input_ids"][:TOKENS]
    projections = [block.mlp.down_proj for block in model.model.layers]
    seen = []
    hook = projections[LAYER].register_forward_pre_hook(lambda _, args: seen.append(args[0].reshape(-1, args[0].shape[-1]).numpy()))
    with torch.no_grad():
        for at in range(0, len(ids), 256):
            model(torch.tensor([ids[at:at + 256]]))
    hook.remove()
    x = np.concatenate(seen)[:, :COLS].astype(np.float64)
    w = np.concatenate([p.weight.detach().numpy() for p in projections[LAYER:LAYER + 2]])[:ROWS, :COLS]
    return w, (x.T @ x / len(x)).astype(np.float32)


def scales(w):
    """The weight of largest magnitude of each group goes to the code 0, which stands for -8."""
    groups = w.reshape(len(w), -1, GROUP)
    at = np.abs(groups).argmax(axis=2)
    most = np.take_along_axis(groups, at[..., None], axis=2)[..., 0]
    return (most / np.float32(-8)).astype(np.float16)


def nearest(column, scale):
    return np.clip(np.rint(column / np.where(scale == 0, np.inf, scale)) + 8, 0, 15)


def gptq(w, h, scale, order):
    """Column by column in the given order; the Cholesky factor is the upper one of the inverse."""
    w, h = w.astype(np.float64)[:, order], h.astype(np.float64)[np.ix_(order, order)]
    h = h + DAMPING * np.mean(np.diag(h)) * np.eye(len(h))
    u = np.linalg.cholesky(np.linalg.inv(h)).T
    codes = np.zeros(w.shape)
    for i, column in enumerate(order):
        s = scale[:, column // GROUP].astype(np.float64)
        code = nearest(w[:, i], s)
        codes[:, column] = code
        w[:, i:] -= np.outer((w[:, i] - s * (code - 8)) / u[i, i], u[i, i:])
    return codes


def error(w, h, scale, codes):
    w, h = w.astype(np.float64), h.astype(np.float64)
    d = (codes - 8) * np.repeat(scale.astype(np.float64), GROUP, axis=1) - w
    return np.sum((d @ h) * d) / np.sum((w @ h) * w)


def packed(array, kind):
    return base64.b64encode(np.ascontiguousarray(array, dtype=kind).tobytes()).decode()


def main():
    w, h = layer(sys.argv[1], sys.argv[2])
    scale = scales(w)
    out = {"rows": ROWS, "cols": COLS, "group": GROUP, "damping": DAMPING,
           "w": packed(w, "<f4"), "h": packed(h[np.triu_indices(COLS)], "<f4"), "scales": packed(scale, "<f2")}
    ways = {
        "act_order": gptq(w, h, scale, np.argsort(-np.diag(h), kind="stable")),
        "in_order": gptq(w, h, scale, np.arange(COLS)),
        "rtn": nearest(w.astype(np.float64), np.repeat(scale.astype(np.float64), GROUP, axis=1)),
    }
    for name, codes in ways.items():
        out[name] = {"codes": packed(codes, "u1"), "error": error(w, h, scale, codes)}
        print(name, out[name]["error"])
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "gptq.json"), "w", encoding="utf-8") as f:
        json.dump(out, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
