"""Budgets, and what is in memory."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import farpage as fp

MIB = 1 << 20


def paged(path, **options):
    """One that somebody could write to: each page is read when it is touched."""
    with open(path, "r+b"):
        return fp.open(path, **options)


def test_no_more_is_in_memory_than_the_budget(numbers):
    path, values = numbers
    array = fp.open(path, dtype="f8", ram="4M")
    most = 0
    for part in range(0, len(array), 1 << 16):
        assert array[part : part + (1 << 16)].sum() == values[part : part + (1 << 16)].sum()
        most = max(most, array.object.stats()["resident_bytes"])
    assert 0 < most <= 4 * MIB


def test_a_budget_that_is_too_small_is_refused(numbers):
    with pytest.raises(fp.KernelError):
        fp.open(numbers[0], ram="1M")


def test_nothing_is_read_before_it_is_touched(numbers):
    obj = paged(numbers[0])
    assert obj.residency() == [] and obj.stats()["read_bytes"] == 0
    obj[5 * MIB]
    ((start, stop),) = obj.residency()
    assert start <= 5 * MIB < stop < 8 * MIB


def test_prefetch_brings_in_and_drop_lets_go(numbers):
    obj = paged(numbers[0], ram="32M")
    assert obj.prefetch((MIB, 2 * MIB)) == MIB
    assert (MIB, 2 * MIB) in obj.residency()
    assert obj.prefetch() == 8 * MIB
    obj.drop(slice(0, 4 * MIB))
    assert obj.residency() == [(4 * MIB, 8 * MIB)]


def test_a_file_that_is_only_read_is_what_the_page_cache_has(numbers):
    path, values = numbers
    with open(path, "r+b") as file:
        os.fsync(file)
    array = fp.open(path, dtype="f8")
    assert array.sum() == values.sum()
    obj = array.object
    assert obj.stats()["read_bytes"] == 0 and obj.residency() == [(0, 8 * MIB)]
    obj.drop()
    assert obj.residency() == []
    assert obj.prefetch((MIB, 2 * MIB)) == MIB
    assert any(start <= MIB and 2 * MIB <= stop for start, stop in obj.residency())
    with open(path, "r+b") as file:
        file.write(bytes(8 * MIB))
        file.flush()
        with pytest.raises(fp.Changed):
            obj[3 * MIB]


def test_an_array_says_which_bytes_it_is(numbers):
    array = paged(numbers[0], dtype="f8", shape=(8, -1))
    assert array[2].prefetch() == MIB
    assert (2 * MIB, 3 * MIB) in array.object.residency()
    array.object.drop(array[2])
    assert array.object.stats()["resident_bytes"] == 0


@pytest.mark.parametrize("where", ["x", (1, 2, 3), slice(0, 9, 2), np.zeros(3)])
def test_what_is_no_range_is_refused(numbers, where):
    obj = fp.open(numbers[0])
    with pytest.raises(fp.ArgumentError):
        obj.prefetch(where)


def test_a_range_beyond_the_end_is_refused(numbers):
    with pytest.raises(fp.ArgumentError, match="inside"):
        fp.open(numbers[0]).prefetch((0, 9 * MIB))


def test_pinned_bytes_stay_until_unpinned(numbers):
    obj = fp.open(numbers[0], ram="4M")
    obj.pin((0, MIB))
    for at in range(0, 8 * MIB, 4096):
        obj[at]
    assert obj.residency()[0][1] >= MIB
    obj.unpin((0, MIB))
    obj.drop()
    assert obj.residency() == []


def test_more_than_half_of_the_budget_cannot_be_pinned(numbers):
    obj = fp.open(numbers[0], ram="4M")
    with pytest.raises(fp.Error):
        obj.pin((0, 4 * MIB))


def test_eager_brings_all_in(numbers):
    obj = fp.open(numbers[0], eager=True, ram="32M")
    assert obj.stats()["resident_bytes"] == 8 * MIB
    np.save(numbers[0] + ".npy", numbers[1])
    array = fp.load(numbers[0] + ".npy", eager=True, ram="32M")
    assert array.object.stats()["resident_bytes"] >= 8 * MIB


def test_a_trace_is_recorded_and_replayed(numbers, tmp_path):
    path = numbers[0]
    with fp.open(path, record=tmp_path / "trace") as obj:
        for page in (100, 3, 700):
            obj[page * 4096]
    again = fp.open(path, replay=tmp_path / "trace", ram="32M")
    wanted = {100, 3, 700}
    while wanted:
        there = again.residency()  # the pages come by themselves
        wanted = {p for p in wanted if not any(a <= p * 4096 < b for a, b in there)}
    with pytest.raises(fp.ArgumentError):
        fp.open(path, replay=path)


def test_one_path_may_be_recorded_and_replayed_from_the_first_time_on(numbers, tmp_path):
    path, trace = numbers[0], tmp_path / "trace"
    for page in (5, 700):
        with fp.open(path, record=trace, replay=trace, cache=False) as obj:
            obj[page * 4096]
        assert f"\n{page}+" in trace.read_text()
    trace.write_text("")
    fp.open(path, record=trace, replay=trace).close()
    trace.unlink()
    with pytest.raises(fp.ArgumentError, match="cannot read .*trace'.*; record it again"):
        fp.open(path, replay=trace)
    trace.write_text("")
    with pytest.raises(fp.ArgumentError, match="it is empty; record it again"):
        fp.open(path, replay=trace)


def test_a_killed_process_leaves_a_trace(numbers, tmp_path):
    code = (
        "import farpage as fp, os, signal, sys\n"
        "obj = fp.open(sys.argv[1], record=sys.argv[2])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    trace = tmp_path / "trace"
    died = subprocess.run([sys.executable, "-c", code, numbers[0], trace], check=False)
    assert died.returncode == -signal.SIGKILL
    fp.open(numbers[0], replay=trace).close()


def test_statistics_count_reads_and_writes(numbers):
    with fp.open(numbers[0], mode="r+") as obj:
        view = memoryview(obj)
        view[0] = 1
        obj.flush()
        stats = obj.stats()
        view.release()
    assert stats["bytes"] == 8 * MIB and stats["reads"] >= 1
    assert stats["read_bytes"] >= 4096 and stats["written_bytes"] == 4096
    assert stats["failures"] == 0


def test_the_default_budget_can_be_set(script, numbers):
    done = script(
        """
        import sys, farpage as fp
        fp.set_ram("8M")
        array = fp.open(sys.argv[1], dtype="f8")
        array.sum()
        assert array.object.stats()["resident_bytes"] <= 8 << 20
        try:
            fp.set_ram("1K")
        except fp.Error:
            print("refused")
        """,
        numbers[0],
    )
    assert (done.stdout, done.stderr) == ("refused\n", "")


def test_its_text_says_what_it_is(numbers):
    obj = fp.open(numbers[0])
    assert repr(obj).startswith(f"<farpage.Object '{numbers[0]}', 8 MiB, ")
    obj.close()
    assert repr(obj) == "<farpage.Object, closed>"


def test_results_of_arithmetic_are_plain_arrays(numbers):
    array = fp.open(numbers[0], dtype="f8", shape=(-1, 4), mode="c")
    assert type(array + 1) is np.ndarray and type(np.sqrt(abs(array))) is np.ndarray
    assert type(array.copy()) is np.ndarray and type(np.asarray(array)) is np.ndarray
    assert isinstance(array.sum(), np.float64) and isinstance(np.mean(array), np.float64)
    assert isinstance(array[0, 0], np.float64)
    same = array
    array += 1
    assert array is same and array.object is not None
    np.testing.assert_array_equal(array, numbers[1].reshape(-1, 4) + 1)


def test_views_know_their_object_and_copies_do_not(numbers):
    array = fp.open(numbers[0], dtype="f8", shape=(-1, 4))
    for view in (array[3:], array[::-1], array.T, array.reshape(-1), array.view("u8"), array[1]):
        assert view.object is array.object
    assert array[[1, 2]].object is None and array.astype("f4").object is None


def test_a_plain_view_keeps_the_memory_mapped(numbers):
    plain = np.asarray(fp.open(numbers[0], dtype="f8"))
    np.testing.assert_array_equal(plain, numbers[1])
