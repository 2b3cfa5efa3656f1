"""Arrays that all hosts of a cluster have in common."""

import json
import math
import os

import numpy as np

from . import _farpage, _sync, errors
from ._options import parse_size
from ._shared import share_over_fork, talking

_SCHEDULERS = ("distributed", "simple")
_CONSISTENCIES = ("strict", "release")
# Seconds that a page stays with a host at most.
_HOLD_MAX = 0.1
# Seconds that copies are lent for at least.
_STALE_MIN = 0.001
_LOCK_BYTES = 64


class SharedArray(np.ndarray):
    """An array of `shared`: a NumPy array that is pickled by its name.

    `name`: None for what is no view of one. `locks`: those that were made with it. Results of arithmetic and `copy` are plain arrays.
    """

    def __array_finalize__(self, base):
        self.name = self._memory = None
        self.locks = []
        memory = getattr(base, "_memory", None)
        if memory is not None and np.may_share_memory(self, base):
            self.name, self._memory, self.locks = base.name, memory, base.locks

    def __array_wrap__(self, array, context=None, return_scalar=False):
        array = np.ndarray.__array_wrap__(self, array, context)
        if self is array or type(self) is not SharedArray:
            return array
        return array[()] if return_scalar or array.shape == () else array.view(np.ndarray)

    def __reduce__(self):
        if self._memory is None:
            return np.asarray(self).__reduce__()
        start = self.__array_interface__["data"][0] - _address(self._memory)
        return _again, (self.name, start, self.dtype.str, self.shape, self.strides)

    def unlink(self):
        """Takes its name away: it is gone when no process of any host has it any more."""
        unshare(self.name)

    def seal(self):
        """Nobody writes to it any more, on any host, for ever: hosts that have parts of it give them to
        others, so that all get it soon. Arrays that are opened from now on, and this one, are read-only;
        who writes by another that was open already gets SIGBUS.

        Raises `ArgumentError` for the simple scheduler, two replicas, or `consistency="release"`.
        """
        with talking:
            _farpage.seal_of_cluster(self.name)
        self.flags.writeable = False

    def flush(self):
        """What any host wrote to it before this is in its file when it returns (`shared(..., file=)`), and
        stays there when the machine stops: all of it, or, when this fails, nothing. How many bytes went
        there.

        Raises `KernelError` for an array without a file, or of which a page is lost.
        """
        with talking:
            return _farpage.flush_of_cluster(self.name)

    def release(self):
        """What processes of this host have written to an array with `consistency="release"` is seen by who
        acquires it from now on, at any host. Locks and barriers do that by themselves; of other arrays
        nothing is to be done.
        """
        self._passes(_farpage.Shared.release)

    def acquire(self):
        """What is read of an array with `consistency="release"` from now on has what any host released
        before. As `release`.
        """
        self._passes(_farpage.Shared.acquire)

    def pin(self, *, write=False, timeout=None):
        """Keeps the pages of this array, or view, at this host and in its memory: a `Pinned`, until its `unpin`, the end
        of a `with` block, or until it is let go of. Other hosts read them on, and do not write to them, or with
        `write=True` do neither: they wait. When it returns the pages are here; it waits as long as another host
        has some of them pinned in a way that does not allow it, but `timeout` seconds at most: 0 is for pages that
        are here already, None and -1 are for as long as it takes. They count from when this host's kernel answers.

        Pages that go from host to host together (`page_size`) are pinned together. What is to be written meanwhile, or
        locked for a device (`lock_area(..., pinned=True)`), is pinned with `write=True`: a write to what is pinned
        to read may wait for ever. Several parts are one view, or pinned in the order of their addresses on all hosts, or
        hosts wait in a circle. What any program of this host has pinned to read cannot be pinned to write here.

        Raises `TimedOut` when the time is over, and nothing is pinned then; `ArgumentError` for release consistency, the
        simple scheduler, what is sealed and is to be written, and what this host has pinned to read and is to be
        written; `KernelError` for more than may be kept in memory.

        ```
        with a[2:5].pin(write=True):  # no other host sees it half done
            a[2:5] += 1
        ```
        """
        if not isinstance(write, (bool, np.bool_)):
            raise errors.ArgumentError(f"write cannot be {write!r}; give True or False")
        if self.size == 0:
            raise errors.ArgumentError("a view without numbers has no pages; give one with some")
        if self._memory is None:
            raise errors.ArgumentError("it is no array of shared(); use one, or a view of one")
        # Also of a view that goes backwards, or has gaps.
        spans = [(count - 1) * step for count, step in zip(self.shape, self.strides)]
        first = self.__array_interface__["data"][0] - _address(self._memory)
        start = first + sum(span for span in spans if span < 0)
        stop = first + sum(span for span in spans if span > 0) + self.itemsize
        # It may take long, and other threads, or what they give back, do not wait for it.
        return Pinned(self._memory.lock(start, stop - start, bool(write), _sync._limit(True, timeout)))

    def _passes(self, what):
        if self._memory is None:
            raise errors.ArgumentError("it is no array of shared(); use one, or a view of one")
        with talking:
            what(self._memory)


