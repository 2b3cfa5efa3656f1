"""`open`: bytes, and raw numbers."""

import os

import numpy as np
import pytest

import farpage as fp


def test_minus_one_is_all_there_is(numbers):
    path, values = numbers
    array = fp.open(path, dtype="float64", shape=(-1, 16))
    assert array.shape == (1 << 16, 16)
    np.testing.assert_array_equal(array, values.reshape(-1, 16))
    assert fp.open(path, dtype=np.float64).shape == (1 << 20,)


@pytest.mark.parametrize("shape", [(-1, 3), (-1, -1), (1 << 21,), (-2,)])
def test_a_shape_that_does_not_fit_is_refused(numbers, shape):
    with pytest.raises(ValueError):
        fp.open(numbers[0], dtype="float64", shape=shape)


def test_a_shape_without_dimensions_is_one_number(tmp_path):
    np.array(2.5).tofile(tmp_path / "x")
    assert fp.open(tmp_path / "x", dtype="float64", shape=()) == 2.5


def test_an_empty_file_is_an_empty_object_and_array(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    obj = fp.open(tmp_path / "empty")
    assert (len(obj), obj[:], bytes(memoryview(obj))) == (0, b"", b"")
    assert fp.open(tmp_path / "empty", dtype="f4").shape == (0,)
    assert fp.open(tmp_path / "empty", dtype="f4", shape=(0, 7)).shape == (0, 7)


def test_big_endian_numbers_are_native_in_memory(tmp_path):
    values = np.arange(10000, dtype=">f4")
    values.tofile(tmp_path / "x")
    array = fp.open(tmp_path / "x", dtype=">f4")
    assert array.dtype.isnative
    np.testing.assert_array_equal(array, values)


def test_vax_numbers_are_read(tmp_path):
    # 1.0, -2.5 and 0 as the VAX wrote them: F_floating, words little-endian, high word first.
    (tmp_path / "x").write_bytes(bytes.fromhex("8040000020c1000000000000"))
    array = fp.open(tmp_path / "x", dtype="vax_f")
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, [1.0, -2.5, 0])


def test_bf16_numbers_are_bits_and_translated_when_asked_for(tmp_path):
    np.array([0x3F80, 0xC000], "<u2").tofile(tmp_path / "x")
    array = fp.open(tmp_path / "x", dtype="bf16", bf16_as_f32=True)
    np.testing.assert_array_equal(array, np.array([1, -2], "f4"))


def test_records_and_text_are_seen_as_they_are(tmp_path):
    kind = np.dtype([("id", "<i4"), ("x", ">f8")])
    records = np.zeros(1000, kind)
    records["id"] = records["x"] = np.arange(1000)
    records.tofile(tmp_path / "x")
    array = fp.open(tmp_path / "x", dtype=kind, shape=(-1, 10))
    assert array.shape == (100, 10)
    np.testing.assert_array_equal(array.reshape(-1), records)
    made = fp.open(tmp_path / "new", dtype=kind, shape=(4,), mode="w+")
    made[:] = records[:4]
    made.flush()
    np.testing.assert_array_equal(np.fromfile(tmp_path / "new", kind), records[:4])


def test_types_of_python_objects_are_refused(numbers):
    with pytest.raises(fp.ArgumentError, match="Python objects"):
        fp.open(numbers[0], dtype=object)


def test_bytes_are_copied_out_and_counted_from_the_end(numbers):
    obj = fp.open(numbers[0])
    data = numbers[1].tobytes()
    assert len(obj) == obj.nbytes == len(data)
    assert obj[10:5000] == data[10:5000] and obj[-3] == data[-3] and obj[-8:] == data[-8:]
    with pytest.raises(IndexError):
        obj[len(data)]
    with pytest.raises(fp.ArgumentError):
        obj[::2]


def test_an_object_has_the_buffer_protocol(numbers):
    obj = fp.open(numbers[0])
    view = memoryview(obj)
    assert view.readonly and view[:100] == numbers[1].tobytes()[:100]
    np.testing.assert_array_equal(np.frombuffer(obj, "f8"), numbers[1])


def test_paths_of_all_kinds_are_taken(numbers):
    path, values = numbers
    for form in (path, os.fsencode(path), __import__("pathlib").Path(path), f"file://{path}"):
        assert fp.open(form, dtype="f8")[7] == values[7]


SIZES = [("4M", 4 << 20), ("1.5GiB", 3 << 29), ("500MB", 5 * 10**8)]


@pytest.mark.parametrize("size, wanted", SIZES)
def test_sizes_are_understood(size, wanted):
    from farpage._options import parse_size

    assert parse_size(size) == wanted


@pytest.mark.parametrize("size", ["", "4X", "M", "-1", -1, True, 1.5, "nan", "inf"])
def test_what_is_no_size_is_refused(numbers, size):
    with pytest.raises(fp.ArgumentError):
        fp.open(numbers[0], ram=size)


NONSENSE = [{"mode": "a"}, {"on_failure": "x"}, {"shape": (3,)}, {"timeout": -1}]


@pytest.mark.parametrize("options", NONSENSE)
def test_options_that_make_no_sense_are_refused(numbers, options):
    with pytest.raises(fp.ArgumentError):
        fp.open(numbers[0], **options)


def test_unknown_options_are_refused(numbers):
    with pytest.raises(TypeError, match="colour"):
        fp.open(numbers[0], colour="red")
