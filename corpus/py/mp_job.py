"""multiprocessing by fork or spawn: workers sort and sum parts of a table that they inherit or are
sent. usage: mp_job.py fork|spawn MIB"""
import multiprocessing as mp
import sys

import numpy as np

from common import SEED, digest, size_mib

PARTS = 4
table = None


def from_inherited(part):
    piece = np.array_split(table, PARTS)[part].copy()
    piece.sort()
    table[part::PARTS] = part  # a private write: nobody else may see it
    return part, digest(piece), float(piece[:100].sum())


def from_seed(args):
    part, count = args
    piece = np.random.default_rng(SEED + part).random(count)
    piece.sort()
    return part, digest(piece), piece[:: max(1, count // 1000)].copy()


def main():
    global table
    method, words = sys.argv[1], size_mib() << 17
    ctx = mp.get_context(method)
    if method == "fork":
        table = np.random.default_rng(SEED).random(words)
        before = digest(table)
        with ctx.Pool(2, maxtasksperchild=1) as pool:  # each part in a fresh child
            for part, d, s in pool.map(from_inherited, range(PARTS), chunksize=1):
                print("part", part, d, f"{s:.12e}")
        print("table unchanged", digest(table) == before, before)
    else:
        table = np.zeros(words // 2)
        with ctx.Pool(2) as pool:
            jobs = [(p, words // 4) for p in range(PARTS)]
            for part, d, sample in pool.imap(from_seed, jobs):
                print("part", part, d, digest(sample))
        print("zeros", not table.any())


if __name__ == "__main__":
    main()
