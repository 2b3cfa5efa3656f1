"""Arrays that all hosts of a cluster have in common: two host kernels and a real etcd."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from harness import free_port, own_address, until, waits, waits_for_page

import farpage as fp

COMMAND = os.environ.get("FARPAGE_COMMAND", "farpage")


@pytest.fixture
def sockets(tmp_path, monkeypatch):
    """The sockets of two hosts of a cluster; this process is a program of the first."""
    running = []
    try:
        yield from started(tmp_path, monkeypatch, running)
    finally:
        for process in reversed(running):
            process.send_signal(signal.SIGTERM)
            process.wait()


def started(tmp_path, monkeypatch, running):
    store = own_address()
    port = free_port(store)
    url = f"http://{store}:{port}"
    etcd = ["etcd", "--data-dir", str(tmp_path / "etcd"), "--log-level", "error"]
    etcd += ["--listen-client-urls", url, "--advertise-client-urls", url]
    etcd += ["--listen-peer-urls", f"http://{store}:{free_port(store)}", "--unsafe-no-fsync"]
    running.append(subprocess.Popen(etcd))
    asks = ["etcdctl", "--endpoints", url, "get", "a key"]
    asked = {"env": {**os.environ, "ETCDCTL_API": "3"}, "capture_output": True}
    until(lambda: subprocess.run(asks, **asked).returncode == 0, "etcd serves")
    key = str(tmp_path / "key")
    subprocess.run([COMMAND, "cluster", "init", key], check=True, stdout=subprocess.DEVNULL)
    paths = []
    for number in (2, 3):
        path = str(tmp_path / f"host{number}")
        address = own_address(number)
        run = [COMMAND, "up", "--ram", "16M", "--spill", str(tmp_path), "--socket", path]
        run += ["--cluster", f"etcd://{store}:{port}/test", "--cluster-key", key]
        run += ["--address", f"{address}:{free_port(address)}", "--lease", "60"]
        up = subprocess.Popen(run, stdout=subprocess.PIPE, text=True)
        running.append(up)
        assert "answers at" in up.stdout.readline()
        paths.append(path)
    monkeypatch.setenv("FARPAGE_HOST", paths[0])
    fp._farpage.shared_forget_host()
    yield paths


def elsewhere(script, path, code):
    """What a program of the host of `path` says."""
    done = script(f"import os; os.environ['FARPAGE_HOST'] = {path!r}\n" + code)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def begun_elsewhere(path, code):
    """A program of the host of `path`, which runs."""
    code = f"import os; os.environ['FARPAGE_HOST'] = {path!r}\n" + code
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True)


def test_hosts_have_one_array(sockets, script):
    a = fp.shared("grid", shape=(512, 512), dtype="f8")
    assert isinstance(a, np.ndarray) and a.shape == (512, 512) and not a.any()
    a[:] = np.arange(512 * 512.0).reshape(512, 512)
    code = """
import farpage as fp, numpy as np
b = fp.shared("grid")
print(b.shape, b.dtype, float(b.sum()))
b[3] = -1
print(type(b + 1).__name__, b[2:4].name)
"""
    said = elsewhere(script, sockets[1], code).splitlines()
    assert said[0] == f"(512, 512) float64 {np.arange(512 * 512.0).sum()}"
    assert said[1] == "ndarray grid"
    assert (a[3] == -1).all() and a[4, 0] == 4 * 512


def test_more_than_the_memory_of_a_host_is_shared(sockets, script):
    a = fp.shared("large", shape=(6 << 20,), dtype="f8", page_size="64K")
    a[:] = np.arange(len(a))
    code = """
import farpage as fp, numpy as np
b = fp.shared("large", shape=(6 << 20,), dtype="f8", page_size="64K")
print(bool((b == np.arange(len(b))).all()))
b[::1000] = 7
"""
    assert elsewhere(script, sockets[1], code) == "True"
    assert (a[::1000] == 7).all() and a[1] == 1


def test_what_is_pinned_stays_at_its_host(sockets, script):
    a = fp.shared("grid", shape=(64, 512), dtype="f8")
    a[:] = 1
    code = """
