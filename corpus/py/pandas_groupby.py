"""pandas: group-by, merge and pivot of one table. usage: pandas_groupby.py MIB"""
import numpy as np
import pandas as pd

from common import SEED, digest, size_mib

rows = (size_mib() << 17) // 12
rng = np.random.default_rng(SEED)
frame = pd.DataFrame(
    {
        "key": rng.integers(0, rows // 10, size=rows),
        "kind": rng.integers(0, 12, size=rows).astype("int8"),
        "value": rng.normal(size=rows),
    }
)
sums = frame.groupby("key")["value"].agg(["sum", "count", "max"]).reset_index()
print("group", len(sums), digest(sums.to_numpy(copy=True)))
table = frame.pivot_table(index="kind", values="value", aggfunc=["mean", "std"])
print("pivot", digest(table.to_numpy()))
merged = frame.merge(sums, on="key", how="left").sort_values(["key", "value"], kind="stable")
print("merge", len(merged), digest(merged["sum"].to_numpy()))
merged.head(1000).to_csv("head.csv", index=False)
