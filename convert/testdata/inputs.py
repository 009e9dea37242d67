"""Writes inputs.json: statistics of what the first attention of testdata/grammar-lm is multiplied with, by NumPy in double precision.

Run in this folder: python inputs.py. The model's safetensors file is read by hand; nothing of qtool is used.
"""
import json
import struct

import numpy as np

raw = open("../../testdata/grammar-lm/model.safetensors", "rb").read()
n = struct.unpack("<Q", raw[:8])[0]
header = json.loads(raw[8 : 8 + n])
config = json.load(open("../../testdata/grammar-lm/config.json"))


def tensor(name):
    t = header[name]
    assert t["dtype"] == "BF16"
    a, b = t["data_offsets"]
    bits = np.frombuffer(raw[8 + n + a : 8 + n + b], "<u2").astype(np.uint32) << 16
    return bits.view(np.float32).astype(np.float64).reshape(t["shape"])


tokens = (np.arange(3 * 40) * 37 + 11) % config["vocab_size"]
x = tensor("model.embed_tokens.weight")[tokens]
x = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + config["rms_norm_eps"]) * tensor("model.layers.0.input_layernorm.weight")
h = x.T @ x
order = np.sort(np.abs(x), axis=0)
count = len(x)
json.dump(
    {
        "sequences": tokens.reshape(3, 40).tolist(),
        "sum_squares": (x * x).sum(axis=0).tolist(),
        "min": x.min(axis=0).tolist(),
        "max": x.max(axis=0).tolist(),
        "least_99": order[int(np.ceil(0.99 * count)) - 1].tolist(),
        "hessian_rows": {str(i): h[i, i:].tolist() for i in (0, 1, 50, len(h) - 1)},
        "trace": float(np.trace(h)),
        "sum": float(np.triu(h).sum()),
    },
    open("inputs.json", "w"),
)
