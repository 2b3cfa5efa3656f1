"""Shared memory that several processes have stay where it is, through the host kernel."""

import operator
import os
from multiprocessing import shared_memory

import numpy as np

from . import _farpage, errors
from ._cluster import SharedArray
from ._shared import SharedMemory


class SharedLock:
    """A part of shared memory that `lock_shared` or `borrow_lock` has locked for this process, until `unlock`, the
    end of a `with` block, or until it is let go of. It is over with the process, too, however that ends."""

    def __init__(self, lock):
        self._lock = lock

    def __repr__(self):
        state = "" if self.is_locked else ", given back"
        return f"<farpage.SharedLock{state}>"

    def __enter__(self):
        if not self.is_locked:
            raise errors.LockError("cannot use a lock that was given back; lock the memory again")
        return self

    def __exit__(self, *_):
        self.unlock()

    @property
    def is_locked(self):
        """False once it was given back, and in a child of fork."""
        return self._lock.is_locked

    @property
    def range(self):
        """The first byte of its first page, and what follows its last: a pair."""
        return self._lock.range()

    def lend(self, name):
        """Lets other processes of this user borrow it by a name (`borrow_lock`): it is locked and charged once,
        until the last of them has given it back. It has one name: `Exists` is raised for another, and for one that
        is taken."""
        self._lock.lend(name)

    def check(self):
        """Raises `Stale` when some of the memory was discarded, or cut off, by who shares it; `Unreachable`
        when the host kernel has gone, and the lock with it."""
        self._lock.check()

    def frames(self):
        """The frame of each page, a list, as the host kernel tells it. Raises `Denied` where it does not
        (`farpage up --frames`)."""
        return self._lock.frames()

    def blocks(self, most=None):
        """The same as a list of pairs, a first frame and how many follow each other from there, no more than
        `most`."""
        most = (1 << 64) - 1 if most is None else operator.index(most)
        if not 1 <= most < 1 << 64:
            raise errors.ArgumentError(f"most cannot be {most}; give 1 or more")
        return self._lock.blocks(most)

    def unlock(self):
        """Gives the lock back. Once more is nothing."""
        self._lock.unlock()


def lock_shared(memory=None, where=None, *, sysv=None, pinned=False):
    """Has shared memory stay in RAM for all processes that have it, through the host kernel (`farpage up`): a
    `SharedLock`.

    `memory`: a `multiprocessing.shared_memory.SharedMemory` or its name; a descriptor of shared memory
    (`os.memfd_create`), or what has `fileno()`. Or `sysv`: the number of a System V segment, which needs `where`.
    `where`: `(start, stop)` in bytes; without, all. What several processes lock is locked once, page by page, until
    the last of them has given it back or has ended. With `pinned=True` frames stay, too.

    Raises `ArgumentError` for what is no shared memory or not so large; `KernelError` where a limit does not
    allow it: which, its value, and how to raise it; `Denied` for a segment of another user; `Unreachable` without a
    host kernel (`farpage up`).

    >>> from multiprocessing import shared_memory
    >>> shm = shared_memory.SharedMemory(create=True, size=8192)
    >>> with fp.lock_shared(shm, pinned=True) as lock:
    ...     lock.range
    (0, 8192)
    >>> shm.unlink(), shm.close()
    (None, None)
    """
    if not isinstance(pinned, (bool, np.bool_)):
        raise errors.ArgumentError(f"pinned cannot be {pinned!r}; give True or False")
    if (memory is None) == (sysv is None):
        raise errors.ArgumentError("give either memory, or sysv: the number of a System V segment")
    if sysv is not None:
        if where is None:
            raise errors.ArgumentError("where: a System V segment needs it; give (start, stop)")
        number = operator.index(sysv)
        if not 0 <= number < 1 << 31:
            raise errors.ArgumentError(f"sysv: {number} is no number of a segment; ipcs -m shows them")
        start, stop = _part(where)
        return SharedLock(_farpage.lock_segment(number, start, stop, bool(pinned)))
    if isinstance(memory, (SharedMemory, SharedArray)):
        raise errors.ArgumentError(
            "the host kernel pages this memory, and locks it by itself: call pin() of the SharedMemory"
        )
    name = memory.name if isinstance(memory, shared_memory.SharedMemory) else memory
    opened = _open(name) if isinstance(name, str) else None
    try:
        # What has fileno() may be closed with its last reference, which `memory` is perhaps.
        number = memory.fileno() if hasattr(memory, "fileno") else memory
        try:
            fd = operator.index(number) if opened is None else opened
        except TypeError:
            raise errors.ArgumentError(
                f"{type(memory).__name__} is no shared memory; give a SharedMemory, its name, or a descriptor"
            ) from None
        try:
            size = os.fstat(fd).st_size
        except OSError as why:
            raise errors.ArgumentError(f"memory: {fd} is no open descriptor; give one of shared memory") from why
        start, stop = (0, size) if where is None else _part(where)
        return SharedLock(_farpage.lock_file(fd, start, stop, bool(pinned)))
    finally:
        if opened is not None:
            os.close(opened)


def borrow_lock(name):
    """Has a share of a lock that another process of this user lends (`SharedLock.lend`): a `SharedLock`. It is locked
    until the last process that has a share has given it back or has ended.

    Raises `NotFound` when there is none of this name.
    """
    return SharedLock(_farpage.borrow_lock(name))


def _open(name):
    name = name.removeprefix("/")
    if not name or "/" in name:
        raise errors.ArgumentError(f"memory: {name!r} is no name of shared memory; give that of a SharedMemory")
    path = f"/dev/shm/{name}"
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except PermissionError:
        # To be pinned it would have to be open for both, which is said then.
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise errors.NotFound(f"there is no shared memory '{name}'; ls /dev/shm shows what there is") from None


def _part(where):
    start, stop = map(operator.index, where)
    if not 0 <= start < stop < 1 << 64:
        raise errors.ArgumentError(f"where: {where!r} is no part of memory; give (start, stop)")
    return start, stop
