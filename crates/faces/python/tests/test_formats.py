"""`load` gives what the format's own library loads."""

import io

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from safetensors.numpy import load_file, save_file

import farpage as fp

RNG = np.random.default_rng(7)
KINDS = ["?", "i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8"]
KINDS += ["<c8", "<c16", "S5", "<U3", "<M8[ns]"]


def some(dtype, shape=(37, 53)):
    count = int(np.prod(shape))
    return np.arange(count).astype("i8").astype(np.dtype(dtype), casting="unsafe").reshape(shape)


@pytest.mark.parametrize("dtype", KINDS)
def test_npy_equals_what_numpy_loads(tmp_path, dtype):
    np.save(tmp_path / "x.npy", some(dtype))
    loaded = fp.load(tmp_path / "x.npy")
    wanted = np.load(tmp_path / "x.npy")
    assert loaded.dtype == wanted.dtype
    np.testing.assert_array_equal(loaded, wanted)
    assert not loaded.flags.writeable


def test_npy_in_fortran_order_keeps_its_order(tmp_path):
    np.save(tmp_path / "x.npy", np.asfortranarray(some("<f4", (300, 200))))
    loaded = fp.load(tmp_path / "x.npy")
    assert loaded.flags.f_contiguous and not loaded.flags.c_contiguous
    np.testing.assert_array_equal(loaded, some("<f4", (300, 200)))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 4), (1,), (1, 1, 1)])
def test_npy_of_few_or_no_elements(tmp_path, shape):
    np.save(tmp_path / "x.npy", np.full(shape, 2.5))
    loaded = fp.load(tmp_path / "x.npy")
    assert loaded.shape == shape
    np.testing.assert_array_equal(np.asarray(loaded), np.full(shape, 2.5))


def test_npy_of_records_equals_what_numpy_loads(tmp_path):
    kind = np.dtype([("id", "<i4"), ("at", "<f8", (2,)), ("name", "S7")], align=True)
    records = np.zeros(1000, kind)
    records["id"], records["name"] = np.arange(1000), b"abc"
    np.save(tmp_path / "x.npy", records)
    loaded = fp.load(tmp_path / "x.npy")
    assert loaded.dtype == np.load(tmp_path / "x.npy").dtype
    np.testing.assert_array_equal(loaded, records)
    assert loaded["id"].object is loaded.object


@pytest.mark.parametrize("dtype", [">i2", ">i8", ">f4", ">f8", ">c16"])
def test_big_endian_is_presented_in_native_order_or_as_stored(tmp_path, dtype):
    values = some(dtype)
    np.save(tmp_path / "x.npy", values)
    native = fp.load(tmp_path / "x.npy")
    assert native.dtype.isnative
    np.testing.assert_array_equal(native, values)
    stored = fp.load(tmp_path / "x.npy", dtype="stored")
    assert stored.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(stored, values)


def test_npz_equals_what_numpy_loads(tmp_path):
    arrays = {"a": some("<f4"), "b": some("<i8", (5,)), "zero": np.empty((0, 3)), "d0": np.array(5)}
    np.savez(tmp_path / "x.npz", **arrays)
    loaded = fp.load(tmp_path / "x.npz")
    assert set(loaded) == set(arrays)
    for name, wanted in np.load(tmp_path / "x.npz").items():
        np.testing.assert_array_equal(loaded[name], wanted)


def test_an_npz_is_not_written_to_because_it_has_sums_of_its_arrays(tmp_path):
    np.savez(tmp_path / "x.npz", a=some("<f4"))
    with pytest.raises(fp.ArgumentError, match="a sum of each array"):
        fp.load(tmp_path / "x.npz", mode="r+")
    arrays = fp.load(tmp_path / "x.npz", mode="c")
    arrays["a"][...] = 7
    assert not (np.load(tmp_path / "x.npz")["a"] == 7).all()


