"""What is written, and where it goes."""

import gzip
import subprocess
import sys

import numpy as np
import pytest

import farpage as fp


def as_another_process_sees(path, dtype="f8"):
    program = "import sys, numpy; sys.stdout.buffer.write(numpy.fromfile(sys.argv[1], 'u1'))"
    run = [sys.executable, "-c", program, path]
    return np.frombuffer(subprocess.run(run, capture_output=True, check=True).stdout, dtype)


def test_a_read_only_array_refuses_writes(numbers):
    array = fp.open(numbers[0], dtype="f8")
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    with pytest.raises(ValueError):
        array.flags.writeable = True


def test_what_was_flushed_another_process_reads(numbers):
    path, values = numbers
    array = fp.open(path, dtype="f8", mode="r+", ram="4M")
    array[::1000] = -1
    array.flush()
    wanted = values.copy()
    wanted[::1000] = -1
    np.testing.assert_array_equal(as_another_process_sees(path), wanted)


def test_npy_written_in_place_is_what_numpy_loads(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((500, 100)))
    array = fp.load(tmp_path / "x.npy", mode="r+")
    array[7] = 3
    array.object.flush()
    loaded = np.load(tmp_path / "x.npy")
    assert loaded[7].sum() == 300 and loaded.sum() == 300


def test_numbers_are_written_in_the_order_of_the_file(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(5000, dtype=">f4"))
    array = fp.load(tmp_path / "x.npy", mode="r+")
    array[3] = 1.5
    array.flush()
    assert np.load(tmp_path / "x.npy")[3] == 1.5
    assert np.load(tmp_path / "x.npy").dtype == np.dtype(">f4")


def test_what_is_compressed_is_not_written_to(tmp_path):
    packed = gzip.compress(bytes(100_000))
    path = tmp_path / "x.gz"
    path.write_bytes(packed)
    for options in (
        {"mode": "r+"},
        {"mode": "r+", "decompress": True},
        {"mode": "w+", "decompress": True, "size": 10},
        {"mode": "w+", "size": 10},
    ):
        with pytest.raises(fp.ArgumentError, match="compressed is only read; open it for reading"):
            fp.open(path, **options)
    assert path.read_bytes() == packed
    with fp.open(path, mode="r+", decompress=False) as obj:
        assert obj.nbytes == len(packed)
    (tmp_path / "bytes.gz").write_bytes(bytes(100))
    assert fp.open(tmp_path / "bytes.gz", mode="r+").nbytes == 100


def test_bytes_of_an_object_are_set(numbers):
    path, values = numbers
    with fp.open(path, mode="r+") as obj:
        obj[8:24] = np.array([1.0, 2.0])
        obj[-1] = 255
        with pytest.raises(fp.ArgumentError, match="4 bytes are not the 3 of the range"):
            obj[0:3] = b"four"
        with pytest.raises(IndexError):
            obj[obj.nbytes] = 1
    there = np.fromfile(path)
    assert there[:3].tolist() == [values[0], 1.0, 2.0] and there.view("u1")[-1] == 255
    with pytest.raises(fp.ArgumentError, match="open for reading"):
        fp.open(path)[0:1] = b"x"


def test_a_new_file_is_zeros_and_takes_what_is_written(tmp_path):
    path = str(tmp_path / "new")
    array = fp.open(path, dtype="f8", shape=(1000, 10), mode="w+")
    assert not array.any()
    array[999, 9] = 7
    array.flush()
    assert as_another_process_sees(path)[-1] == 7


def test_a_file_that_is_too_short_grows(tmp_path):
    np.ones(10).tofile(tmp_path / "x")
    array = fp.open(tmp_path / "x", dtype="f8", shape=(1000,), mode="r+")
    assert array.sum() == 10
    assert (tmp_path / "x").stat().st_size == 8000


