"""Makes the files that `cargo xtask bench remote` serves: 1.6 GB of tensors, a 2 GiB array."""

import json
import pathlib
import sys

import numpy as np

folder = pathlib.Path(sys.argv[1])
random = np.random.default_rng(1)
piece = random.random((1024, 1024), dtype=np.float32)

tensors = folder / "model.safetensors"
if not tensors.exists():
    # Sizes as in a language model: a few large ones, many small ones.
    shapes = [[4096, 4096]] * 16 + [[1024, 1024]] * 120 + [[1024, 16]] * 64
    entries, at = {}, 0
    for i, shape in enumerate(shapes):
        end = at + 4 * shape[0] * shape[1]
        entries[f"layer.{i}.weight"] = {"dtype": "F32", "shape": shape, "data_offsets": [at, end]}
        at = end
    head = json.dumps(entries).encode()
    head += b" " * (-len(head) % 8)
    with open(tensors.with_suffix(".part"), "wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for shape in shapes:
            for _ in range(max(1, shape[0] * shape[1] >> 20)):
                file.write(piece.ravel()[: min(shape[0] * shape[1], 1 << 20)].tobytes())
    tensors.with_suffix(".part").rename(tensors)

rows = folder / "rows.npy"
if not rows.exists():
    part = rows.with_suffix(".part.npy")
    array = np.lib.format.open_memmap(part, "w+", np.float32, (524288, 1024))
    for i in range(0, 524288, 1024):
        array[i : i + 1024] = piece + i
    array.flush()
    part.rename(rows)
