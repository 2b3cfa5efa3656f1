"""`map_fd`: copies of any bytes of a file, and the bytes themselves."""

import os
import subprocess
import sys

import numpy as np
import pytest

import farpage as fp

LARGE = (2 << 20) + 77


@pytest.fixture
def file(tmp_path):
    """A file larger than what is copied at once: its path, and what is in it."""
    values = np.random.default_rng(3).integers(0, 256, LARGE + 9000, dtype="u1")
    values.tofile(tmp_path / "file")
    return tmp_path / "file", values


@pytest.mark.parametrize("offset", [0, 1, 4095, 4096, 8191])
@pytest.mark.parametrize("length", [1, 5000, LARGE])
def test_any_bytes_are_those_of_the_file_and_stay_so(file, offset, length):
    path, values = file
    copy = fp.map_fd(path, offset, length)
    wanted = values[offset : offset + length].copy()
    assert copy.dtype == np.uint8 and copy.flags.writeable
    copy[0] ^= 255
    wanted[0] ^= 255
    assert path.read_bytes() == values.tobytes()  # which the copy does not reach
    values[::-1].tofile(path)
    np.testing.assert_array_equal(copy, wanted)
    os.truncate(path, 1)
    np.testing.assert_array_equal(copy, wanted)


def test_without_length_all_that_is_left_is_meant(file):
    path, values = file
    np.testing.assert_array_equal(fp.map_fd(path, 9), values[9:])
    np.testing.assert_array_equal(fp.map_fd(str(path), len(values) - 3), values[-3:])
    np.testing.assert_array_equal(fp.map_fd(f"file://{path}", "1K", "2K"), values[1024:3072])


def test_descriptors_and_files_are_taken_and_stay_open(file):
    path, values = file
    with open(path, "r+b") as opened:
        opened.seek(10)
        opened.write(b"new")
        copy = fp.map_fd(opened, 10, LARGE)
        assert bytes(copy[:3]) == b"new"
        assert fp.map_fd(opened.fileno(), 11, 1)[0] == ord("e")
        opened.truncate(0)
        np.testing.assert_array_equal(copy[3:], values[13 : 10 + LARGE])
    np.testing.assert_array_equal(copy[3:], values[13 : 10 + LARGE])


def test_a_shared_array_is_the_file(file):
    path, values = file
    one, other = fp.map_fd(path, 4097, 100, shared=True), fp.map_fd(path, 4097, shared=True)
    one[99] = values[4097 + 99] ^ 255
    assert other[99] == one[99] == path.read_bytes()[4097 + 99]
    with open(path, "rb") as opened:
        reads = fp.map_fd(opened, 4097, 100, shared=True)
    assert not reads.flags.writeable and reads[99] == one[99]
    with pytest.raises(ValueError):
        reads[0] = 1


@pytest.mark.parametrize("count", [100, 500_000])
def test_numbers_have_their_types(tmp_path, count):
    values = np.arange(count, dtype="f4") - 7
    path = tmp_path / "numbers"
    for dtype in ("f4", ">f4", ">i8"):
        path.write_bytes(b"abc" + values.astype(dtype).tobytes())
        copy = fp.map_fd(path, 3, dtype=dtype)
        assert copy.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(copy, values)
    bf16 = (values.view("u4") >> 16).astype("u2")
    wanted = (bf16.astype("u4") << 16).view("f4")
    path.write_bytes(b"abc" + bf16.tobytes())
    copy = fp.map_fd(path, 3, dtype="bf16")
    assert copy.dtype == np.float32
    copy[1] = 5
    path.write_bytes(b"")
    np.testing.assert_array_equal(np.delete(copy, 1), np.delete(wanted, 1))
    assert copy[1] == 5
    # 1.0 and -2.5 of a VAX.
    path.write_bytes(b"abc" + bytes.fromhex("8040000020c10000"))
    np.testing.assert_array_equal(fp.map_fd(path, 3, dtype="vax_f"), [1.0, -2.5])


