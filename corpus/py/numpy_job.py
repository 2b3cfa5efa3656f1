"""NumPy: sort, matmul, or save and load. usage: numpy_job.py sort|matmul|saveload MIB"""
import os
import sys

import numpy as np

from common import SEED, digest, size_mib


def sort(mib):
    a = np.random.default_rng(SEED).random(mib << 17)
    print("before", digest(a))
    a.sort()
    print("after", digest(a), bool((a[1:] >= a[:-1]).all()))


def matmul(mib):
    n = int((mib << 17) // 3) ** 0.5
    n = int(n) // 64 * 64
    rng = np.random.default_rng(SEED)
    a, b = rng.random((n, n), dtype=np.float64), rng.random((n, n), dtype=np.float64)
    c = np.empty((n, n))
    step = 256  # blocks, so that the work stays in proportion to the memory
    cols = min(n, 512)
    for i in range(0, n, step):
        np.matmul(a[i : i + step], b[:, :cols], out=c[i : i + step, :cols])
        c[i : i + step, cols:] = a[i : i + step, cols:] * b[i : i + step, cols:]
    print("product", n, digest(c))


def saveload(mib):
    a = np.random.default_rng(SEED).integers(0, 1000, size=mib << 16)
    np.save("array.npy", a)
    b = np.load("array.npy")
    print("equal", bool(np.array_equal(a, b)), digest(b))
    np.savez("two.npz", first=a[: len(a) // 8], second=b[-len(b) // 8 :])
    with np.load("two.npz") as z:
        print("npz", digest(z["first"]), digest(z["second"]))
    b.tofile("raw.bin")
    with open("raw.bin", "rb") as f:  # one readinto of everything: a short count must not happen
        c = np.empty_like(b)
        print("readinto", f.readinto(memoryview(c).cast("B")) == c.nbytes, digest(c))
    os.remove("two.npz")


{"sort": sort, "matmul": matmul, "saveload": saveload}[sys.argv[1]](size_mib())