import farpage as fp, numpy as np
b = fp.shared("grid")
print("reads", flush=True)
print(float(b[::7].sum()), float(b[40:].sum()))
with b[20:30, ::-1].pin():
    print(float(b[20:30].sum()), flush=True)
b[25] = 3
"""
    with a[:8].pin(write=True) as pinned, a[10:].pin():
        # It has read what is pinned to read, and waits for the rest.
        program = begun_elsewhere(sockets[1], code)
        assert program.stdout.readline() == "reads\n"
        until(lambda: waits_for_page(program.pid), "it waits to read")
        a[0] = 2
        assert program.poll() is None and (a[25] == 1).all()
        with pytest.raises(fp.errors.ArgumentError, match="locked to read, which is not exchanged"):
            a[10:12].pin(write=True)
        pinned.check()
        pinned.unpin()
        with pytest.raises(fp.errors.LockError, match="cannot check what was given back"):
            pinned.check()
        said = [program.stdout.readline(), program.stdout.readline()]
        until(lambda: waits_for_page(program.pid), "it waits to write")
        assert program.poll() is None and (a[25] == 1).all()
    _, why = program.communicate()
    assert program.returncode == 0, why
    sums = [10 * 512.0 + 512, 24 * 512.0, 10 * 512.0]
    assert "".join(said).split() == [str(one) for one in sums] and (a[25] == 3).all()
    assert repr(pinned) == "<farpage.Pinned, given back>"
    with pytest.raises(fp.errors.LockError, match="pin it again"), pinned:
        pass
    # A program that is killed has pinned nothing any more.
    killed = f"import os, signal; os.environ['FARPAGE_HOST'] = {sockets[1]!r}\n"
    killed += "import farpage as fp; p = fp.shared('grid').pin(write=True); os.kill(os.getpid(), signal.SIGKILL)"
    assert script(killed).returncode == -signal.SIGKILL
    assert (a[25] == 3).all()
    # What a device is told of stays where it is.
    with a[:8].pin(write=True), fp.lock_area(a[:8], pinned=True) as locked:
        if os.geteuid() == 0:  # others may not read frames
            locked.check()


def test_who_waits_to_pin_gives_up(sockets, script):
    a = fp.shared("grid", shape=(64, 512), dtype="f8")
    a[:] = 1
    late = """
import farpage as fp
b = fp.shared("grid")
with b[40:].pin(write=True), b[50:].pin(write=True, timeout=0):
    pass
for seconds in 0, 0.4:
    try:
        b[:20].pin(write=True, timeout=seconds)
    except TimeoutError as error:
        print(type(error).__name__, error)
"""
    late_writer = """
