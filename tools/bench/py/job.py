"""The job that needs more memory than it may use: fill, two passes, a sort, random reads.

usage: job.py MIB random|compressible [--memmap FILE]

Prints one JSON object: seconds per phase, and a check value that all variants must share."""
import json
import os
import sys
import time

import numpy as np

SEED = 20240917
READS = 20_000
PAGE_WORDS = 512
CHUNK_WORDS = 1 << 20


def fill(a, kind):
    rng = np.random.default_rng(SEED)
    levels = np.arange(32) * 0.25  # few values, in fours: a page shrinks to a fifth
    for i in range(0, len(a), CHUNK_WORDS):
        part = a[i : i + CHUNK_WORDS]
        if kind == "random":
            rng.random(out=part)
        else:
            part[:] = np.repeat(levels[rng.integers(0, 32, size=len(part) // 4)], 4)


def random_reads(a):
    rng = np.random.default_rng(SEED + 1)
    total = 0.0
    for page in rng.integers(0, len(a) // PAGE_WORDS, size=READS):
        total += a[page * PAGE_WORDS : (page + 1) * PAGE_WORDS].sum()
    return total


def main():
    mib, kind = int(sys.argv[1]), sys.argv[2]
    words = mib << 17
    if "--memmap" in sys.argv:
        path = sys.argv[sys.argv.index("--memmap") + 1]
        a = np.asarray(np.memmap(path, dtype=np.float64, mode="w+", shape=(words,)))
        os.unlink(path)
    else:
        a = np.empty(words)
    seconds, check = {}, []

    def phase(name, work):
        began = time.perf_counter()
        result = work()
        seconds[name] = time.perf_counter() - began
        if result is not None:
            check.append(float(result))

    phase("fill", lambda: fill(a, kind))
    phase("pass 1 (write)", lambda: np.multiply(a, 1.5, out=a) is None or None)
    phase("pass 2 (read)", lambda: a.sum())
    phase("sort of a third", lambda: a[: words // 3].sort())
    phase("random reads", lambda: random_reads(a))
    check += [float(a[0]), float(a[words // 3 - 1]), float(a[-1])]
    print(json.dumps({"seconds": seconds, "check": check}))


main()
