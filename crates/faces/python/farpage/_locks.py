"""Locked areas: memory that stays where it is while it is needed there."""

import operator

import numpy as np

from . import _farpage, errors


class Locked:
    """An area of memory that `lock_area` locked, until `unlock`, the end of a `with` block, or until
    it is let go of, whichever comes first. For a block inside another lock the area once more."""

    def __init__(self, area):
        self._area = area

    def __repr__(self):
        state = "" if self.is_locked else ", given back"
        return f"<farpage.Locked{state}>"

    def __enter__(self):
        if not self.is_locked:
            raise errors.LockError("cannot use a lock that was given back; lock the area again")
        return self

    def __exit__(self, *_):
        self.unlock()

    @property
    def is_locked(self):
        """False once it was given back, and in a child of fork."""
        return self._area.is_locked

    @property
    def range(self):
        """Addresses of its first page and of what follows its last: a pair."""
        return self._area.range()

    def check(self):
        """Raises `Stale`, with the first address, when something is not what was locked: it is mapped, locked, in
        memory, and, if it is pinned, in the frames that were pinned. Linux tells nobody when memory is
        discarded, or taken away by who shares it.

        Raises `Denied` when it is pinned and all is well but for the frames, which this process could not
        read when it was locked (CAP_SYS_ADMIN). Nothing is given back.
        """
        self._area.check()

    def frames(self):
        """The frame of each page, a list: physical addresses divided by 4096.

        Raises `Denied` without the privilege to read them (CAP_SYS_ADMIN). Unless the area is
        pinned they may be others the next moment.
        """
        return self._area.frames()

    def blocks(self, most=None):
        """The same as a list of pairs, a first frame and how many follow each other from there: what a
        device is given to gather from and scatter to. No pair is of more than `most` frames."""
        most = (1 << 64) - 1 if most is None else operator.index(most)
        if not 1 <= most < 1 << 64:
            raise errors.ArgumentError(f"most cannot be {most}; give 1 or more")
        return self._area.blocks(most)

    def unlock(self):
        """Gives the lock back. Once more is nothing."""
        self._area.unlock()


def view_of(memory, what):
    """What has the buffer protocol: arrays of any type, and of no dimension, do not have it by themselves. It is to
    be `what`: locked, say."""
    if isinstance(memory, np.ndarray) and memory.flags.forc:
        return memory.ravel(order="K").view(np.uint8)
    try:
        return memoryview(memory)
    except (TypeError, ValueError, BufferError) as why:
        raise errors.ArgumentError(
            f"{type(memory).__name__} has no memory that can be {what}; give an array, or what has the buffer protocol"
        ) from why


def lock_area(memory, *, pinned=False):
    """Has the memory of an array, or anything with the buffer protocol, stay in RAM: a `Locked`.

    Its pages are there when this returns, and none is paged out until the lock is given back. With
    `pinned=True` their frames stay, too: nothing that Linux does moves them, which is what devices need
    that know memory by its physical address. Areas may overlap and nest, and be given back in any
    order.

    Raises `ArgumentError` for memory that cannot be locked, and says which and why; `KernelError`
    where a limit does not allow it: which, its value, and how to raise it; `Unsupported` without an
    io_uring to pin with. Then nothing of it is locked.

    >>> a = np.zeros(1000)
    >>> with fp.lock_area(a) as locked:
    ...     locked
    <farpage.Locked>
    >>> locked
    <farpage.Locked, given back>
    """
    if not isinstance(pinned, (bool, np.bool_)):
        raise errors.ArgumentError(f"pinned cannot be {pinned!r}; give True or False")
    return Locked(_farpage.Area(view_of(memory, "locked"), bool(pinned)))
