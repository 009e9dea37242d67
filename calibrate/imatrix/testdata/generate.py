"""Writes small.dat and small.gguf: one importance matrix for the matrices of testdata/grammar-lm's first block, in both forms, of made-up values.

Needs numpy and the gguf package (0.10 or later). The binary form is that of llama.cpp's imatrix tool until 2025 (examples/imatrix/imatrix.cpp, save_imatrix), the
GGUF form that of the tool since: tensors NAME.in_sum2 and NAME.counts. No llama.cpp of the newer kind was at hand: the second file is made by the
package alone. Values are i % 7 + 1/4 + (number of the entry) as mean squares of channel i; ffn_down has a count of 0.
"""
import struct

import numpy as np
from gguf import GGUFWriter

entries = [("blk.0.attn_q.weight", 96), ("blk.0.attn_output.weight", 256), ("blk.0.ffn_up.weight", 96), ("blk.0.ffn_down.weight", 164)]
CALLS = 8

w = GGUFWriter("small.gguf", "")
for part in w.kv_data:
    part.pop("general.architecture", None)
w.add_string("general.type", "imatrix")
w.add_array("imatrix.datasets", ["made-up.txt"])
w.add_uint32("imatrix.chunk_count", CALLS)
w.add_uint32("imatrix.chunk_size", 512)
with open("small.dat", "wb") as f:
    f.write(struct.pack("<i", len(entries)))
    for k, (name, n) in enumerate(entries):
        calls = 0 if "down" in name else CALLS
        values = ((np.arange(n) % 7 + 0.25 + k) * calls).astype("<f4")
        f.write(struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", calls, n) + values.tobytes())
        w.add_tensor(name + ".in_sum2", values)
        w.add_tensor(name + ".counts", np.array([calls], np.float32))
    f.write(struct.pack("<ii", CALLS, len("made-up.txt")) + b"made-up.txt")
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()
