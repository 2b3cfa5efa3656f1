"""Files that NumPy, safetensors and PyArrow write, found by `layout` and read back bit for bit.

Usage: real_files.py LAYOUT, the program of crates/pagers/format/examples/layout.rs.
"""

import ast
import faulthandler
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import feather, ipc
from safetensors.numpy import save_file

LAYOUT = sys.argv[1]
# It takes seconds: what hangs ends, and says where.
faulthandler.dump_traceback_later(float(os.environ.get("FARPAGE_TEST_LIMIT_S") or 600), exit=True)


def layout(path):
    """What is where: element, shape, order, offset and bytes by name."""
    done = subprocess.run([LAYOUT, path], capture_output=True, text=True, check=True)
    found = {}
    for line in done.stdout.splitlines():
        name, element, shape, order, offset, size = line.split("\t")
        found[json.loads(name)] = (element, json.loads(shape), order, int(offset), int(size))
    return found


def refused(path, why):
    """The file is refused with `why` in the message."""
    done = subprocess.run([LAYOUT, path], capture_output=True, text=True)
    assert done.returncode == 1 and why in done.stderr, (path, done.stderr)


def load(path, entry):
    """The array at one place."""
    element, shape, order, offset, size = entry
    literal = element[0] in "'[("
    descr = ast.literal_eval(element) if literal else element
    data = path.read_bytes()[offset : offset + size]
    return np.frombuffer(data, np.lib.format.descr_to_dtype(descr)).reshape(shape, order=order)


def same(path, entry, array):
    found = load(path, entry)
    assert found.dtype == array.dtype and found.shape == array.shape, (path, found, array)
    assert found.tobytes() == array.tobytes(), path


def arrays():
    """Arrays of every kind of dtype, shape and order."""
    record = np.zeros(4, dtype=[("a", "<i4"), ("b", ">f8", (2,)), (("title", "c"), "u1")])
    record["a"] = range(4)
    return {
        "floats": np.arange(6, dtype="f4").reshape(2, 3),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "big": np.arange(5, dtype=">i8"),
        "bools": np.array([True, False]),
        "text": np.array(["a", "bcd"]),
        "bytes": np.array([b"ab"]),
        "dates": np.array(["2020-01-01"], dtype="M8[ns]"),
        "record": record,
        "padded": np.ones(3, dtype=np.dtype([("a", "u1"), ("b", "f8")], align=True)),
        "named": np.zeros(1, dtype=[("é", "f4")]),
        "scalar": np.array(3.5),
        "empty": np.zeros((0, 3)),
        "long": np.ones(2, np.longdouble),
        "complex": np.ones(2, "c8"),
        "half": np.ones(3, "f2"),
        "void": np.zeros(2, "V7"),
        "many": np.arange(100_000.0),
    }


def numpy_files(folder):
    for name, array in arrays().items():
        path = folder / f"{name}.npy"
        np.save(path, array)
        same(path, layout(path)[""], array)
    path = folder / "all.npz"
    np.savez(path, **arrays())
    found = layout(path)
    assert list(found) == list(arrays())
    for name, array in arrays().items():
        same(path, found[name], array)
    np.savez(folder / "none.npz")
    assert layout(folder / "none.npz") == {}
    np.savez_compressed(folder / "packed.npz", a=np.ones(9))
    refused(folder / "packed.npz", "numpy.savez instead")
    np.save(folder / "object.npy", np.array([None]), allow_pickle=True)
    refused(folder / "object.npy", "Python objects")


def safetensors_files(folder):
    names = ["floats", "bools", "scalar", "empty", "half", "many"]
    tensors = {name: arrays()[name] for name in names}
    path = folder / "all.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    found = layout(path)
    assert sorted(found) == sorted(names)
    for name, array in tensors.items():
        same(path, found[name], array)


def arrow_table():
    """Whole columns first, then columns of every other kind."""
    rows = 1000
    whole = {
        "i": pa.array(range(rows), pa.int32()),
        "f": pa.array(np.arange(rows) / 7),
        "h": pa.array(np.ones(rows, "f2")),
        "t": pa.array(range(rows), pa.timestamp("us")),
    }
    others = {
        "vectors": pa.FixedSizeListArray.from_arrays(np.arange(4.0 * rows), 4),
        "gaps": pa.array([None if i % 3 else i for i in range(rows)], pa.int64()),
        "text": pa.array([str(i) for i in range(rows)]),
        "views": pa.array(["a" * 20] * rows, pa.string_view()),
        "bools": pa.array([i % 2 == 0 for i in range(rows)]),
        "lists": pa.array([[i] * (i % 3) for i in range(rows)]),
        "list_views": pa.array([[1]] * rows, pa.list_view(pa.int8())),
        "words": pa.array([str(i % 3) for i in range(rows)]).dictionary_encode(),
        "records": pa.array([{"x": i, "y": str(i)} for i in range(rows)]),
        "decimals": pa.array([1] * rows, pa.decimal128(10, 2)),
        "maps": pa.array([[("k", 1)]] * rows, pa.map_(pa.string(), pa.int64())),
        "nothing": pa.nulls(rows),
        "runs": pa.RunEndEncodedArray.from_arrays(pa.array([rows], pa.int32()), pa.array([7])),
        "unions": pa.UnionArray.from_dense(
            pa.array([0] * rows, pa.int8()),
            pa.array(range(rows), pa.int32()),
            [pa.array(range(rows))],
        ),
    }
    return whole, pa.table(whole | others)


def arrow_files(folder):
    whole, table = arrow_table()
    path = folder / "all.arrow"
    with ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=300)
    found = layout(path)
    for name, column in whole.items():
        parts = [load(path, found[f"{batch}/{name}"]) for batch in range(4)]
        assert (np.concatenate(parts) == column.to_numpy()).all(), name
    assert found["3/vectors"][1] == [100, 4]
    assert load(path, found["3/vectors"])[99, 3] == 3999
    assert list(load(path, found["1/lists/offsets"]))[:4] == [0, 0, 1, 3]
    assert bytes(load(path, found["dictionary-0/data"])[:3]) == b"012"
    feather.write_feather(table.select(["i"]), folder / "packed.feather", compression="lz4")
    refused(folder / "packed.feather", "compression='uncompressed'")
    feather.write_feather(table.select(["i"]), folder / "plain.feather", compression="uncompressed")
    assert "0/i" in layout(folder / "plain.feather")
    with ipc.new_stream(folder / "stream.arrow", table.schema) as writer:
        writer.write_table(table)
    refused(folder / "stream.arrow", "a stream of batches")


with tempfile.TemporaryDirectory() as made:
    numpy_files(Path(made))
    safetensors_files(Path(made))
    arrow_files(Path(made))
print("files of NumPy, safetensors and PyArrow: all found and read back")