import farpage as fp
b = fp.shared("grid")
print("waits", flush=True)
b[:20].pin(write=True)
"""
    # Through the host kernel that has pinned a part.
    writes = "import farpage as fp; fp.shared('grid')[3] += 1"
    with a[8:9].pin(write=True):
        said = elsewhere(script, sockets[1], late).splitlines()
        assert len(said) == 2 and all(line.startswith("TimedOut pages of 'grid' have not come") for line in said)
        elsewhere(script, sockets[0], writes)
        for how in signal.SIGINT, signal.SIGKILL:
            program = begun_elsewhere(sockets[1], late_writer)
            assert program.stdout.readline() == "waits\n"
            until(lambda: waits(program.pid), "it waits to pin")
            assert program.poll() is None
            program.send_signal(how)
            _, raised = program.communicate()
            assert program.returncode == -how, raised
            assert ("KeyboardInterrupt" in raised) == (how == signal.SIGINT)
            elsewhere(script, sockets[0], writes)
    assert (a[3] == 4).all()
    for wrong in -3, float("nan"), "5", [1], 10**400:
        with pytest.raises(fp.errors.ArgumentError, match="give seconds"):
            a.pin(timeout=wrong)
    assert elsewhere(script, sockets[1], "import farpage as fp; p = fp.shared('grid').pin(write=True); print(1)") == "1"


def test_what_cannot_be_pinned_is_refused(sockets):
    simple = fp.shared("own", shape=8, scheduler="simple")
    released = fp.shared("released", shape=8, consistency="release")
    for array in (simple, released):
        with pytest.raises(fp.errors.ArgumentError, match="simple scheduler, or release consistency"):
            array.pin()
    a = fp.shared("grid", shape=(8, 512), dtype="f8")
    for wrong, said in ((a + 1).view(fp.SharedArray), "no array of shared"), (a[:0], "has no pages"):
        with pytest.raises(fp.errors.ArgumentError, match=said):
            wrong.pin()
    with pytest.raises(fp.errors.ArgumentError, match="give True or False"):
        a.pin(write="no")
    large = fp.shared("large", shape=2 << 20, dtype="f8", page_size="64K")
    with pytest.raises(fp.errors.KernelError, match="cannot be wired"):
        large.pin()
    a.seal()
    with pytest.raises(fp.errors.ArgumentError, match="it is sealed"):
        a.pin(write=True)
    with a.pin():
        assert (a == 0).all()


def test_its_home_decides_with_the_simple_scheduler(sockets, script):
    a = fp.shared("grid", shape=(64, 512), scheduler="simple")
    a[:] = np.arange(64 * 512.0).reshape(64, 512)
    code = """
import farpage as fp, numpy as np
b = fp.shared("grid", shape=(64, 512), scheduler="simple")
print(bool((b == np.arange(64 * 512.0).reshape(64, 512)).all()))
b[::2] = 7
"""
    assert elsewhere(script, sockets[1], code) == "True"
    assert (a[::2] == 7).all() and a[1, 0] == 512
    with pytest.raises(fp.ArgumentError, match="give 1 replica"):
        fp.shared("two", shape=8, scheduler="simple", replicas=2)


def test_what_is_sealed_is_read_everywhere_and_written_nowhere(sockets, script):
    a = fp.shared("weights", shape=(1 << 16,), hold=20e-6)
    a[:] = np.arange(1 << 16)
    a.seal()
    with pytest.raises(ValueError, match="read-only"):
        a[0] = 1
    code = """
import farpage as fp, numpy as np
b = fp.shared("weights")
print(bool((b == np.arange(1 << 16)).all()))
try:
    b[0] = 1
except ValueError as error:
    print(error)
"""
    said = elsewhere(script, sockets[1], code).splitlines()
    assert said[0] == "True" and "read-only" in said[1]
    simple = fp.shared("own", shape=8, scheduler="simple")
    with pytest.raises(fp.ArgumentError, match="cannot be sealed"):
        simple.seal()
    simple[0] = 1


def test_what_is_flushed_is_in_the_file_and_comes_again(sockets, script, tmp_path):
    path = tmp_path / "grid.raw"
    a = fp.shared("kept", shape=(64, 512), file=path)
    a[:] = np.arange(64 * 512.0).reshape(64, 512)
    code = """
import farpage as fp
b = fp.shared("kept")
b[::2] = 7
print(b.flush())
b[1] = 9
"""
    assert elsewhere(script, sockets[1], code) == str(64 * 4096)
    flushed = np.fromfile(path).reshape(64, 512)
    assert (flushed[::2] == 7).all() and flushed[1, 0] == 512
    a.flush()
    a.unlink()
    del a

    def opened():
        try:
            return [fp.shared("kept", shape=(64, 512), file=path)]
        except fp.ArgumentError as error:
            assert "give each a file of its own" in str(error)
        return []

    (again,) = until(opened, "its last user has gone")
    assert (again[::2] == 7).all() and (again[1] == 9).all() and again[3, 0] == 1536
    plain = fp.shared("plain", shape=8)
    with pytest.raises(fp.KernelError, match="it has no file"):
        plain.flush()
    with pytest.raises(fp.ArgumentError, match="is there already, and has no file"):
        fp.shared("plain", shape=8, file=tmp_path / "other")
    with pytest.raises(fp.ArgumentError, match="cannot open"):
        fp.shared("none", shape=8, file=tmp_path / "no" / "file")


def test_memory_of_the_command_takes_the_shape_that_is_given(sockets, script):
    create = [COMMAND, "create", "--page-size", "64K", "--socket", sockets[0], "made", "1M"]
    subprocess.run(create, check=True)
    with pytest.raises(fp.ArgumentError, match="1048576 bytes and no shape; give shape="):
        fp.shared("made")
    a = fp.shared("made", shape=(100, 512), dtype="i4")
    a[:] = np.arange(100 * 512).reshape(100, 512)
    code = """
