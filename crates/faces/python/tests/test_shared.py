"""Shared memory of the host kernel, `farpage up`."""

import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys

import numpy as np
import pytest
import workers
from harness import until

import farpage as fp

MIB = 1 << 20


def listed():
    run = [os.environ["FARPAGE_COMMAND"], "ls", "--json"]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    return {one["name"]: one for one in json.loads(done.stdout)}


def test_a_block_larger_than_its_memory_is_shared(host, script):
    shm = fp.SharedMemory("numbers", create=True, size=64 * MIB)
    numbers = np.ndarray(8 * MIB, "f8", buffer=shm.buf)
    numbers[:] = np.arange(8.0 * MIB)
    done = script(
        """
        import farpage as fp, numpy as np
        shm = fp.SharedMemory("numbers")
        numbers = np.ndarray(shm.size // 8, "f8", buffer=shm.buf)
        print(bool((numbers == np.arange(len(numbers))).all()))
        numbers *= 2
        """
    )
    assert done.stdout == "True\n", done.stderr
    np.testing.assert_array_equal(numbers, 2 * np.arange(8.0 * MIB))
    there = listed()["numbers"]
    assert there["bytes"] == 64 * MIB and there["resident_bytes"] < 20 * MIB
    assert there["mapped_by"] == [os.getpid()]
    del numbers
    shm.close()
    shm.unlink()
    until(lambda: not listed(), "nothing is shared any more")


def test_it_is_a_drop_in(host):
    shm = fp.SharedMemory(create=True, size=10)
    assert shm.name.startswith("psm_") and shm.size == 10 and len(shm.buf) == 10
    shm.buf[:4] = b"head"
    other = fp.SharedMemory(name=shm.name)
    assert bytes(other.buf[:5]) == b"head\0"
    assert repr(shm) == f"SharedMemory('{shm.name}', size=10)"
    view = np.frombuffer(other.buf, "u1")
    with pytest.raises(BufferError):
        other.close()
    del view
    other.close()
    assert other.buf is None
    # It lives as long as its maker has not taken its name away.
    shm.close()
    again = fp.SharedMemory(shm.name)
    assert bytes(again.buf[:4]) == b"head"
    back = pickle.loads(pickle.dumps(again))
    back.buf[0] = 0
    assert again.buf[0] == 0
    shm.unlink()
    with pytest.raises(FileNotFoundError):
        fp.SharedMemory(shm.name)


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_workers_write_into_it(host, method):
    shm = fp.SharedMemory(create=True, size=32 * MIB)
    rows = np.ndarray((32, MIB // 8), "f8", buffer=shm.buf)
    rows[:] = 1
    with multiprocessing.get_context(method).Pool(2) as pool:
        # A fork server started before the host kernel was.
        socket = os.environ["FARPAGE_HOST"]
        pool.map(workers.fill_row, [(socket, shm.name, row) for row in range(32)])
    assert (rows == np.arange(32.0)[:, None]).all()
    del rows
    shm.unlink()


def test_a_block_keeps_within_what_it_may_take(host):
    shm = fp.SharedMemory(create=True, size="12M", ram="2M")
    numbers = np.frombuffer(shm.buf, "u8")
    numbers[:] = np.arange(len(numbers))
    assert (numbers == np.arange(len(numbers))).all()

    def resident():
        return listed()[shm.name]["resident_bytes"]

    until(lambda: resident() <= 2 * MIB, "it keeps to its limit")
    with pytest.raises(fp.ArgumentError, match="give at least 1 MiB"):
        fp.SharedMemory(shm.name, ram=4096)
    del numbers
    shm.close()


def test_pinned_bytes_stay_until_they_are_unpinned_or_it_is_closed(host):
    def wired():
        run = [os.environ["FARPAGE_COMMAND"], "stats", "--json"]
        done = subprocess.run(run, capture_output=True, text=True, check=True)
        return sum(one["wired_bytes"] for one in json.loads(done.stdout)["objects"])

    shm = fp.SharedMemory(create=True, size="4M")
    shm.pin((0, MIB))
    shm.pin((0, MIB))
    assert wired() == MIB
    shm.unpin((0, MIB))
    assert wired() == MIB
    shm.unpin((0, MIB))
    until(lambda: wired() == 0, "nothing is wired any more")
    for wrong in ((0, 5 * MIB), (5, 5), (-1, 4)):
        with pytest.raises(fp.ArgumentError, match="give \\(start, stop\\)"):
            shm.pin(wrong)
    with pytest.raises(fp.ArgumentError, match="is not pinned"):
        shm.unpin((0, 7))
    shm.pin()
    shm.close()
    until(lambda: wired() == 0, "nothing is wired any more")


def test_a_child_of_fork_uses_what_it_finds(host):
    others = [fp.SharedMemory(create=True, size=n * MIB) for n in (1, 3, 60, 2)]
    shm = fp.SharedMemory(create=True, size=32 * MIB)
    for other in others:
        other.buf[-1] = 7
    numbers = np.ndarray(4 * MIB, "f8", buffer=shm.buf)
    numbers[:] = np.arange(4.0 * MIB)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            if (numbers == np.arange(4.0 * MIB)).all():
                numbers[::1000] = -1
                status = 0 if all(other.buf[-1] == 7 for other in others) else 3
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (numbers[::1000] == -1).all() and numbers[1] == 1


def test_a_child_outlives_its_parent_which_made_it(host, script):
    program = """
        import farpage as fp, os
        shm = fp.SharedMemory(create=True, size=32 << 20)
        shm.buf[5_000_000] = 7
        if unlinked:
            shm.unlink()
        out, into = os.pipe()
        if os.fork() > 0:
            os._exit(0)
        os.close(out)
        ok = shm.buf[5_000_000] == 7 and shm.buf[31 << 20] == 0
        print("right" if ok else "wrong", flush=True)
        os._exit(0)
    """
    for unlinked in (False, True):
        assert script(program.replace("unlinked", str(unlinked))).stdout == "right\n"
    until(lambda: not listed(), "nothing is shared any more")


def test_a_new_host_kernel_is_found(tmp_path, monkeypatch):
    socket = str(tmp_path / "host")
    monkeypatch.setenv("FARPAGE_HOST", socket)
    fp._farpage.shared_forget_host()
    run = [os.environ["FARPAGE_COMMAND"], "up", "--ram", "16M", "--spill", str(tmp_path)]
    for end in (signal.SIGKILL, signal.SIGTERM):
        up = subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        up.stdout.readline()
        assert os.stat(socket).st_mode & 0o777 == 0o600
        shm = fp.SharedMemory("one", create=True, size=100)
        up.send_signal(end)
        _, err = up.communicate()
        assert err == ("" if end == signal.SIGKILL else "farpage: lost, for still in use: "
                       "1 block of shared memory\n")
        del shm
    (tmp_path / "file").write_text("kept")
    done = subprocess.run([*run, "--socket", tmp_path / "file"], capture_output=True, text=True)
    assert done.returncode == 1 and "is there, and is no socket" in done.stderr
    assert (tmp_path / "file").read_text() == "kept"


def test_a_killed_process_leaves_nothing(host):
    maker = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import farpage as fp, signal\n"
            "shm = fp.SharedMemory('left', create=True, size='32M')\n"
            "shm.buf[:] = bytes(len(shm.buf))\n"
            "print(shm.name, flush=True)\n"
            "signal.pause()",
        ],
        stdout=subprocess.PIPE,
    )
    assert maker.stdout.readline() == b"left\n"
    assert listed()["left"]["pid"] == maker.pid
    maker.kill()
    maker.wait()
    until(lambda: not listed(), "nothing is shared any more")