class Pinned:
    """Pages of an array of `shared` that `pin` keeps at this host."""

    def __init__(self, wire):
        self._wire = wire

    def __repr__(self):
        state = "" if self.is_pinned else ", given back"
        return f"<farpage.Pinned{state}>"

    def __enter__(self):
        if not self.is_pinned:
            raise errors.LockError("cannot use what was given back; pin it again")
        return self

    def __exit__(self, *_):
        self.unpin()

    @property
    def is_pinned(self):
        """False once it was given back."""
        return self._wire is not None

    def unpin(self):
        """Gives them back. Once more is nothing."""
        self._wire = None

    def check(self):
        """Raises `Stale` when the pages are not kept any more: this host was cut off from the cluster, or has left it;
        `Unreachable` when its host kernel has gone, `LockError` when they were given back, or in a child of fork.
        """
        if not self.is_pinned:
            raise errors.LockError("cannot check what was given back; pin it again")
        self._wire.check()


def _again(name, start, dtype, shape, strides):
    whole = _as_it_is(name, (dtype, shape, strides))
    array = np.ndarray(shape, dtype, whole._memory, start, strides).view(SharedArray)
    array.name, array._memory, array.locks = name, whole._memory, whole.locks
    return array


def _lock_of(name, number):
    return shared(name).locks[number]


def _as_it_is(name, again=None):
    """The array of this name, or bytes for `_again` where it is memory without a shape."""
    with talking:
        memory, note = _farpage.shared_of_cluster(name)
    if note:
        return _array(name, memory, *_noted(name, note))
    if again is None:
        raise errors.ArgumentError(
            f"'{name}' was made by farpage create, with {_bytes(memory)} bytes and no shape; give shape= and dtype="
        )
    return _array(name, memory, (_bytes(memory),), np.dtype("u1"), 0, 4096)


def _found(name, wanted, file):
    """What there is of this name, or made as wanted. Memory of farpage create is taken as it is."""
    try:
        with talking:
            return _farpage.shared_of_cluster(name, wanted, file)
    except errors.Exists:
        with talking:
            memory, note = _farpage.shared_of_cluster(name)
        if note or memory.is_released != wanted["release"]:
            raise
        return memory, note


def _bytes(memory):
    return memoryview(memory).nbytes


def _address(memory):
    return np.frombuffer(memory, np.uint8, 1).__array_interface__["data"][0]


