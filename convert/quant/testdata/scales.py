"""Writes scales.json: what is the least error of a group's output over all half-precision scales, codes rounded to nearest.

    pip install numpy && python scales.py

Weights, [24][32], are one group of 32 a row for codes -8 ... 7; H is the mean of x x^T of made inputs that have much in common. Both are float32, as base64 of
little-endian numbers. best has for each row the least e H e^T by any finite scale, weighted the one by the scale of least error under
the diagonal of H alone; both in double precision.
"""
import base64
import json
import os

import numpy as np

ROWS, GROUP = 24, 32


def packed(array):
    return base64.b64encode(np.ascontiguousarray(array, dtype="<f4").tobytes()).decode()


def main():
    r = np.random.default_rng(51)
    w = r.normal(size=(ROWS, GROUP)).astype(np.float32)
    x = r.normal(size=(600, GROUP)) + 2 * r.normal(size=(600, 1)) * np.linspace(0, 1, GROUP) + 1
    h = (x.T @ x / len(x)).astype(np.float32)
    scales = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float64)
    scales = scales[np.isfinite(scales) & (scales != 0)][:, None]
    best, weighted = [], []
    for row in w.astype(np.float64):
        e = scales * np.clip(np.rint(row / scales), -8, 7) - row
        output = np.einsum("si,ij,sj->s", e, h.astype(np.float64), e, optimize=True)
        best.append(output.min())
        weighted.append(output[np.argmin((e * e) @ np.diag(h).astype(np.float64))])
    out = {"rows": ROWS, "cols": GROUP, "w": packed(w), "h": packed(h), "best": best, "weighted": weighted}
    print(sum(best), sum(weighted))
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "scales.json"), "w", encoding="utf-8") as f:
        json.dump(out, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
