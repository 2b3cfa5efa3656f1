"""An array of 1 MiB that is in memory already, read again: `warm.py ray` or `warm.py farpage`.

Prints: the median nanoseconds to have it and read one number, and to have it and sum it.
"""

import statistics
import sys
import time

import numpy as np

ITEMS = (1 << 20) // 8
TIMES = 2000


def of_ray():
    import ray

    ray.init(
        num_cpus=1,
        object_store_memory=128 << 20,
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
    )
    put = ray.put(np.ones(ITEMS))
    return lambda: ray.get(put)


def of_farpage():
    import farpage as fp

    array = fp.shared("warm", shape=(ITEMS,), dtype="f8", page_size="1M")
    array[:] = 1
    return lambda: array


def median(read):
    def once(at):
        began = time.perf_counter_ns()
        read(at)
        return time.perf_counter_ns() - began

    return statistics.median(once(at) for at in range(TIMES))


have = {"ray": of_ray, "farpage": of_farpage}[sys.argv[1]]()
assert have().sum() == ITEMS
print(median(lambda at: have()[at]), median(lambda at: have().sum()))