import farpage as fp, numpy as np, pickle
b = fp.shared("made", shape=(100, 512), dtype="i4")
print(bool((b == np.arange(100 * 512).reshape(100, 512)).all()))
again = pickle.loads(pickle.dumps(b[1:3, ::2]))
b[1, 2] = 7
print(again[0, 1])
"""
    assert elsewhere(script, sockets[1], code) == "True\n7"
    with pytest.raises(fp.Exists, match="with 1048576 bytes and no locks"):
        fp.shared("made", shape=1 << 20)
    with pytest.raises(fp.Exists, match="no locks in it"):
        fp.shared("made", shape=8, locks=1)
    with pytest.raises(fp.Exists, match="consistency"):
        fp.shared("made", shape=8, consistency="release")
    fp.unshare("made")


def test_another_shape_is_refused_and_said(sockets):
    a = fp.shared("grid", shape=16, dtype="i4")
    for shape, dtype in (((32,), "i4"), ((16,), "f4")):
        with pytest.raises(fp.Exists, match="grid"):
            fp.shared("grid", shape=shape, dtype=dtype)
    assert fp.shared("grid", shape=16, dtype="i4").shape == a.shape
    with pytest.raises(fp.NotFound, match="nothing"):
        fp.shared("nothing")


def test_hosts_write_to_the_same_pages_and_see_it_after_locks(sockets, script):
    a = fp.shared("both", shape=1024, dtype="i8", consistency="release", locks=1)
    code = """
import farpage as fp
a = fp.shared("both")
meet = fp.Barrier("both", 2)
for step in range(20):
    a[1::2] += 1
    meet.wait()
    assert (a == step + 1).all(), (step, a)
    meet.wait()
for _ in range(50):
    with a.locks[0]:
        a[0] += 1
