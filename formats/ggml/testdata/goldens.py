"""Writes goldens.json: blocks of every type that ggml.Dequantize decodes with their values, and
values with the blocks that ggml.Quantize shall make of them, both by the gguf Python package
(pip install gguf==0.19.0 numpy). Bytes and floats (little-endian) are in base64."""

import base64
import json
import pathlib

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize, quantize

rng = np.random.default_rng(20240501)

# Offsets of the half-precision fields of each block.
HALVES = {
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
    T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
    T.IQ4_NL: [0], T.IQ4_XS: [0], T.IQ3_S: [0],
}  # fmt: skip


def b64(a):
    return base64.b64encode(np.ascontiguousarray(a).tobytes()).decode()


def random_blocks(t, n):
    """Random codes and scales; scales of either sign, one zero, one subnormal."""
    size = GGML_QUANT_SIZES[t][1]
    blocks = rng.integers(0, 256, (n, size), dtype=np.uint8)
    for at in HALVES[t]:
        scales = rng.normal(0, 0.05, n).astype(np.float16)
        scales[0] = np.float16(3e-7)
        scales[-1] = 0
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(n, 2)
    return blocks


def awkward(n):
    """Values with ties, zeros, subnormals and a wide range, block by block of 32."""
    x = rng.normal(0, 1, (n, 32)).astype(np.float32)
    x[0] = 0
    x[1] = np.arange(32) - 127  # whole numbers: scale 1 in Q8_0
    x[2] = (np.arange(32) - 16) / 2  # halves: ties in Q4_0
    x[2, 0] = -8
    x[3] = 127
    x[3, 1:] = (np.arange(31) - 15) + 0.5  # ties in Q8_0
    x[4] *= 1e-7
    x[5] *= 1e-30
    x[6] = -0.0  # with one other value: of a block of −0 alone the package and ggml store ∓0 as scale
    x[6, 31] = 0.5
    x[7, 3] = -x[7, 5]  # equal magnitudes of both signs: the first decides
    x[7, 3:6:2] *= 100
    x[8] *= 6e4
    return x


goldens = {"dequantize": [], "quantize": []}
for t in HALVES:
    blocks = random_blocks(t, 5 if GGML_QUANT_SIZES[t][0] == 32 else 3)
    values = dequantize(blocks, t)
    assert values.dtype == np.float32
    goldens["dequantize"].append({"type": t.name, "blocks": b64(blocks), "values": b64(values)})
specials = np.array([0.0, -0.0, 1, -2.5, 65504, 6e-8, 6e-5, 1e-8, np.inf, -np.inf, 3.14159274, 1 / 3], np.float32)
for t in (T.F16, T.BF16):
    raw = quantize(specials.reshape(1, -1), t)
    goldens["quantize"].append({"type": t.name, "values": b64(specials), "blocks": b64(raw)})
    goldens["dequantize"].append({"type": t.name, "blocks": b64(raw), "values": b64(dequantize(raw, t))})
for t in (T.Q8_0, T.Q4_0):
    x = awkward(16)
    goldens["quantize"].append({"type": t.name, "values": b64(x), "blocks": b64(quantize(x, t))})

out = pathlib.Path(__file__).parent / "goldens.json"
out.write_text(json.dumps(goldens, indent=1) + "\n")