def test_addresses_are_mapped_from_any_byte_on(file, server):
    path, values = file
    copy = fp.map_fd(server.url("file"), 4097, LARGE, ram="16M")
    np.testing.assert_array_equal(copy, values[4097 : 4097 + LARGE])
    copy[0] ^= 255
    assert copy[0] == values[4097] ^ 255
    np.testing.assert_array_equal(fp.map_fd(server.url("file"), 11), values[11:])
    (path.parent / "numbers").write_bytes(b"abc" + bytes.fromhex("803f20c0"))
    bf16 = fp.map_fd(server.url("numbers"), 3, dtype="bf16")
    np.testing.assert_array_equal(bf16, [1.0, -2.5])


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        (("{file}", 10, LARGE + 9000), {}, fp.errors.ArgumentError, "not inside"),
        (("{file}", LARGE + 9000), {}, fp.errors.ArgumentError, "not inside"),
        (("{file}", 0, 0), {}, fp.errors.ArgumentError, "one at least"),
        (("{file}", -1), {}, fp.errors.ArgumentError, "offset"),
        (("{file}", 0, 7), {"dtype": "f4"}, fp.errors.ArgumentError, "no whole number"),
        (("{file}", 0, 7), {"dtype": "bf16"}, fp.errors.FormatError, "whole number"),
        (("{file}",), {"dtype": "no such"}, fp.errors.ArgumentError, "not known"),
        (("{file}",), {"dtype": object}, fp.errors.ArgumentError, "give another"),
        (("{file}",), {"dtype": "bf16", "shared": True}, fp.errors.ArgumentError, "translated"),
        (("{file}",), {"shared": 2}, fp.errors.ArgumentError, "True or False"),
        (("{file}",), {"timeout": 2}, fp.errors.ArgumentError, "for addresses alone"),
        (("{folder}",), {}, fp.errors.Unsupported, "directory"),
        (("{folder}",), {"shared": True}, fp.errors.Unsupported, "directory"),
        (("{folder}/none",), {}, fp.errors.NotFound, "check the name"),
        (("/dev/null",), {}, fp.errors.Unsupported, "device"),
        ((-1,), {}, fp.errors.ArgumentError, "no descriptor"),
        ((None,), {}, fp.errors.ArgumentError, "NoneType"),
        (("http://127.0.0.1:1/x",), {"shared": True}, fp.errors.ArgumentError, "another machine"),
        (("http://127.0.0.1:1/x",), {"timeout": 0.1}, fp.errors.TimedOut, "127.0.0.1"),
    ],
)
def test_what_cannot_be_mapped_is_refused(file, arguments, options, error, words):
    names = {"file": file[0], "folder": file[0].parent}
    given = [a.format(**names) if isinstance(a, str) else a for a in arguments]
    with pytest.raises(error, match=words):
        fp.map_fd(*given, **options)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(fp.errors.Unsupported, match="pipe"):
        fp.map_fd(tmp_path / "pipe")


def test_a_child_of_fork_keeps_its_copy(file):
    path, values = file
    copy = fp.map_fd(path, 1, LARGE)
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(reads, 1)
        os._exit(0 if np.array_equal(copy, values[1 : 1 + LARGE]) else 1)
    del copy
    # Who writes waits until the child has its copy.
    program = f"open({str(path)!r}, 'wb').write(b'other')"
    subprocess.run([sys.executable, "-c", program], check=True)
    os.write(writes, b"x")
    assert os.waitpid(child, 0)[1] == 0
    os.close(reads), os.close(writes)


def test_shared_memory_of_the_host_is_copied_and_mapped(host):
    memory = fp.SharedMemory("mapped", create=True, size="1M")
    np.frombuffer(memory.buf, "u2")[:] = 7
    copy = fp.map_fd("shared:mapped", 4098, 4096, dtype="u2")
    tail = fp.map_fd("shared:mapped", (1 << 20) - 2, shared=True, dtype="u2")
    memory.buf[4098:4100] = b"\1\1"
    memory.buf[-2:] = b"\2\0"
    assert list(copy[:3]) == [7, 7, 7] and len(copy) == 2048 and list(tail) == [2]
    tail[0] = 3
    assert memory.buf[-2] == 3
    copy[0] = 9
    assert memory.buf[4098] == 1
    with pytest.raises(fp.errors.ArgumentError, match="'shared:mapped', which has 1048576"):
        fp.map_fd("shared:mapped", 1 << 20)
    with pytest.raises(fp.errors.ArgumentError, match="give the length of some"):
        fp.map_fd("shared:mapped", 1, 3, dtype="u2")
    memory.unlink()
    with pytest.raises(fp.errors.NotFound):
        fp.map_fd("shared:mapped")
