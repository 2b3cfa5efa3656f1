"""One way to read arrays behind HTTP; prints its times as JSON. See `cargo xtask bench remote`."""

import json
import mmap
import sys
import time

began = time.perf_counter()

import numpy as np  # noqa: E402  (importing is part of what a user waits for)


def header(read):
    """Name to (dtype, shape, begin, end) of a safetensors file."""
    length = int.from_bytes(read(0, 8), "little")
    entries = json.loads(bytes(read(8, 8 + length)))
    entries.pop("__metadata__", None)
    return {
        name: (8 + length + e["data_offsets"][0], 8 + length + e["data_offsets"][1], e["shape"])
        for name, e in entries.items()
    }


def tensors_of(read):
    """The tensors, one after another, each read whole by `read(start, stop)`."""
    for start, stop, shape in header(read).values():
        yield np.frombuffer(read(start, stop), np.float32).reshape(shape)


def tensors(how, place):
    if how == "farpage":
        import farpage as fp

        yield from fp.load(place, ram="2G").values()
    elif how == "mmap":
        with open(place, "rb") as file:
            view = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
            yield from tensors_of(lambda start, stop: view[start:stop])
    elif how == "fsspec":
        import fsspec

        with fsspec.open(place, "rb", block_size=8 << 20) as file:

            def read(start, stop):
                file.seek(start)
                return file.read(stop - start)

            yield from tensors_of(read)
    elif how == "download":
        import urllib.request

        with urllib.request.urlopen(place) as answer, open(sys.argv[4], "wb") as file:
            while part := answer.read(1 << 20):
                file.write(part)
        yield from tensors("mmap", sys.argv[4])


def rows(how, place):
    order = np.random.default_rng(7).integers(0, 524288, 2000)
    if how == "farpage":
        import farpage as fp

        return sum_of(fp.load(place, ram="1G", record=sys.argv[4]), order)
    if how == "replayed":
        import farpage as fp

        return sum_of(fp.load(place, ram="1G", replay=sys.argv[4]), order)
    import fsspec

    total = 0.0
    with fsspec.open(place, "rb", block_size=int(sys.argv[4])) as file:
        for i in order:
            file.seek(128 + int(i) * 4096)
            total += float(np.frombuffer(file.read(4096), np.float32).sum(dtype=np.float64))
    return total


def sum_of(array, order):
    return sum(float(array[i].sum(dtype=np.float64)) for i in order)


def main():
    what, how, place = sys.argv[1:4]
    times = {}
    if what == "tensors":
        total = 0.0
        for tensor in tensors(how, place):
            total += float(tensor.sum(dtype=np.float64))
            times.setdefault("first", time.perf_counter() - began)
    else:
        total = rows(how, place)
    times["all"] = time.perf_counter() - began
    print(json.dumps({**times, "sum": total}))


main()