print("exact")
"""
    said = []
    other = threading.Thread(target=lambda: said.append(elsewhere(script, sockets[1], code)))
    other.start()
    meet = fp.Barrier("both", 2)
    for step in range(20):
        a[::2] += 1
        meet.wait()
        assert (a == step + 1).all(), (step, a)
        meet.wait()
    for _ in range(50):
        with a.locks[0]:
            a[0] += 1
    other.join()
    assert said[0] == "exact"
    a.acquire()
    assert a[0] == 20 + 2 * 50
    a.release()
    with pytest.raises(fp.ArgumentError, match="no array of shared"):
        a.copy().release()
    with pytest.raises(fp.ArgumentError, match="cannot be sealed"):
        a.seal()
    with pytest.raises(fp.Exists, match="consistency release"):
        fp.shared("both", shape=1024, dtype="i8")
    a.unlink()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"shape": (0,)}, "no bytes"),
        ({"shape": (-1, 3)}, "no bytes"),
        ({"shape": 4, "dtype": object}, "Python objects"),
        ({"shape": 4, "page_size": 5000}, "power of two"),
        ({"shape": 4, "page_size": "4M"}, "power of two"),
        ({"shape": 4, "scheduler": "best"}, "distributed"),
        ({"shape": 4, "replicas": 9}, "1 or 2"),
        ({"shape": 4, "hold": 1}, "0 to 0.1"),
        ({"shape": 4, "hold": -1e-6}, "0 to 0.1"),
        ({"shape": 4, "stale": 1e-6}, "from 0.001"),
        ({"shape": 4, "consistency": "none"}, "strict"),
        ({"shape": 4, "consistency": "release", "replicas": 2}, "replicas=1"),
        ({"shape": 4, "consistency": "release", "scheduler": "simple"}, "distributed"),
        ({"shape": 4, "consistency": "release", "stale": 0.01}, "stale"),
        ({"shape": 4, "consistency": "release", "locks": "rows"}, "memory of their own"),
        ({"shape": 4, "locks": -1}, "how many"),
        ({"shape": (), "locks": "rows"}, "no rows"),
        ({"shape": 4, "locks": 1, "file": "f"}, "locks of their own"),
        ({"file": "f"}, "give its shape"),
    ],
)
def test_what_cannot_be_is_refused(options, what):
    with pytest.raises(fp.ArgumentError, match=what):
        fp.shared("x", **options)


def test_a_host_kernel_in_no_cluster_says_so(host):
    with pytest.raises(fp.KernelError, match="belongs to no cluster"):
        fp.shared("x", shape=4)


def test_it_is_gone_with_its_last_user_unless_it_stays(sockets):
    a = fp.shared("passing", shape=4)
    b = fp.shared("staying", shape=4, stays=True)
    a[:] = b[:] = 1
    del a, b

    def is_gone():
        try:
            fp.shared("passing")
        except fp.NotFound:
            return True
        return False

    until(is_gone, "it is gone")
    b = fp.shared("staying")
    b.unlink()
    del b


def test_it_is_pickled_by_its_name(sockets):
    a = fp.shared("grid", shape=(8, 8), dtype="f8")
    part = pickle.loads(pickle.dumps(a[2:4, ::2]))
    part[:] = 5
    assert (a[2:4, ::2] == 5).all() and a.sum() == 8 * 5
    copy = pickle.loads(pickle.dumps(a + 1))
    copy[:] = 0
    assert a.sum() == 8 * 5


def test_children_of_fork_have_it(sockets):
    a = fp.shared("grid", shape=8, dtype="i8")
    a[0] = 1

    def child():
        a[1] = a[0] + 1

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == 0 and list(a[:2]) == [1, 2]


def test_an_array_brings_its_locks(sockets, script):
    a = fp.shared("grid", shape=(8, 8), dtype="i8", locks=4)
    rows = fp.shared("rows", shape=(4, 1000), dtype="f8", locks="rows")
    assert len(a.locks) == 4 and len(rows.locks) == 4 and rows.strides == (8192, 8)
    code = """
import farpage as fp
a, rows = fp.shared("grid"), fp.shared("rows", shape=(4, 1000), locks="rows")
for _ in range(100):
    with a.locks[3]:
        a[3] = a[3] + 1
    with rows.locks[1]:
        rows[1] = rows[1] + 1
print("done")
"""
    for _ in range(100):
        with a.locks[3]:
            a[3] = a[3] + 1
    assert elsewhere(script, sockets[1], code) == "done"
    assert (a[3] == 200).all() and (rows[1] == 100).all() and not rows[0].any()
    part, lock = pickle.loads(pickle.dumps((rows[1:3, ::2], rows.locks[2])))
    with lock:
        assert rows.locks[2].locked() and part.shape == (2, 500) and part[0, 0] == 100
        part[0, 1] = -1
    assert rows[1, 2] == -1
    with pytest.raises(fp.Exists, match="locks 4"):
        fp.shared("grid", shape=(8, 8), dtype="i8", locks=3)


def test_locks_are_of_all_hosts(sockets, script):
    lock, step = fp.Lock("x", replicas=2), fp.Barrier("step", 1)
    assert step.wait() == 0
    code = """
import farpage as fp
lock = fp.Lock("x", replicas=2)
print(lock.acquire(timeout=0.01), lock.locked())
"""
    with lock:
        assert elsewhere(script, sockets[1], code) == "False True"
    assert elsewhere(script, sockets[1], code) == "True True"
    assert lock.acquire() and lock.holder_died
    lock.consistent()
    lock.release()
