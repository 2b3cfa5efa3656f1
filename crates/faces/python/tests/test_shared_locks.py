"""Shared memory that processes lock through the host kernel."""

import multiprocessing.shared_memory
import os
import re
import signal
import subprocess
import sys

import pytest
from harness import until

import farpage as fp

MIB = 1 << 20


def kib(host, line):
    with open(f"/proc/{host.pid}/status") as status:
        return int(re.search(rf"{line}:\s+(\d+)", status.read()).group(1))


@pytest.fixture
def shm():
    memory = multiprocessing.shared_memory.SharedMemory(create=True, size=MIB)
    yield memory
    memory.close()
    memory.unlink()


def test_eight_processes_share_one_lock_until_the_last_is_killed(host, shm):
    lock = fp.lock_shared(shm, (0, MIB // 2), pinned=True)
    lock.lend("ring")
    program = "import farpage as fp; lock = fp.borrow_lock('ring'); print(lock.range, flush=True); input()"
    run = [sys.executable, "-c", program]
    others = [
        subprocess.Popen(run, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(7)
    ]
    for other in others:
        assert other.stdout.readline() == "(0, 524288)\n"
    assert kib(host, "VmPin") == 512
    said = subprocess.run([os.environ["FARPAGE_COMMAND"], "locks"], capture_output=True, text=True)
    users = next(line for line in said.stdout.splitlines() if line.startswith("ring"))
    assert all(str(other.pid) in users.split() for other in others), said.stdout
    lock.unlock()
    assert not lock.is_locked and repr(lock) == "<farpage.SharedLock, given back>"
    for other in others:
        assert kib(host, "VmPin") == 512
        other.send_signal(signal.SIGKILL)
        other.communicate()
    until(lambda: kib(host, "VmPin") == 0, "nothing is pinned any more")
    with pytest.raises(fp.errors.NotFound, match="no lock of this user's is lent as 'ring'"):
        fp.borrow_lock("ring")


def test_memory_is_given_by_object_name_and_descriptor(host, shm):
    file = os.memfd_create("grid")
    os.ftruncate(file, 8192)
    with fp.lock_shared(shm) as one, fp.lock_shared(shm.name, (0, 4096)), fp.lock_shared(file) as other:
        assert one.range == (0, MIB) and other.range == (0, 8192)
        assert kib(host, "VmLck") == 1024 + 8
        one.check()
    until(lambda: kib(host, "VmLck") == 0, "nothing is locked any more")
    # Nobody else has the file open.
    with fp.lock_shared(open(f"/dev/shm/{shm.name}", "r+b"), pinned=True) as lock:
        assert lock.range == (0, MIB)
        child = os.fork()
        if child == 0:
            try:
                lock.check()
            except fp.errors.LockError as why:
                os._exit("this lock is the parent's" not in str(why))
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        lock.lend("one")
        with pytest.raises(fp.errors.Exists, match="lent as 'one' already"):
            lock.lend("another")
    with fp.lock_shared(file, pinned=True) as lock:
        os.ftruncate(file, 4096)
        with pytest.raises(fp.errors.Stale, match="discarded or cut off"):
            lock.check()
    os.close(file)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may read frames")
def test_frames_are_told_to_who_may_read_them(host, shm):
    with fp.lock_shared(shm, pinned=True) as lock:
        frames = lock.frames()
        assert len(frames) == 256 and all(frames)
        assert sum(count for _, count in lock.blocks()) == 256
        assert all(count == 1 for _, count in lock.blocks(1))


def test_what_cannot_be_locked_is_refused(host, shm):
    for wrong, said in [
        (lambda: fp.lock_shared(), "give either memory, or sysv"),
        (lambda: fp.lock_shared(sysv=1), "where: a System V segment needs it"),
        (lambda: fp.lock_shared(shm, (0, 2 * MIB)), "it has 1048576 bytes"),
        (lambda: fp.lock_shared(shm, (5, 5)), "no part of memory"),
        (lambda: fp.lock_shared(b"x"), "bytes is no shared memory"),
        (lambda: fp.lock_shared(999), "999 is no open descriptor"),
        (lambda: fp.lock_shared("a/b"), "no name of shared memory"),
        (lambda: fp.lock_shared(shm, pinned=2), "give True or False"),
        (lambda: fp.lock_shared(sysv=1 << 30, where=(0, 1)), "no System V segment"),
    ]:
        with pytest.raises(fp.errors.ArgumentError, match=said):
            wrong()
    own = fp.SharedMemory(create=True, size=MIB)
    with pytest.raises(fp.errors.ArgumentError, match="call pin"):
        fp.lock_shared(own)
    own.close()
    with pytest.raises(fp.errors.NotFound, match="no shared memory 'none such'"):
        fp.lock_shared("none such")
