"""`fopen`: what Python's own buffered files do, and `fmap`."""

import array
import copy
import csv
import ctypes
import errno
import gzip
import io
import os
import pickle
import random
import subprocess
import sys
import threading
import zipfile

import numpy as np
import pytest

import farpage as fp

# Of more than one buffer.
LARGE = 3 << 20


def lines(count, seed=5):
    """Lines of many lengths, some of them empty, some with zeros in them."""
    chance = random.Random(seed)
    kinds = [b"", b"a", b"word " * 9, b"x" * 5000, b"\0" * 40, b"\0", b"0123456789" * 70]
    return b"".join(chance.choice(kinds) + b"\n" for _ in range(count))


@pytest.fixture
def text(tmp_path):
    """A large file and its bytes."""
    data = lines(6000)[:LARGE]
    assert len(data) == LARGE
    (tmp_path / "text").write_bytes(data)
    return tmp_path / "text", data


class Step:
    """One random call, the same for both files."""

    def __init__(self, chance, size, mode):
        reads, writes = mode[0] == "r" or "+" in mode, mode[0] != "r" or "+" in mode
        kinds = ["seek", "tell", "flush", "end"]
        kinds += ["read", "line", "into", "many", "peek", "next"] * reads
        kinds += ["write", "cut", "lines"] * writes
        self.kind = chance.choice(kinds)
        self.small = chance.choice([0, 1, 2, 7, 100, 4095, 4097])
        self.count = chance.choice([self.small, 8192, 70_000, 600_000])
        self.at = chance.randrange(size + size // 10 + 1)
        self.byte = chance.randrange(256)

    def __repr__(self):
        return f"{self.kind} {self.count} {self.at}"

    def do(self, file):
        match self.kind:
            case "read":
                return file.read(self.count)
            case "line":
                return file.readline() if self.byte % 2 else file.readline(self.small)
            case "into":
                into = bytearray(self.count)
                return file.readinto(into), bytes(into)
            case "many":
                return [file.read(1) for _ in range(self.small // 8)]
            case "peek":
                # How much is buffered is each file's own affair.
                return file.peek(1)[:1]
            case "next":
                return next(iter(file), None)
            case "write":
                return file.write(bytes([self.byte]) * self.count)
            case "lines":
                return file.writelines([b"new\n", bytearray(b"two\n"), np.arange(3, dtype="u2")])
            case "cut":
                return file.truncate(self.at if self.byte % 2 else None)
            case "seek":
                return file.seek(self.at)
            case "end":
                return file.seek(-min(self.at, file.seek(0, 2)), self.byte % 2 + 1)
            case "tell":
                return file.tell()
            case "flush":
                return file.flush()


def outcome(call):
    try:
        return call()
    except OSError as error:
        return type(error), error.errno


@pytest.mark.parametrize("mode", ["r", "rb+", "w", "w+b", "a", "ab+"])
@pytest.mark.parametrize("size", [0, 1, 5000, LARGE])
def test_random_calls_do_what_pythons_own_files_do(tmp_path, mode, size):
    data = (lines(6000) * 2)[:size]
    python = mode.replace("b", "")[0] + ("+b" if "+" in mode else "b")
    for seed in range(6):
        chance = random.Random(f"{seed} {mode} {size}")
        for name in ("ours", "python"):
            (tmp_path / name).write_bytes(data)
        done = []
        with fp.fopen(tmp_path / "ours", mode) as ours, open(tmp_path / "python", python) as theirs:
            for _ in range(60):
                step = Step(chance, size, mode)
                done.append(step)
                got, wanted = outcome(lambda: step.do(ours)), outcome(lambda: step.do(theirs))
                assert got == wanted, (seed, done)
                if mode[0] == "a":
                    # Where the end is shows when it is written.
                    ours.flush(), theirs.flush()
                assert ours.tell() == theirs.tell(), (seed, done)
        assert (tmp_path / "ours").read_bytes() == (tmp_path / "python").read_bytes(), (seed, done)


def test_lines_words_and_tables_are_read_by_what_python_has(text, tmp_path):
    path, data = text
    assert list(line for line in fp.fopen(path)) == data.splitlines(keepends=True)
    assert fp.fopen(path).readlines() == data.splitlines(keepends=True)
    assert fp.fopen(path).read() == data
    with fp.fopen(path) as stream:
        small = iter(lambda: stream.read(100), b"")
        assert b"".join(small) == data and stream.tell() == LARGE
    rows = [[str(i), "a word", "ü" * (i % 50)] for i in range(40_000)]
    with io.TextIOWrapper(fp.fopen(tmp_path / "rows", "w"), encoding="utf-8", newline="") as table:
        csv.writer(table).writerows(rows)
    with io.TextIOWrapper(fp.fopen(tmp_path / "rows"), encoding="utf-8", newline="") as table:
        assert list(csv.reader(table)) == rows
    with fp.fopen(tmp_path / "packed", "w+") as stream:
        with gzip.GzipFile(fileobj=stream, mode="wb") as packed:
            packed.write(data)
        stream.seek(0)
        assert gzip.GzipFile(fileobj=stream, mode="rb").read() == data
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr("text", data)
        assert zipfile.ZipFile(stream).read("text") == data
    numbers = np.random.default_rng(1).random(400_000)
    with fp.fopen(tmp_path / "x.npy", "w+") as stream:
        np.save(stream, numbers)
        stream.seek(0)
        np.testing.assert_array_equal(np.load(stream), numbers)


def test_a_map_is_the_file_and_grows(tmp_path):
    path = tmp_path / "file"
    with fp.fopen(path, "w+") as stream:
        stream.write(b"abc")
        few = stream.fmap("8K")
        assert few.dtype == np.uint8 and len(few) == 8192 and bytes(few[:4]) == b"abc\0"
        few[0] = ord("A")
        assert stream.write(b"d") == 1 and few[3] == ord("d")
        stream.seek(0)
        assert stream.read(4) == b"Abcd"
        with pytest.raises(fp.errors.ArgumentError, match="of which 8192 are mapped; map more"):
            stream.seek(8193)
        many = stream.fmap(20_000)
        many[-1] = 7
    few[1] = ord("B")  # outlives the stream
    assert path.read_bytes() == b"ABcd" + bytes(20_000 - 5) + b"\7"
    with fp.fopen(path) as stream:
        assert len(stream.fmap(3)) == 3
        seen = stream.fmap()
        assert len(seen) == 20_000 and not seen.flags.writeable
    with fp.fopen(path, "a") as stream:
        assert bytes(stream.fmap()[:4]) == b"ABcd"
        with pytest.raises(fp.errors.ArgumentError, match="map more"):
            stream.write(b"x")


def test_a_file_that_is_cut_off_ends_there_and_its_map_is_zeros(text):
    path, data = text
    with fp.fopen(path) as stream:
        assert stream.read(1 << 20) == data[: 1 << 20]
        os.truncate(path, (1 << 20) + 600_000)
        assert stream.read() == data[1 << 20 :][:600_000]
        assert stream.read(1) == b""
        mapped = stream.fmap()
        assert len(mapped) == (1 << 20) + 600_000
        os.truncate(path, 5000)
        assert bytes(mapped[:5000]) == data[:5000] and not mapped[8192:].any()


def test_what_cannot_be_mapped_is_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    sender = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(b"through\na pipe"))
    sender.start()
    with fp.fopen(tmp_path / "pipe") as stream:
        assert list(stream) == [b"through\n", b"a pipe"]
    sender.join()
    with fp.fopen("/proc/self/status") as stream:
        assert stream.readline().startswith(b"Name:")
        assert b"VmRSS" in stream.read()
    with fp.fopen("/dev/zero") as stream:
        assert stream.read(5000) == bytes(5000)
    with fp.fopen("/dev/null", "w") as stream:
        assert stream.write(b"nothing") == 7


def test_a_terminal_is_read_by_lines():
    ours, theirs = os.openpty()
    os.write(ours, b"typed\n")
    with fp.fopen(theirs, "r") as stream:
        assert stream.readline() == b"typed\n" and stream.isatty()
    os.close(ours)


def test_a_full_disk_is_an_error_and_closes_the_file_all_the_same():
    stream = fp.fopen("/dev/full", "w")
    stream.write(b"some")
    with pytest.raises(OSError) as error:
        stream.close()
    assert error.value.errno == errno.ENOSPC and stream.closed


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a file system")
def test_a_small_file_system_is_full_at_fmap_and_at_write_and_keeps_what_fitted(tmp_path):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", tmp_path], check=True)
    try:
        with fp.fopen(tmp_path / "file", "w+") as stream:
            stream.write(b"kept")
            with pytest.raises(OSError) as error:
                stream.fmap("2M")
            assert error.value.errno == errno.ENOSPC
            assert os.path.getsize(tmp_path / "file") == 4
            with pytest.raises(OSError) as error:
                stream.write(bytes(2 << 20))
            assert error.value.errno == errno.ENOSPC
        kept = (tmp_path / "file").read_bytes()
        assert kept[:4] == b"kept" and set(kept[4:]) == {0} and len(kept) > 500_000
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)


def test_more_than_two_gib_are_read_and_mapped(tmp_path):
    path = tmp_path / "sparse"
    size = (5 << 30) + 9
    with open(path, "wb") as file:
        file.truncate(size)
        file.seek((4 << 30) - 3)
        file.write(b"across\n")
        file.seek(size - 4)
        file.write(b"end\n")
    with fp.fopen(path, "r+") as stream:
        assert stream.seek((4 << 30) - 3) == (4 << 30) - 3
        assert stream.readline() == b"across\n"
        assert stream.seek(-4, 2) == size - 4 and stream.read() == b"end\n"
        assert stream.fmap()[(4 << 30) - 3] == ord("a")
        assert stream.seek(5 << 30) and stream.write(b"w") == 1
    with open(path, "rb") as file:
        file.seek(5 << 30)
        assert file.read(2) == b"w\0"


def test_threads_take_each_byte_once(text):
    path, data = text
    taken = [[] for _ in range(4)]
    with fp.fopen(path) as stream:

        def take(mine):
            while got := stream.read(999):
                mine.append(got)

        threads = [threading.Thread(target=take, args=(mine,)) for mine in taken]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    blocks = sorted(block for mine in taken for block in mine)
    assert blocks == sorted(data[at : at + 999] for at in range(0, LARGE, 999))


def test_what_is_in_the_buffer_is_written_when_the_program_ends(tmp_path):
    program = "import sys, farpage as fp; s = fp.fopen(sys.argv[1], 'w'); s.write(b'last words')"
    subprocess.run([sys.executable, "-c", program, tmp_path / "file"], check=True)
    assert (tmp_path / "file").read_bytes() == b"last words"


def test_a_descriptor_is_taken_over_and_closed(tmp_path):
    (tmp_path / "file").write_bytes(b"0123456789")
    fd = os.open(tmp_path / "file", os.O_RDWR)
    os.lseek(fd, 4, os.SEEK_SET)
    with fp.fopen(fd, "r+") as stream:
        assert stream.fileno() == fd and stream.read(2) == b"45"
    with pytest.raises(OSError):
        os.fstat(fd)
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    with pytest.raises(fp.errors.ArgumentError, match="it was opened for less"):
        fp.fopen(fd, "r+")
    assert os.read(fd, 3) == b"012"  # is the caller's still
    os.close(fd)
    with pytest.raises(OSError) as error:
        fp.fopen(fd)
    assert error.value.errno == errno.EBADF


@pytest.mark.parametrize(
    "given, says",
    [
        (("x", "q"), "cannot open with mode 'q'; a mode is r, w or a"),
        (("x", 7), "mode cannot be 7; give text"),
        (("a\0b",), "a name has no NUL"),
        ((1.5,), "float is nothing that can be opened; give a path or a descriptor"),
        ((True,), "bool is nothing"),
    ],
)
def test_what_makes_no_sense_is_refused(given, says):
    with pytest.raises(fp.errors.ArgumentError, match=says):
        fp.fopen(*given)


def test_each_refusal_says_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError) as error:
        fp.fopen(tmp_path / "none")
    assert error.value.errno == errno.ENOENT and error.value.filename == str(tmp_path / "none")
    with pytest.raises(IsADirectoryError):
        fp.fopen(tmp_path)
    with fp.fopen(tmp_path / "new", "wx") as stream:
        with pytest.raises(io.UnsupportedOperation, match="without r or \\+; open it again"):
            stream.read()
        with pytest.raises(io.UnsupportedOperation, match="open it again"):
            list(stream)
        with pytest.raises(fp.errors.ArgumentError, match="whence cannot be 9"):
            stream.seek(0, 9)
        with pytest.raises(ValueError, match="negative"):
            stream.seek(-1)
    with pytest.raises(FileExistsError):
        fp.fopen(tmp_path / "new", "wx")
    with fp.fopen(tmp_path / "new") as stream:
        with pytest.raises(io.UnsupportedOperation, match="without w, a or \\+; open it again"):
            stream.write(b"x")
        with pytest.raises(io.UnsupportedOperation, match="without w, a"):
            stream.truncate(3)
        with pytest.raises(BufferError, match="for reading only"):
            stream.readinto(b"1234")
    with fp.fopen(tmp_path / "new", "w+") as stream:
        stream.write(bytes(10_000))
        assert len(stream.fmap()) == 10_000 and stream.truncate(100) == 100
        assert len(stream.fmap()) == 100
        with pytest.raises(TypeError, match="io.TextIOWrapper"):
            stream.write("text")
        with pytest.raises(BufferError, match="not in one piece"):
            stream.write(np.arange(9)[::2])
    assert os.path.getsize(tmp_path / "new") == 100 and "closed" in repr(stream)
    for use in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="open its path again"):
            use(stream)
    for use in (stream.read, stream.tell, lambda: stream.seek(0), stream.readable, stream.fileno):
        with pytest.raises(ValueError, match="is closed; open it again"):
            use()
    stream.close()


