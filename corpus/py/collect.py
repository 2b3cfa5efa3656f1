"""A full collection goes through all objects that there are: dicts in lists, kept and replaced. usage: collect.py MIB"""
import gc

from common import size_mib

count = size_mib() * 3000
rows = [{"id": i, "name": f"row {i}", "half": i >> 1} for i in range(count)]
for turn in range(3):
    for i in range(turn, count, 7):
        rows[i] = {"id": i, "name": f"row {i} of turn {turn}", "half": rows[i >> 1]["half"]}
    cycle = [rows]
    cycle.append(cycle)
    del cycle
    print("turn", turn, gc.collect(), sum(row["half"] for row in rows), sum(len(row["name"]) for row in rows))