def shared(
    name,
    shape=None,
    dtype="f8",
    *,
    page_size=None,
    scheduler="distributed",
    replicas=1,
    hold=None,
    stale=None,
    file=None,
    consistency="strict",
    stays=False,
    locks=0,
):
    """The array of this name that all hosts of the cluster have in common: what one host writes,
    the others read, as threads of one process do.

    It is found, or made of zeros when there is none. `shape`, `dtype`: of a new one; one that is
    there must be the same, or is opened as it is without a shape. Memory of `farpage create` has no shape:
    it takes the one that is given, if it is large enough. `page_size`: what goes from host to
    host together, 4096 bytes to 2 MiB, a power of two ('64K' suits arrays that are read in order,
    4096 what is written everywhere). `scheduler`: 'distributed', or
    'simple', by which the host that made it decides, and takes it with it when it goes.
    `replicas=2`: one host that dies loses nothing. `hold`: seconds (0 to 0.1) that a page stays with
    threads that were let in to it, before another host has it; without it, 100 us. `stale`: seconds
    (from 0.001 on) that what a host reads may be old by; then who writes does not wait for readers.
    `file`: what `a.flush()` flushes is kept there, on the host that makes the array, which has its
    contents from there, too: a file of its numbers as they are in memory (zeros when there is none),
    with a journal beside it. The array ends with that host, and the file stays.
    `consistency="release"`: several hosts write to different parts of the same pages at a time; what one
    wrote others see when it has given a lock back, or come to a barrier, and they have taken a lock or
    passed a barrier after that (any of `fp.Lock`, `Semaphore`, `Barrier`, `Condition`, for all such arrays
    that a process has open), or by `a.release()` and `a.acquire()`. For the distributed scheduler and 1
    replica. Its `locks` lie in memory of their own, so that `locks='rows'` is refused.
    It is gone when no process of any host has it any more; `stays=True`: when its name was taken
    away, too (`unlink`, `farpage rm --cluster`).

    `locks`: so many, in a page of their own, are `a.locks`. `locks='rows'`: each row begins a page, with
    a lock of its own before it, so that who takes `a.locks[3]` gets (the first page of) `a[3]` by the
    same two messages.

    Raises `Unreachable` when no host kernel runs, `KernelError` when it is in no cluster
    (`farpage up --cluster`), `NotFound` without a shape, `Exists` for another shape.

    ```
    a = fp.shared("grid", shape=(4096, 4096), dtype="f8")  # the same on every host
    ```
    """
    if not isinstance(name, str) or not name:
        raise errors.ArgumentError(f"name: {name!r} is no name; give a text")
    if scheduler not in _SCHEDULERS:
        raise errors.ArgumentError(f"scheduler: {scheduler!r}; give one of {_SCHEDULERS}")
    unit = 4096 if page_size is None else parse_size(page_size, "page_size")
    if unit & (unit - 1) or not 4096 <= unit <= 2 << 20:
        raise errors.ArgumentError(
            f"page_size: {page_size!r}; give a power of two from 4096 to 2 MiB, such as '64K'"
        )
    if replicas not in (1, 2):
        raise errors.ArgumentError(f"replicas: {replicas!r}; give 1 or 2")
    if hold is not None and not 0 <= hold <= _HOLD_MAX:
        raise errors.ArgumentError(f"hold: {hold!r}; give seconds from 0 to {_HOLD_MAX}")
    if stale is not None and not _STALE_MIN <= stale < 3600:
        raise errors.ArgumentError(f"stale: {stale!r}; give seconds from {_STALE_MIN} to 3600")
    if consistency not in _CONSISTENCIES:
        raise errors.ArgumentError(f"consistency: {consistency!r}; give one of {_CONSISTENCIES}")
    is_released = consistency == "release"
    if is_released and (scheduler != "distributed" or replicas != 1 or stale is not None):
        raise errors.ArgumentError(
            "consistency: 'release' is for scheduler='distributed' and replicas=1, and what is read is as old "
            "as the last acquire, not by a time (stale); leave these out, or the consistency"
        )
    if is_released and locks == "rows":
        raise errors.ArgumentError(
            "locks: 'rows' puts locks beside what they guard, and with consistency='release' nothing can be "
            "locked there; give locks=N, which lie in memory of their own"
        )
    if locks != "rows" and (not isinstance(locks, int) or not 0 <= locks <= 1 << 20):
        raise errors.ArgumentError(f"locks: {locks!r}; give how many, 1048576 at most, or 'rows'")
    if file is not None and locks:
        raise errors.ArgumentError(
            "locks: an array with a file has none in it: they would outlive who has them; give locks "
            f"of their own, such as Lock({name + '-lock'!r})"
        )
    if shape is None:
        if file is not None:
            raise errors.ArgumentError("file: it is for who makes the array; give its shape, too")
        return _as_it_is(name)
    shape = tuple(int(n) for n in (shape if np.iterable(shape) else (shape,)))
    dtype = np.dtype(dtype)
    if dtype.hasobject:
        raise errors.ArgumentError(f"dtype: {dtype} has Python objects; give numbers or bytes")
    size = math.prod(shape) * dtype.itemsize
    if min(shape, default=1) < 0 or size == 0:
        raise errors.ArgumentError(f"shape: {shape} of {dtype} has no bytes; give sizes above 0")
    if locks == "rows" and not shape:
        raise errors.ArgumentError("locks: an array without dimensions has no rows; give locks=1")
    size = _placed(shape, dtype, 0 if is_released else locks, unit)[-1]
    wanted = {"shape": shape, "dtype": np.lib.format.dtype_to_descr(dtype)}
    if locks:
        wanted.update(locks=locks, page_size=unit)
    hold_us, stale_us = (None if time is None else round(time * 1e6) for time in (hold, stale))
    memory, note = _found(
        name,
        {
            "bytes": size,
            "unit_bytes": unit,
            "simple": scheduler == "simple",
            "replicas": replicas,
            "hold_us": hold_us,
            "stale_us": stale_us,
            "release": is_released,
            "stays": bool(stays),
            "note": json.dumps(wanted),
        },
        None if file is None else os.fspath(file),
    )
    if not note:
        if _bytes(memory) < size or locks:
            raise errors.Exists(
                f"'{name}' was made by farpage create, with {_bytes(memory)} bytes and no locks in it, and "
                f"shape {shape} of {dtype} with locks={locks!r} takes {size}; give a shape that fits, and "
                "locks of their own (fp.Lock)"
            )
        return _array(name, memory, shape, dtype, 0, unit, stays)
    there = _noted(name, note)
    if there[:3] != (shape, dtype, locks):
        raise errors.Exists(
            f"'{name}' is there with shape {there[0]}, dtype {there[1]} and locks {there[2]!r}; open "
            "it without a shape, or give another name"
        )
    return _array(name, memory, *there, stays)


