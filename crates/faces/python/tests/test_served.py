"""Objects whose bytes Python code answers for."""

import gzip
import io
import os
import pickle
import select
import signal
import tempfile

import fsspec
import numpy as np
import pytest
import workers
from harness import PATIENCE_S, until

import farpage as fp

SIZE = 300_000
RAMP = workers.ramp(0, SIZE)


def ended(pid):
    """Waits until a process is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], PATIENCE_S)[0])
    finally:
        os.close(descriptor)


def test_a_function_is_memory():
    array = fp.open(workers.ramp, size=SIZE, dtype="u1")
    assert array.tobytes() == RAMP


def test_lambdas_and_local_functions_are_memory():
    base = 7

    def local(offset, length):
        return bytes([base]) * length

    assert fp.open(local, size=9000)[:] == b"\x07" * 9000
    assert fp.open(lambda offset, length: b"ab" * (length // 2), size=8192)[:4] == b"abab"


def test_an_instance_is_memory():
    data = fp.open(workers.Scaled(3), size=SIZE)[:]
    assert data == workers.Scaled(3)(0, SIZE)


def test_functions_of_the_script_itself_are_memory(script):
    done = script(
        """
        import farpage as fp
        def read(offset, length):
            return bytes(length)
        class Ones:
            def __call__(self, offset, length):
                return b"1" * length
        print(len(fp.open(read, size=5000)[:]), fp.open(Ones(), size=10)[:])
        """
    )
    assert (done.stdout, done.stderr) == ("5000 b'1111111111'\n", "")


def test_any_buffer_is_an_answer():
    array = fp.open(lambda o, n: np.arange(o // 8, (o + n) // 8), size=80000, dtype="i8")
    np.testing.assert_array_equal(array, np.arange(10000))


def test_a_file_object_is_memory_and_keeps_its_position(numbers):
    with open(numbers[0], "rb") as file:
        file.seek(77)
        array = fp.open(file, dtype="f8")
        np.testing.assert_array_equal(array, numbers[1])
        assert file.tell() == 77


def test_files_in_memory_and_packed_files_are_memory(tmp_path):
    assert fp.open(io.BytesIO(RAMP))[5:9000] == RAMP[5:9000]
    (tmp_path / "x.gz").write_bytes(gzip.compress(RAMP))
    with gzip.open(tmp_path / "x.gz") as file:
        assert fp.open(file)[1000:200_000] == RAMP[1000:200_000]
    with io.BufferedReader(gzip.open(tmp_path / "x.gz")) as file:
        assert fp.open(file)[1000:200_000] == RAMP[1000:200_000]


def test_a_file_of_text_is_refused(numbers):
    with open(numbers[0]) as file, pytest.raises(fp.ArgumentError, match="rb"):
        fp.open(file)


def test_a_file_object_is_written_to(tmp_path):
    (tmp_path / "x").write_bytes(bytes(20000))
    with open(tmp_path / "x", "r+b") as file:
        array = fp.open(file, dtype="u1", mode="r+")
        array[9000:9010] = 5
        array.flush()
        assert (tmp_path / "x").read_bytes()[9000:9010] == b"\5" * 10


def test_what_was_written_to_a_file_object_survives_the_interpreter(script, tmp_path):
    (tmp_path / "x").write_bytes(bytes(20000))
    done = script(
        """
        import sys, weakref, farpage as fp
        array = fp.open(open(sys.argv[1], "r+b"), dtype="u1", mode="r+")
        array[:10] = 5
        """,
        tmp_path / "x",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "x").read_bytes()[:10] == b"\5" * 10


def test_a_file_of_fsspec_over_http_is_memory(server, numbers):
    with fsspec.open(server.url("numbers.bin"), "rb", block_size=1 << 20) as file:
        array = fp.open(file, dtype="f8")
        np.testing.assert_array_equal(array, numbers[1])


def test_a_private_copy_of_a_function_can_be_written_to():
    array = fp.open(workers.ramp, size=SIZE, dtype="u1", mode="c")
    array[:5] = 200
    assert array[:5].sum() == 1000 and array[5:].tobytes() == RAMP[5:]


@pytest.mark.parametrize(
    "function, why",
    [
        (workers.raises, "RuntimeError: no luck"),
        (workers.too_little, "returned 4095 bytes of 4096"),
        (workers.too_much, "returned 4097 bytes of 4096"),
        (workers.no_bytes, "TypeError"),
        (workers.dies, "has ended"),
        (workers.interrupted, "has ended"),
    ],
)
def test_a_function_that_fails_is_an_exception(function, why, capfd):
    obj = fp.open(function, size=4096)
    with pytest.raises(fp.CallbackError, match=why) as caught:
        obj[:]
    assert "byte 0" in str(caught.value) and function.__name__ in str(caught.value)
    with pytest.raises(fp.CallbackError):
        obj.prefetch()


def test_passwords_are_not_in_messages():
    obj = fp.open(workers.raises, size=4096)
    with pytest.raises(fp.CallbackError) as caught:
        obj[:]
    assert "http://host/x" in str(caught.value) and "secret" not in str(caught.value)


def test_a_function_that_hangs_times_out_and_its_process_ends():
    before = set(own_children())
    obj = fp.open(workers.hangs, size=4096, timeout=0.5)
    with pytest.raises(fp.TimedOut, match="has not returned; make it faster, or allow more time$"):
        obj[:]
    children = set(own_children()) - before
    assert children
    obj.close()
    assert all(ended(pid) for pid in children)


def own_children():
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(pid) for pid in file.read().split()]


def test_a_killed_process_is_an_exception(tmp_path):
    obj = fp.open(workers.Pid(tmp_path / "pid"), size=1 << 20)
    obj[0]
    pid = int((tmp_path / "pid").read_text())
    os.kill(pid, signal.SIGKILL)
    obj.drop()
    with pytest.raises(fp.CallbackError, match="has ended"):
        obj[:]


def test_ctrl_c_is_not_meant_for_the_process(tmp_path):
    obj = fp.open(workers.Pid(tmp_path / "pid"), size=8 << 20)
    obj[0]
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGINT)
    assert obj[8 << 19 : (8 << 19) + 4] == bytes(4)


@pytest.mark.parametrize("let_go", [lambda obj: obj.close(), lambda obj: None])
def test_its_process_ends_with_its_object(tmp_path, let_go):
    obj = fp.open(workers.Pid(tmp_path / "pid"), size=4096)
    obj[0]
    let_go(obj)
    del obj
    assert ended(int((tmp_path / "pid").read_text()))


def test_its_process_ends_when_the_interpreter_is_killed(script, tmp_path):
    done = script(
        """
        import os, signal, sys, workers, farpage as fp
        obj = fp.open(workers.Pid(sys.argv[1]), size=4096)
        local = fp.open(lambda offset, length: bytes(length), size=4096)
        obj[0], local[0]
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        tmp_path / "pid",
        env={"PYTHONPATH": os.pathsep.join(__import__("sys").path)},
    )
    assert done.returncode == -signal.SIGKILL
    assert ended(int((tmp_path / "pid").read_text()))
    assert not [name for name in os.listdir(tempfile.gettempdir()) if "farpage" in name]


