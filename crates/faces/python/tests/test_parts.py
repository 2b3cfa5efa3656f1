"""Several files and addresses as one memory, and parts of them."""

import multiprocessing
import os
import pickle

import numpy as np
import pytest
import workers

import farpage as fp


@pytest.fixture
def split(server, numbers):
    """The numbers in three parts; a server has the second, in the middle of a larger file."""
    path, values = numbers
    data = values.tobytes()
    first, second = (server.folder / name for name in ("first", "second"))
    first.write_bytes(data[:1_000_000])
    second.write_bytes(b"before" + data[1_000_000:3_000_000] + b"behind")
    return [first, (server.url("second"), 6, 2_000_000), (path, 3_000_000)], values


def in_child(act):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if act() else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_parts_are_one_array(split):
    parts, values = split
    array = fp.open(parts, dtype="f8", shape=(-1, 64), ram="4M")
    np.testing.assert_array_equal(array, values.reshape(-1, 64))
    obj = array.object
    assert obj.nbytes == values.nbytes and obj.version.count(" ") > 2
    assert repr(obj).startswith("<farpage.Object '") and "(3 parts)', 8 MiB" in repr(obj)
    obj.drop()
    assert obj.prefetch((999_000, 1_001_000)) == 2000
    assert obj[999_000:1_001_000] == values.tobytes()[999_000:1_001_000]
    stats = obj.stats()
    assert stats["bytes"] == values.nbytes and stats["reads"] > 2 and stats["failures"] == 0


def test_an_array_begins_where_the_offset_says_and_has_what_its_shape_takes(numbers, server):
    path, values = numbers
    for address in (path, server.url("numbers.bin"), (path,)):
        if isinstance(address, tuple):
            array = fp.open([(path, 800)], dtype="f8", shape=(10, 5))
        else:
            array = fp.open(address, dtype="f8", shape=(10, 5), offset=800)
        np.testing.assert_array_equal(array, values[100:150].reshape(10, 5))
    np.testing.assert_array_equal(fp.open(path, dtype="f8", offset=800), values[100:])
    np.testing.assert_array_equal(fp.open(path, dtype="f8", offset=0, shape=(3,)), values[:3])
    assert fp.open(path, offset="1K", size=10)[:] == values.tobytes()[1024:1034]
    assert fp.open(path, size=10)[:] == values.tobytes()[:10]
    record = np.dtype([("a", "f8"), ("b", "f4", 2)])
    records = fp.open(path, dtype=record, offset=16, shape=(3,))
    np.testing.assert_array_equal(records["a"], values[2:8:2])
    with open(path, "rb") as file:
        np.testing.assert_array_equal(
            fp.open(file, dtype="f8", offset=800, shape=(7,)), values[100:107]
        )
        assert fp.open(file, offset=values.nbytes - 3)[:] == values.tobytes()[-3:]


def test_a_file_of_arrays_that_was_cut_or_lies_in_another_loads(tmp_path):
    values = np.arange(100_000.0)
    np.save(tmp_path / "x.npy", values)
    data = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "0").write_bytes(data[:50_001])
    (tmp_path / "1").write_bytes(data[50_001:])
    np.testing.assert_array_equal(fp.load([tmp_path / "0", tmp_path / "1"]), values)
    (tmp_path / "tar").write_bytes(b"head" * 128 + data + b"tail")
    array = fp.load(tmp_path / "tar", offset=512, size=len(data), mode="r+")
    array[5] = -1
    array.flush()
    assert (tmp_path / "tar").read_bytes()[-4:] == b"tail"
    np.testing.assert_array_equal(fp.load([(tmp_path / "tar", 512, len(data))])[:6], array[:6])


def test_parts_are_written_in_place(tmp_path):
    for name in "ab":
        np.zeros(1000).tofile(tmp_path / name)
    parts = [(tmp_path / "a", 8), tmp_path / "b"]
    array = fp.open(parts, dtype="f8", mode="r+")
    array[:] = np.arange(1.0, 2000)
    array.flush()
    both = np.concatenate([np.fromfile(tmp_path / name) for name in "ab"])
    np.testing.assert_array_equal(both, np.arange(2000.0))
    part = fp.open(tmp_path / "b", dtype="f8", offset=80, shape=(2,), mode="r+")
    part[:] = -1
    part.flush()
    assert (np.fromfile(tmp_path / "b") < 0).nonzero()[0].tolist() == [10, 11]


def test_workers_open_the_same_parts(split, monkeypatch):
    parts, values = split
    array = fp.open(parts, dtype="f8", cache=False)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        sums = pool.map(workers.total, [array[:200_000], array[200_000:]])
        assert all(pool.map(workers.is_by_reference, [array, array[5:]]))
    assert sums == [values[:200_000].sum(), values[200_000:].sum()]
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(workers.total, (array[100_000:150_000],)) == values[100_000:150_000].sum()
    assert in_child(lambda: np.array_equal(array, values)) == 0
    monkeypatch.chdir(os.path.dirname(parts[0]))
    sent = pickle.dumps(fp.open(["first", ("second", 6, 80)], dtype="f8"))
    monkeypatch.chdir("/")
    np.testing.assert_array_equal(pickle.loads(sent), values[:125_010])