def test_a_compressed_npz_is_refused(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", a=some("<f4"))
    with pytest.raises(fp.FormatError, match="compressed"):
        fp.load(tmp_path / "x.npz")


def test_safetensors_equals_what_safetensors_loads(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({"w": some("<f4"), "b": some("<i8", (9,)), "h": some("<f2")}, path)
    loaded = fp.load(path)
    for name, wanted in load_file(path).items():
        assert loaded[name].dtype == wanted.dtype
        np.testing.assert_array_equal(loaded[name], wanted)


def bf16_file(path, count=5000):
    """Numbers whose upper halves are bf16; and a neighbour of another type."""
    values = RNG.standard_normal(count).astype("<f4")
    bits = values.view("<u4") >> 16
    halves = bits.astype("<u2").tobytes()
    head = (
        '{"w":{"dtype":"BF16","shape":[%d],"data_offsets":[0,%d]},'
        '"h":{"dtype":"F16","shape":[2],"data_offsets":[%d,%d]}}'
        % (count, 2 * count, 2 * count, 2 * count + 4)
    ).encode()
    tail = np.array([1.5, -2], "<f2").tobytes()
    path.write_bytes(len(head).to_bytes(8, "little") + head + halves + tail)
    return bits.astype("<u4"), (bits << 16).view("<f4")


def test_bf16_is_float32_by_default_and_bits_as_stored(tmp_path):
    path = tmp_path / "x.safetensors"
    bits, values = bf16_file(path)
    loaded = fp.load(path)
    assert loaded["w"].dtype == np.float32 and loaded["h"].dtype == np.float16
    np.testing.assert_array_equal(loaded["w"], values)
    wide = fp.load(path, dtype="float32")
    assert wide["h"].dtype == np.float32
    np.testing.assert_array_equal(wide["w"], values)
    np.testing.assert_array_equal(wide["h"], [1.5, -2])
    stored = fp.load(path, dtype="stored")
    assert stored["w"].dtype == np.uint16
    np.testing.assert_array_equal(stored["w"], bits)


def test_load_as_another_type_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", some("<f4"))
    with pytest.raises(fp.ArgumentError, match="stored"):
        fp.load(tmp_path / "x.npy", dtype="int64")


def test_arrow_equals_what_pyarrow_loads(tmp_path):
    frame = pd.DataFrame({"a": np.arange(5000), "b": np.linspace(0, 1, 5000)})
    table = pa.Table.from_pandas(frame)
    with pa.OSFile(str(tmp_path / "x.arrow"), "wb") as file:
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=3000)
    loaded = fp.load(tmp_path / "x.arrow")
    assert set(loaded) == {"0/a", "0/b", "1/a", "1/b"}  # batch and column
    for column in ("a", "b"):
        mine = np.concatenate([loaded[f"0/{column}"], loaded[f"1/{column}"]])
        np.testing.assert_array_equal(mine, frame[column])


@pytest.mark.parametrize("pack", ["gz", "zst"])
def test_compressed_files_are_read_as_what_they_hold(tmp_path, pack):
    data = io.BytesIO()
    np.save(data, some("<f8", (1000, 100)))
    path = tmp_path / f"x.npy.{pack}"
    if pack == "gz":
        import gzip

        path.write_bytes(gzip.compress(data.getvalue()))
    else:
        path.write_bytes(pa.compress(data.getvalue(), codec="zstd", asbytes=True))
    np.testing.assert_array_equal(fp.load(path), some("<f8", (1000, 100)))
    as_it_is = fp.open(path, decompress=False)
    assert as_it_is[:] == path.read_bytes()


def test_what_is_no_format_is_refused(tmp_path):
    (tmp_path / "x.npy").write_bytes(b"nonsense" * 100)
    with pytest.raises(fp.FormatError):
        fp.load(tmp_path / "x.npy")


def test_a_file_object_is_not_loaded(tmp_path):
    with pytest.raises(fp.ArgumentError, match="path"):
        fp.load(io.BytesIO(b""))


def test_arrays_name_their_object_and_let_go_of_it(tmp_path):
    np.savez(tmp_path / "x.npz", a=some("<f4"), b=some("<i8"))
    arrays = fp.load(tmp_path / "x.npz")
    assert arrays["a"].object is arrays["b"].object is arrays.object
    arrays.close()
    assert arrays.object.closed and not arrays
