"""Sorts more random numbers than its memory holds and checks the result. usage: demo.py MIB"""
import sys

import numpy as np

words = int(sys.argv[1]) << 17
a = np.random.default_rng(7).random(words)
total = float(a.sum())
a.sort()
good = bool((a[1:] >= a[:-1]).all()) and abs(float(a.sum()) - total) < 1e-6 * total
print(f"sorted {words} numbers from {a[0]:.3e} to {a[-1]:.6f}, {'correct' if good else 'WRONG'}")
