"""Functions that other processes import."""

import os
import pickle
import signal

import numpy as np

import farpage as fp


def total(array):
    return float(array.sum())


def ready():
    return True


def unpickled_total(held):
    return np.sum(pickle.loads(held))


def unpickled_shift(held):
    return 1 + pickle.loads(held)


def unpickled(held):
    return pickle.loads(held)


def describe(array):
    return type(array).__name__, array.dtype.str, array.shape, array.strides, array.tobytes()


def same(array):
    return array


def last_row(array):
    return array[-1]


def is_by_reference(array):
    return array.object is not None and not array.flags.owndata


def same_object(pair):
    return pair[0].object is pair[1].object


def send_sum(connection):
    array = connection.recv()
    connection.send(float(array.sum()))
    connection.close()


def ramp(offset, length):
    """Byte n is n % 251."""
    return ((np.arange(offset, offset + length) % 251).astype("u1")).tobytes()


class Scaled:
    """Byte n is n * factor % 256."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, offset, length):
        return (np.arange(offset, offset + length) * self.factor % 256).astype("u1").tobytes()


def raises(offset, length):
    raise RuntimeError("no luck at http://user:secret@host/x")


def too_little(offset, length):
    return b"x" * (length - 1)


def too_much(offset, length):
    return b"x" * (length + 1)


def no_bytes(offset, length):
    return 5


def dies(offset, length):
    os._exit(3)


def hangs(offset, length):
    signal.pause()


def interrupted(offset, length):
    raise KeyboardInterrupt


class Pid:
    """Every byte says nothing; the first read tells who answers."""

    def __init__(self, path):
        self.path = path

    def __call__(self, offset, length):
        with open(self.path, "w") as file:
            file.write(str(os.getpid()))
        return bytes(length)


def touch_served(size):
    return fp.open(ramp, size=size)[:100]


def fill_row(which):
    os.environ["FARPAGE_HOST"], name, row = which
    shm = fp.SharedMemory(name)
    rows = np.ndarray((shm.size // (1 << 20), (1 << 20) // 8), "f8", buffer=shm.buf)
    rows[row] *= row
    del rows
    shm.close()