def test_a_part_that_changed_on_the_way_is_refused(split, script):
    parts, _ = split
    sent = pickle.dumps(fp.open(parts, dtype="f8", cache=False))
    with open(parts[0], "r+b") as file:
        file.write(b"new!")
        os.utime(file.fileno(), (1, 1))
    done = script(
        """
        import pickle, sys, farpage
        try:
            pickle.loads(bytes.fromhex(sys.argv[1]))
        except farpage.Changed as error:
            print(error)
        """,
        sent.hex(),
    )
    assert "has changed" in done.stdout and "(3 parts)" in done.stdout, done.stderr


def test_what_is_asked_for_of_parts_is_recorded_and_replayed(split, tmp_path):
    parts, values = split
    with fp.open(parts, record=tmp_path / "trace", cache=False) as obj:
        assert obj[2_000_000] == values.tobytes()[2_000_000]
    obj = fp.open(parts, replay=tmp_path / "trace", cache=False)
    while not any(start <= 2_000_000 < stop for start, stop in obj.residency()):
        pass


def test_a_source_that_changed_is_replayed_as_far_as_it_is_there(numbers, tmp_path, capfd):
    path, values = numbers
    with fp.open(path, record=tmp_path / "trace") as obj:
        assert obj[1_000_000] == obj[1_000_000] and obj[7_000_000] is not None
    capfd.readouterr()
    os.truncate(path, 2_000_000)
    with fp.open(path, replay=tmp_path / "trace") as obj:
        while not any(start <= 1_000_000 < stop for start, stop in obj.residency()):
            pass
    (line,) = capfd.readouterr().err.splitlines()
    said = f"farpage: '{path}' has changed since its trace was recorded: it had 8388608 bytes"
    assert line.startswith(said)
    with fp.open(path, replay=tmp_path / "trace", mode="r+"):
        assert "and has 2000000; what it still has" in capfd.readouterr().err


def test_a_list_of_one_is_that_part(numbers, tmp_path):
    path, values = numbers
    for source in ([(path, 8, 16)], (path, 8, 16)):
        np.testing.assert_array_equal(fp.open(source, dtype="f8"), values[1:3])
    made = fp.open([tmp_path / "new"], dtype="f8", shape=(5,), mode="w+")
    made[:] = 1
    made.flush()
    fp.open([tmp_path / "new"], dtype="f8", shape=(7,), mode="r+").flush()
    np.testing.assert_array_equal(np.fromfile(tmp_path / "new"), [1] * 5 + [0] * 2)


def test_a_trace_of_another_slice_is_one_of_what_has_changed(numbers, tmp_path, capfd):
    path, _ = numbers
    with fp.open(path, offset=0, size=8192, record=tmp_path / "trace") as obj:
        assert len(obj[:10]) == 10
    for offset, says in ((0, ""), (4096, "has changed since its trace was recorded")):
        capfd.readouterr()
        fp.open(path, offset=offset, size=8192, replay=tmp_path / "trace").close()
        err = capfd.readouterr().err
        assert says in err and bool(err) == bool(says)
    with pytest.raises(fp.ArgumentError, match="it is no trace"):
        fp.open(path, replay=path)


def test_parts_that_make_no_sense_are_refused(split, numbers, tmp_path):
    path, values = numbers
    there = values.nbytes
    for source, options, words in [
        ([], {}, "there are none; name at least one"),
        ([path, 5], {}, "5 is no part; give a path or an address"),
        ([(path, 0, 1, 2)], {}, "is no part"),
        ([(path, -1)], {}, "offset -1"),
        ([path, path], {"offset": 8}, "give those of each part"),
        ([(path, 8)], {"size": 8}, "give those of each part"),
        ((path, path), {}, "offset '.*' is no number of bytes"),
        (path, {"offset": there + 1}, f"byte {there + 1} is not inside .*; give a range inside$"),
        (path, {"offset": 8, "size": there, "mode": "r+"}, "grows when it is opened from its"),
        (path, {"offset": 8, "size": there}, f"bytes 8 to {there + 8} are not inside '"),
        (path, {"offset": 0, "dtype": "f8", "shape": (1 << 21,)}, "are not inside"),
        (path, {"offset": 8, "mode": "w+", "size": 8}, "make each file by itself"),
        ([path, path], {"mode": "r+"}, "two have the same bytes"),
        (split[0], {"mode": "r+"}, "only local files"),
        ([split[0][0], path], {"mode": "r+", "dtype": "f8", "shape": (1 << 21,)}, "do not grow"),
        (lambda offset, length: b"", {"offset": 1, "size": 5}, "add the offset in it"),
    ]:
        with pytest.raises(fp.ArgumentError, match=words):
            fp.open(source, **options)
    with pytest.raises(fp.NotFound, match="none"):
        fp.open([path, tmp_path / "none"])
    with pytest.raises(fp.NotFound) as raised:
        fp.open([path, tmp_path / "none"], mode="r+")
    assert "w+" not in str(raised.value)
    with open(path, "rb") as file, pytest.raises(fp.ArgumentError, match="is not inside"):
        fp.open(file, offset=there + 1)