def _placed(shape, dtype, locks, unit):
    """Where the first number lies, the strides, where the first lock does and how far the next, how many
    there are, and the size of all.
    """
    strides, step = [0] * len(shape), dtype.itemsize
    for at in reversed(range(len(shape))):
        strides[at], step = step, step * shape[at]
    if locks == "rows":
        row = strides[0]
        strides[0] = -(-(row + _LOCK_BYTES) // unit) * unit
        return _LOCK_BYTES, strides, 0, strides[0], shape[0], strides[0] * shape[0]
    first = -(-step // unit) * unit if locks else step
    return 0, strides, first, _LOCK_BYTES, locks, first + locks * _LOCK_BYTES


def unshare(name):
    """Takes the name of an array of `shared` away: it is gone when no process has it any more."""
    with talking:
        _farpage.unlink_of_cluster(name)
    try:
        with talking:
            _farpage.unlink_of_cluster(_of_locks(name))
    except errors.NotFound:
        # Only arrays with consistency="release" have locks elsewhere.
        pass


def _of_locks(name):
    return f"locks.{name}"


def _locks_apart(name, count, stays):
    """Memory for so many locks of an array in which nothing can be locked."""
    wanted = {
        "bytes": count * _LOCK_BYTES,
        "unit_bytes": 4096,
        "simple": False,
        "replicas": 1,
        "hold_us": None,
        "stale_us": None,
        "release": False,
        "stays": bool(stays),
        "note": "",
    }
    with talking:
        memory, _ = _farpage.shared_of_cluster(_of_locks(name), wanted)
    share_over_fork(_of_locks(name), memory)
    return memory


def _noted(name, note):
    try:
        said = json.loads(note)
        dtype = np.lib.format.descr_to_dtype(said["dtype"])
        return tuple(said["shape"]), dtype, said.get("locks", 0), said.get("page_size", 4096)
    except (ValueError, KeyError, TypeError) as error:
        raise errors.ArgumentError(
            f"'{name}' is no array ({error}); give its shape and dtype as they were given first"
        ) from None


def _array(name, memory, shape, dtype, locks, unit, stays=False):
    share_over_fork(name, memory)
    start, strides, first, further, count, _ = _placed(shape, dtype, locks, unit)
    place = memory
    if locks and memory.is_released:
        place, first = _locks_apart(name, locks, stays), 0
    array = np.ndarray(shape, dtype, memory, start, strides).view(SharedArray)
    array.name, array._memory = name, memory
    for number in range(count):
        again = (_lock_of, (name, number))
        array.locks.append(_sync.Lock._in(place, first + number * further, again))
    return array
