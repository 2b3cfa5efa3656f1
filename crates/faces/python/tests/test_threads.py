"""Threads that fault, prefetch, drop and fork at the same time."""

import os
import threading

import numpy as np
import pytest

import farpage as fp


def run_all(*functions):
    failures = []

    def call(function):
        try:
            function()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=call, args=(f,)) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def readers(array, values, count=8, rounds=300):
    def read(seed):
        rows = np.random.default_rng(seed).integers(0, len(values), rounds)
        for row in rows:
            np.testing.assert_array_equal(array[row], values[row])

    return [lambda seed=seed: read(seed) for seed in range(count)]


@pytest.mark.parametrize("ram", ["4M", "64M"])
def test_eight_readers_while_another_prefetches_and_drops(numbers, ram):
    values = numbers[1].reshape(-1, 512)
    array = fp.open(numbers[0], dtype="f8", shape=(-1, 512), ram=ram)
    done = threading.Event()

    def churn():
        while not done.is_set():
            array.object.prefetch((0, 1 << 20), progress=False)
            array.object.drop()

    churner = threading.Thread(target=churn)
    churner.start()
    try:
        run_all(*readers(array, values))
    finally:
        done.set()
        churner.join()


def test_readers_and_a_writer_of_other_rows(numbers):
    array = fp.open(numbers[0], dtype="f8", shape=(-1, 512), ram="4M", mode="r+")
    values = numbers[1].reshape(-1, 512)[1024:]

    def write():
        for row in range(1024):
            array[row] = row
        array.flush()

    run_all(write, *readers(array[1024:], values, count=4))
    written = np.fromfile(numbers[0]).reshape(-1, 512)
    np.testing.assert_array_equal(written[:1024, 0], np.arange(1024))
    np.testing.assert_array_equal(written[1024:], values)


def test_forks_while_threads_fault(numbers):
    array = fp.open(numbers[0], dtype="f8", shape=(-1, 512), ram="4M")
    values = numbers[1].reshape(-1, 512)

    def fork():
        for row in range(10):
            pid = os.fork()
            if pid == 0:
                os._exit(0 if np.array_equal(array[row * 100], values[row * 100]) else 1)
            assert os.waitpid(pid, 0)[1] == 0

    run_all(fork, *readers(array, values, count=3))


def test_objects_are_opened_and_closed_by_many_threads(numbers):
    def go():
        for _ in range(40):
            with fp.open(numbers[0], ram="4M") as obj:
                assert obj[:8] == numbers[1][:1].tobytes()

    run_all(*[go] * 8)