def test_a_new_file_without_a_size_is_refused(tmp_path):
    with pytest.raises(fp.Error):
        fp.open(tmp_path / "x", mode="w+")
    assert not (tmp_path / "x").exists()


def test_a_new_file_needs_each_dimension(tmp_path):
    record = [("a", "f8")]
    for dtype in ("f8", record):
        for shape in (None, (-1, 10)):
            with pytest.raises(fp.ArgumentError, match="give each dimension, or the size"):
                fp.open(tmp_path / "x", dtype=dtype, shape=shape, mode="w+")
        assert not (tmp_path / "x").exists()
        assert fp.open(tmp_path / "x", dtype=dtype, shape=(-1, 10), size=800, mode="w+").size == 100
        (tmp_path / "x").unlink()


def test_a_file_that_is_not_there_can_be_made(tmp_path):
    with pytest.raises(fp.NotFound, match="check the name, or have it made: mode 'w\\+'$"):
        fp.open(tmp_path / "x", dtype="f8", mode="r+")
    with pytest.raises(fp.NotFound, match="check the name$"):
        fp.open(tmp_path / "x", dtype="f8")


def test_a_private_copy_never_reaches_the_file(numbers):
    path, values = numbers
    array = fp.open(path, dtype="f8", mode="c", ram="4M")
    array *= 2
    array.flush()
    array.object.drop()
    np.testing.assert_array_equal(array, values * 2)
    np.testing.assert_array_equal(np.fromfile(path), values)


def test_what_was_written_survives_leaving_memory(numbers):
    path, values = numbers
    array = fp.open(path, dtype="f8", mode="r+", ram="4M")
    array += 1
    np.testing.assert_array_equal(array, values + 1)
    array.object.drop()
    np.testing.assert_array_equal(np.fromfile(path), values + 1)


def test_closing_writes_back(numbers):
    path, _ = numbers
    obj = fp.open(path, mode="r+")
    np.frombuffer(obj, "f8")[:3] = 5
    obj.close()
    np.testing.assert_array_equal(np.fromfile(path)[:3], 5)


def test_letting_go_writes_back(numbers):
    path, _ = numbers
    array = fp.open(path, dtype="f8", mode="r+")
    array[:3] = 6
    del array
    np.testing.assert_array_equal(np.fromfile(path)[:3], 6)


def test_a_context_writes_back_and_closes(numbers):
    with fp.open(numbers[0], mode="r+") as obj:
        view = memoryview(obj)
        view[:8] = b"\0" * 8
        view.release()
    assert obj.closed and np.fromfile(numbers[0])[0] == 0
    with pytest.raises(fp.ArgumentError, match="closed"):
        obj[0]


def test_a_context_leaves_arrays_that_live_on_usable(numbers):
    path, values = numbers
    with fp.open(path) as obj:
        array = np.frombuffer(obj, "f8")
    assert not obj.closed
    np.testing.assert_array_equal(array, values)


def test_closing_is_refused_while_views_exist(numbers):
    obj = fp.open(numbers[0])
    view = np.frombuffer(obj, "f8")[5:]
    with pytest.raises(fp.ArgumentError, match="views"):
        obj.close()
    assert view[0] == numbers[1][5]
    del view
    obj.close()
    obj.close()
    assert obj.closed


def test_an_address_cannot_be_written_to(server):
    (server.folder / "x").write_bytes(b"x" * 100)
    with pytest.raises(fp.ArgumentError, match="local"):
        fp.open(server.url("x"), mode="r+")


def test_a_number_that_the_file_cannot_hold_is_not_written(tmp_path):
    np.save(tmp_path / "x.npy", np.ones(100, "f2"))
    array = fp.load(tmp_path / "x.npy", dtype="float32", mode="r+")
    array[3] = 1e30
    with pytest.raises(fp.NotWritten, match="element 3"):
        array.flush()
    array[3] = 2
    array.flush()
    assert np.load(tmp_path / "x.npy")[3] == 2