def test_nothing_is_left_open(tmp_path):
    def open_and_close():
        with fp.open(workers.ramp, size=4096) as obj:
            obj[:]

    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    open_and_close()
    before = descriptors()
    for _ in range(3):
        open_and_close()
    # Threads that read ahead let go a little later.
    until(lambda: descriptors() <= before, lambda: f"it leaves open {os.listdir('/proc/self/fd')}")


def test_a_function_is_sent_to_a_worker_by_name():
    array = fp.open(workers.ramp, size=SIZE, dtype="u1")
    back = pickle.loads(pickle.dumps(array[100:]))
    assert back.object is array.object
    with pytest.raises(Exception, match="pickle"):
        pickle.dumps(fp.open(lambda offset, length: bytes(length), size=5, dtype="u1"))


def test_a_child_of_fork_asks_the_same_process():
    obj = fp.open(workers.ramp, size=SIZE)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if obj[:] == RAMP else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert obj[:] == RAMP


@pytest.mark.parametrize("source", [5, object(), None])
def test_what_cannot_be_read_is_refused(source):
    with pytest.raises(fp.ArgumentError):
        fp.open(source, size=5)


def test_a_function_needs_a_size_and_only_reads():
    with pytest.raises(fp.ArgumentError, match="size"):
        fp.open(workers.ramp)
    with pytest.raises(fp.ArgumentError, match="only reads"):
        fp.open(workers.ramp, size=5, mode="r+")
    with pytest.raises(fp.ArgumentError, match="translated"):
        fp.open(workers.ramp, size=SIZE, dtype="bf16")


def test_a_thread_that_faults_with_the_interpreter_lock_is_answered(script):
    done = script(
        """
        import farpage as fp
        def read(offset, length):
            return b"\\1" * length
        array = fp.open(read, size=64 << 20, dtype="u1", ram="4M")
        # `item` reads memory with the interpreter lock held, in C.
        print(sum(array.item(i) for i in range(0, len(array), 65536)))
        """
    )
    assert (done.stdout, done.stderr) == ("1024\n", "")