def test_what_cannot_be_is_refused(host):
    shm = fp.SharedMemory("one", create=True, size=1)
    for arguments, error, words in [
        ({"name": "one", "create": True, "size": 5}, fp.Exists, "there is a shared memory object"),
        ({"name": "none"}, fp.NotFound, "no shared memory object 'none'"),
        ({"name": "a/b"}, fp.ArgumentError, "is no name"),
        ({"create": True}, fp.ArgumentError, "size: a new block needs one"),
        ({"create": True, "size": -1}, fp.ArgumentError, "is no number of bytes"),
        ({}, fp.ArgumentError, "name: give that of a block"),
        ({"name": "", "create": True, "size": 5}, fp.ArgumentError, "it is empty"),
        ({"name": 5}, fp.ArgumentError, "is no text"),
    ]:
        with pytest.raises(error, match=words):
            fp.SharedMemory(**arguments)
    shm.unlink()


def test_without_a_host_kernel_it_says_how_to_start_one(tmp_path, monkeypatch):
    monkeypatch.setenv("FARPAGE_HOST", str(tmp_path / "none"))
    fp._farpage.shared_forget_host()
    with pytest.raises(fp.Unreachable, match="start one: farpage up"):
        fp.SharedMemory(create=True, size=1)


def test_a_host_kernel_that_dies_ends_who_needs_it(tmp_path):
    environment = dict(os.environ, FARPAGE_HOST=str(tmp_path / "host"))
    run = [os.environ["FARPAGE_COMMAND"], "up", "--ram", "16M", "--spill", str(tmp_path)]
    up = subprocess.Popen(run, stdout=subprocess.PIPE, text=True, env=environment)
    up.stdout.readline()
    program = (
        "import farpage as fp, os, signal, sys\n"
        "shm = fp.SharedMemory('big', create=True, size='64M')\n"
        "for page in range(0, len(shm.buf), 4096): shm.buf[page] = 1\n"
        "os.kill(int(sys.argv[1]), signal.SIGKILL)\n"
        "print(sum(shm.buf[page] for page in range(0, len(shm.buf), 4096)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(up.pid)],
        capture_output=True,
        text=True,
        env=environment,
    )
    up.wait()
    assert done.returncode == -signal.SIGBUS, done
    assert "the host kernel has gone: pages of 'big'" in done.stderr
