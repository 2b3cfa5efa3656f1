"""Locked areas of arrays."""

import ctypes
import mmap
import os
import re
import subprocess
import sys

import numpy as np
import pytest

import farpage as fp
from harness import alone, until


def locked_kib():
    with open("/proc/self/status") as status:
        return int(re.search(r"VmLck:\s+(\d+)", status.read()).group(1))


def array(pages):
    """One that begins with a page."""
    memory = np.zeros((pages + 1) * 4096, "u1")
    skip = -memory.ctypes.data % 4096
    return memory[skip : skip + pages * 4096]


@pytest.mark.parametrize("pinned", [False, True])
def test_areas_nest_and_are_given_back_in_any_order(pinned):
    before, memory = locked_kib(), array(64)
    outer = fp.lock_area(memory, pinned=pinned)
    inner = fp.lock_area(memory[5 * 4096 + 1 : 7 * 4096], pinned=pinned)
    assert locked_kib() == before + 256 and outer.is_locked
    start, end = inner.range
    assert (start, end) == (memory.ctypes.data + 5 * 4096, memory.ctypes.data + 7 * 4096)
    outer.unlock()
    outer.unlock()
    assert locked_kib() == before + 8 and not outer.is_locked
    with inner:
        pass
    assert locked_kib() == before
    fp.lock_area(memory, pinned=pinned)  # let go of at once
    assert locked_kib() == before
    with pytest.raises(fp.errors.LockError, match="lock the area again"):
        _ = outer.range


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may read frames")
def test_pinned_frames_stay_when_a_forked_child_has_the_pages():
    memory = array(32)
    with fp.lock_area(memory, pinned=True) as locked:
        frames = locked.frames()
        assert len(frames) == 32 and all(frames)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
        memory[:] = 1
        os.close(writer)
        os.waitpid(child, 0)
        os.close(reader)
        assert locked.frames() == frames
        assert sum(count for _, count in locked.blocks()) == 32
        assert locked.blocks(1) == [(frame, 1) for frame in frames]


@pytest.mark.parametrize("pinned", [False, True])
def test_a_lock_tells_when_its_memory_is_not_what_was_locked(pinned):
    shared = mmap.mmap(-1, 16 * 4096)
    memory = np.frombuffer(shared, "u1")
    with fp.lock_area(memory, pinned=pinned) as locked:
        if pinned and os.geteuid() != 0:
            with pytest.raises(fp.errors.Denied, match="CAP_SYS_ADMIN"):
                locked.check()
        else:
            locked.check()
        shared.madvise(24, 4 * 4096, 4096)  # MADV_DONTNEED_LOCKED
        with pytest.raises(fp.errors.Stale, match=f"at {memory.ctypes.data + 4 * 4096:#x} is not"):
            locked.check()
    with pytest.raises(fp.errors.LockError, match="lock the area again"):
        locked.check()
    with fp.lock_area(memory) as locked:
        locked.check()


def test_arrays_of_farpage_stay_in_memory(tmp_path):
    np.arange(4 << 20, dtype="i8").tofile(tmp_path / "numbers")
    numbers = fp.open(tmp_path / "numbers", dtype="i8", ram="16M")
    with fp.lock_area(numbers[: 1 << 17]):
        assert numbers.sum() == sum(range(4 << 20))
        reads = numbers.object.stats()["reads"]
        assert numbers[: 1 << 17].sum() == sum(range(1 << 17))
        assert numbers.object.stats()["reads"] == reads


def test_what_cannot_be_locked_is_refused():
    with pytest.raises(fp.errors.ArgumentError, match="not in one piece"):
        fp.lock_area(np.zeros((100, 100))[:, ::2])
    with pytest.raises(fp.errors.ArgumentError, match="give a byte at least"):
        fp.lock_area(np.zeros(0))
    with pytest.raises(fp.errors.ArgumentError, match="int has no memory that can be locked"):
        fp.lock_area(7)
    closed = mmap.mmap(-1, 4096)
    closed.close()
    with pytest.raises(fp.errors.ArgumentError, match="mmap has no memory that can be locked"):
        fp.lock_area(closed)
    with pytest.raises(fp.errors.ArgumentError, match="pinned cannot be 'no'"):
        fp.lock_area(np.zeros(9), pinned="no")
    with fp.lock_area(np.zeros(9)) as locked:
        for wrong in (0, -1):
            with pytest.raises(fp.errors.ArgumentError, match="give 1 or more"):
                locked.blocks(wrong)


def test_what_was_given_back_can_be_resized_and_is_of_no_more_use():
    memory = bytearray(10_000)
    with fp.lock_area(memory) as locked:
        with pytest.raises(BufferError):
            memory.append(1)
    memory.append(1)
    with pytest.raises(fp.errors.LockError, match="lock the area again"):
        with locked:
            pass


def test_arrays_of_any_type_and_shape_are_locked():
    with fp.lock_area((ctypes.c_double * 9)()) as locked:
        assert locked.range[1] > locked.range[0]
    values = [np.array(1.0), np.zeros(3, "M8[s]"), np.zeros((30, 40), order="F"), np.zeros(3, "U5")]
    for value in values:
        with fp.lock_area(value) as locked:
            start, end = locked.range
            assert start <= value.ctypes.data and value.ctypes.data + value.nbytes <= end


def test_a_child_of_fork_is_told_that_it_has_nothing_locked():
    memory = array(4)
    with fp.lock_area(memory) as locked:
        child = os.fork()
        if child == 0:
            try:
                locked.check()
            except fp.errors.LockError as why:
                os._exit(locked.is_locked or "this lock is the parent's" not in str(why))
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0 and locked.is_locked


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give up a privilege of its own")
def test_the_limit_is_told():
    program = "import numpy as np, farpage as fp; fp.lock_area(np.zeros(1 << 20), pinned=True)"
    bare = ["setpriv", "--bounding-set", "-ipc_lock", "prlimit", "--memlock=1048576"]
    said = ""

    def nobody_has_locked_any():
        nonlocal said
        done = subprocess.run([*bare, sys.executable, "-c", program], capture_output=True, text=True)
        said = done.stderr
        assert "KernelError: cannot lock 819" in said, said
        return "is 1024 KiB, of which 0 are in use; raise it by 'ulimit -l'" in said

    # Linux counts all that a user has locked, and that of programs that have just ended.
    with alone("locked-memory"):
        until(nobody_has_locked_any, lambda: said)
