"""Writes regress.json: the map from inputs to what is missing in a layer's outputs, shrunk by what two halves of the inputs agree on, in double
precision.

    pip install numpy && python regress.py

Inputs are made: 40 channels that share directions and differ in size. What is missing follows them in some rows, is chance in others. The file holds, as
base64 of little-endian float32, H ([40][40], the mean of x x^T), the means of e x^T over each half ([11][40]), the numbers of inputs, and the map.
"""
import base64
import json
import os

import numpy as np

ROWS, COLS, COUNTS, DAMPING = 11, 40, (500, 300), 0.01


def main():
    r = np.random.default_rng(7)
    n = sum(COUNTS)
    x = (r.normal(size=(n, COLS)) + r.normal(size=(n, 3)) @ r.normal(size=(3, COLS))) * np.exp(r.normal(size=COLS))
    e = np.linspace(0, 1, ROWS) * (x @ r.normal(size=(COLS, ROWS)) * 0.002) + 0.3 * r.normal(size=(n, ROWS))
    h = (x.T @ x / n).astype(np.float32)
    halves = [(e[a:b].T @ x[a:b] / (b - a)).astype(np.float32) for a, b in ((0, COUNTS[0]), (COUNTS[0], n))]

    inverse = np.linalg.inv(h.astype(np.float64) + DAMPING * np.mean(np.diag(h).astype(np.float64)) * np.eye(COLS))
    d1, d2 = (d.astype(np.float64) for d in halves)
    d = (COUNTS[0] * d1 + COUNTS[1] * d2) / n
    agreed, power = np.sum((d1 @ inverse) * d2, axis=1), np.sum((d @ inverse) * d, axis=1)
    shrink = np.clip((agreed + agreed.mean()) / (power + power.mean()), 0, 1)
    print("shrunk by", shrink)

    def packed(array):
        return base64.b64encode(np.ascontiguousarray(array, dtype="<f4").tobytes()).decode()

    out = {"rows": ROWS, "cols": COLS, "counts": COUNTS, "damping": DAMPING, "h": packed(h), "first": packed(d1), "second": packed(d2),
           "map": packed(shrink[:, None] * (d @ inverse))}
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "regress.json"), "w", encoding="utf-8") as f:
        json.dump(out, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
