"""Arrays that are sent to other processes, and processes that are forked."""

import multiprocessing
import multiprocessing.pool
import os
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
import workers

import farpage as fp

METHODS = ["spawn", "fork", "forkserver"]


@pytest.fixture
def array(numbers):
    return fp.open(numbers[0], dtype="f8", shape=(-1, 64))


@pytest.mark.parametrize("method", METHODS)
def test_workers_get_arrays_by_reference(array, numbers, method):
    with multiprocessing.get_context(method).Pool(2) as pool:
        sums = pool.map(workers.total, [array[:100], array[100:], array])
        assert all(pool.map(workers.is_by_reference, [array, array[5]]))
    values = numbers[1].reshape(-1, 64)
    assert sums == [values[:100].sum(), values[100:].sum(), values.sum()]


@pytest.mark.parametrize("method", METHODS)
def test_executors_get_arrays_by_reference(array, method):
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        assert list(pool.map(workers.is_by_reference, [array[i] for i in range(8)])) == [True] * 8


def test_an_array_goes_there_and_comes_back_into_the_same_memory(array):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        back = pool.apply(workers.same, (array[10:20],))
        row = pool.apply(workers.last_row, (array,))
    assert back.object is array.object and row.object is array.object
    assert np.shares_memory(back, array) and np.shares_memory(row, array[-1])
    np.testing.assert_array_equal(back, array[10:20])


def test_two_arrays_of_an_object_are_of_one_object_there(array):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(workers.same_object, ((array[3], array[:2]),))


def test_a_pipe_carries_arrays(array, numbers):
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=workers.send_sum, args=(there,))
    child.start()
    here.send(array)
    assert here.recv() == numbers[1].reshape(-1, 64).sum()
    child.join()
    assert child.exitcode == 0