@pytest.mark.parametrize(
    "given",
    [
        np.arange(4, dtype=">i4"),
        np.arange(4) * 1j,
        np.arange(4, dtype=np.longdouble),
        np.array([(1, 2.5)], [("a", "u1"), ("b", "f8")]),
        np.arange(12.0).reshape(3, 4),
        np.array(["text"]),
        np.zeros(0),
        np.zeros((0, 3), np.uint8),
        (ctypes.c_int16 * 3)(1, 2, 3),
        array.array("d", [1.5]),
        memoryview(b"bytes"),
    ],
    ids=str,
)
def test_whatever_has_memory_is_written_and_read(tmp_path, given):
    plain, ours = tmp_path / "plain", tmp_path / "ours"
    with open(plain, "w+b") as file, fp.fopen(ours, "w+") as stream:
        wanted = file.write(given)
        assert stream.write(given) == wanted == memoryview(given).nbytes
    assert ours.read_bytes() == plain.read_bytes()
    if not memoryview(given).readonly:
        into = copy.deepcopy(given)
        bytes_of = (ctypes.c_ubyte * wanted).from_buffer(into) if wanted else b""
        if wanted:
            bytes_of[:] = bytes(wanted)
        with fp.fopen(ours) as stream:
            assert stream.readinto(into) == wanted
        assert bytes(bytes_of) == plain.read_bytes()