VIEWS = {
    "slice": lambda a: a[5:50, 3:9],
    "steps": lambda a: a[::7, ::-3],
    "reversed": lambda a: a[::-1],
    "transposed": lambda a: a.T,
    "other type": lambda a: a[:4].view("<u2"),
    "one element": lambda a: a[3, 4:5].reshape(()),
    "empty": lambda a: a[5:5],
    "broadcast": lambda a: np.broadcast_to(a[0], (3, 64), subok=True),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_views_arrive_as_they_are(array, view):
    sent = view(array)
    back = pickle.loads(pickle.dumps(sent))
    assert workers.describe(back)[1:3] == workers.describe(sent)[1:3]
    assert sent.size == 0 or back.strides == sent.strides
    np.testing.assert_array_equal(back, sent)


def test_a_reference_is_small_and_a_copy_is_not(array):
    assert len(pickle.dumps(array)) < 1000
    copied = pickle.dumps(array.copy())
    assert len(copied) > array.nbytes and type(pickle.loads(copied)) is np.ndarray
    assert len(pickle.dumps(array[[0, 1]])) > 1000


def test_whole_objects_and_dicts_of_arrays_are_sent(tmp_path, array):
    assert pickle.loads(pickle.dumps(array.object)) is array.object
    np.savez(tmp_path / "x.npz", a=np.arange(5000), b=np.ones(3))
    arrays = fp.load(tmp_path / "x.npz")
    back = pickle.loads(pickle.dumps(arrays))
    assert type(back) is fp.Arrays and back.object is arrays.object
    np.testing.assert_array_equal(back["a"], np.arange(5000))


def test_what_is_open_for_writing_is_not_sent(numbers):
    array = fp.open(numbers[0], dtype="f8", mode="r+")
    for what in (array, array[5:], array.object):
        with pytest.raises(fp.ArgumentError, match="writing"):
            pickle.dumps(what)


def test_a_private_copy_is_sent_by_value(numbers):
    array = fp.open(numbers[0], dtype="f8", mode="c")
    array[:10] = 7
    back = pickle.loads(pickle.dumps(array[:20]))
    assert type(back) is np.ndarray and back[:10].sum() == 70
    with pytest.raises(fp.ArgumentError, match="private copy"):
        pickle.dumps(array.object)


def test_what_changed_on_the_way_is_refused(numbers, script):
    array = fp.open(numbers[0], dtype="f8")
    sent = pickle.dumps(array)
    with open(numbers[0], "r+b") as file:
        file.write(b"new!")
        os.utime(file.fileno(), (1, 1))
    done = script(
        """
        import pickle, sys, farpage
        try:
            pickle.loads(bytes.fromhex(sys.argv[1]))
        except farpage.Changed as error:
            print(error)
        """,
        sent.hex(),
    )
    assert "has changed" in done.stdout and numbers[0] in done.stdout, done.stderr


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_raises_what_it_cannot_open(numbers, method, tmp_path):
    path = tmp_path / "values"
    spoilings = ((path.unlink, fp.NotFound), (lambda: path.write_bytes(bytes(16)), fp.Changed))
    for spoil, error in spoilings:
        numbers[1].tofile(path)
        context = multiprocessing.get_context(method)
        # Started before: what a child of fork has of its parent needs no opening.
        with context.Pool(1) as pool, ProcessPoolExecutor(1, mp_context=context) as executor:
            assert pool.apply(workers.ready) and executor.submit(workers.ready).result()
            array = fp.open(path, dtype="f8")
            held, array = pickle.dumps(array), None
            spoil()
            for task in (workers.unpickled_total, workers.unpickled_shift):
                with pytest.raises(error, match="values"):
                    pool.apply_async(task, (held,)).get()
            # What cannot be sent back, either.
            with pytest.raises(multiprocessing.pool.MaybeEncodingError, match="values"):
                pool.apply_async(workers.unpickled, (held,)).get()
            with pytest.raises(error, match="values"):
                executor.submit(workers.total, Sent(held)).result()
            with pytest.raises(error, match="values"):
                pool.apply_async(workers.total, (Sent(held),)).get()


class Sent:
    """Arrives as the array whose pickle it has."""

    def __init__(self, pickled):
        self.pickled = pickled

    def __reduce__(self):
        return pickle.loads, (self.pickled,)


def test_a_child_of_fork_needs_no_source_for_what_its_parent_has(numbers, tmp_path):
    path = tmp_path / "values"
    numbers[1].tofile(path)
    array = fp.open(path, dtype="f8")
    path.unlink()
    for _ in range(2):
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.apply(workers.total, (array[:5],)) == numbers[1][:5].sum()


def test_a_relative_path_is_found_from_elsewhere(numbers, monkeypatch, tmp_path_factory):
    monkeypatch.chdir(os.path.dirname(numbers[0]))
    sent = pickle.dumps(fp.open("numbers.bin", dtype="f8"))
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    np.testing.assert_array_equal(pickle.loads(sent), numbers[1])


def in_child(act):
    """Runs `act` in a child of fork and returns its exit status: 0 when it returned true."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if act() else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_child_of_fork_reads_what_its_parent_mapped(array, numbers):
    array[:10].sum()
    values = numbers[1].reshape(-1, 64)
    assert in_child(lambda: np.array_equal(array, values)) == 0
    np.testing.assert_array_equal(array, values)


def test_a_child_of_fork_sees_what_was_written_before(numbers):
    array = fp.open(numbers[0], dtype="f8", mode="r+")
    array[:1000] = 3
    assert in_child(lambda: array[:1000].sum() == 3000) == 0
    array[0] = 4
    array.flush()
    assert np.fromfile(numbers[0])[0] == 4


def test_a_private_copy_is_split_by_a_fork(numbers):
    array = fp.open(numbers[0], dtype="f8", mode="c")
    array[:10] = 1

    def act():
        array[:5] = 2
        return array[:10].sum() == 15

    assert in_child(act) == 0
    assert array[:10].sum() == 10


def test_children_of_fork_can_fork_and_open(array, numbers):
    values = numbers[1].reshape(-1, 64)

    def grandchild():
        return np.array_equal(array[-100:], values[-100:])

    def child():
        more = fp.open(numbers[0], dtype="f8", ram="4M")
        return in_child(grandchild) == 0 and more[5] == numbers[1][5]

    assert in_child(child) == 0


def test_an_array_over_http_is_read_by_workers(server, numbers):
    array = fp.open(server.url("numbers.bin"), dtype="f8", cache=False)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        sums = pool.map(workers.total, [array[:1000], array[-1000:]])
    assert sums == [numbers[1][:1000].sum(), numbers[1][-1000:].sum()]


SCRIPT = """
import multiprocessing
import numpy as np
import farpage as fp

def numbers(offset, length):
    return np.arange(offset // 8, (offset + length) // 8).tobytes()

def total(array):
    return int(array[:1000].sum()) + int(fp.open(numbers, size="1M", dtype="i8")[7])

if __name__ == "__main__":
    array = fp.open(numbers, size="1M", dtype="i8")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.apply_async(total, (array,)).get())
"""


def test_a_function_of_the_script_itself_is_a_source_in_its_workers(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(sum(range(1000)) + 7)
