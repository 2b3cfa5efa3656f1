"""Shared memory by name, as `multiprocessing.shared_memory` has it."""

import os
import secrets
import sys
import threading
import weakref

from . import _farpage, errors
from ._options import parse_size

# Memory of the host kernel's that is mapped here, and what it is called.
_open_here = weakref.WeakKeyDictionary()
# Held while the host kernel is talked to, and over a fork: a child finds nothing half done.
talking = threading.RLock()
# What this process has made, until its name is taken away or it ends.
_made_here = {}


class SharedMemory:
    """A block of memory that processes share by name: in place of
    `multiprocessing.shared_memory.SharedMemory`, and of `/dev/shm`.

    It is kept by the host kernel (`farpage up`), may be larger than memory, and is gone when the
    last process that made or has it is, however that ended: nothing leaks.

    `name`: of an existing block, or of a new one with `create=True`, which gets one of its own
    without. `size`: bytes of a new one, or text such as '2G'. `track` is ignored: nothing has to
    be tracked. `ram`: what it may take of the host kernel's memory, in the whole host, from now on
    (bytes or text, at least 1 MiB); for who made it, and root.

    Raises `Exists` (a `FileExistsError`), `NotFound` (a `FileNotFoundError`), `Unreachable` when no
    host kernel runs, `ArgumentError` for what is no name or no size.

    >>> shm = fp.SharedMemory(name="grid", create=True, size="16M")
    >>> grid = np.ndarray((2048, 1024), "f8", buffer=shm.buf)
    >>> grid[5] = 1
    >>> other = fp.SharedMemory(name="grid")           # in another process
    >>> float(np.ndarray((2048, 1024), "f8", buffer=other.buf).sum())
    1024.0
    >>> del grid
    >>> shm.unlink(), other.close(), shm.close()
    (None, None, None)
    """

    def __init__(self, name=None, create=False, size=0, *, track=True, ram=None):
        self._memory = self._buf = None
        self._pinned = {}
        size = parse_size(size)
        ram = None if ram is None else parse_size(ram)
        if name is not None and not isinstance(name, str):
            raise errors.ArgumentError(f"name: {name!r} is no text; give a name")
        if name == "":
            raise errors.ArgumentError("name: it is empty; give one, or None for one of its own")
        if create:
            if size == 0:
                raise errors.ArgumentError("size: a new block needs one; give bytes, or '2G'")
            with talking:
                self._name, self._memory = _create(name, size)
                _made_here[self._name] = self._memory.hold()
        elif name is None:
            raise errors.ArgumentError("name: give that of a block, or create=True for a new one")
        else:
            with talking:
                self._name, self._memory = name, _farpage.shared_open(name)
        if ram is not None:
            try:
                with talking:
                    self._memory.set_ram(ram)
            except errors.Error:
                if create:
                    self.unlink()
                self.close()
                raise
        self._size, self._buf = self._memory.size, memoryview(self._memory)
        share_over_fork(self._name, self._memory)

    @property
    def buf(self):
        """The memory, as bytes that can be written to; None when it is closed."""
        return self._buf

    @property
    def name(self):
        """Its name."""
        return self._name

    @property
    def size(self):
        """Its size in bytes."""
        return self._size

    def close(self):
        """Unmaps it here. Raises `BufferError` while views of `buf` exist.

        As with the standard library's, `np.ndarray(buffer=shm.buf)` is no view that it knows of:
        let go of such arrays before, or use `np.frombuffer`.
        """
        if self._buf is not None:
            self._buf.release()
            self._buf = None
        if self._memory is not None:
            with talking:
                self._pinned.clear()
                self._memory.close()
            self._memory = None

    def pin(self, where=None):
        """Brings bytes in and keeps them in memory until `unpin`, `close`, or the process ends.

        `where`: `(start, stop)` in bytes; without, all. Raises `KernelError` for more than half of
        what it, its user and all shared memory may take.

        >>> shm = fp.SharedMemory(create=True, size="8M")
        >>> shm.pin((0, 4096))
        >>> shm.unpin((0, 4096))
        """
        start, stop = where or (0, self._size)
        if not 0 <= start < stop <= self._size:
            raise errors.ArgumentError(
                f"where: {where!r} is no part of {self._size} bytes; give (start, stop)"
            )
        with talking:
            wire = self._memory.wire(start, stop - start)
        self._pinned.setdefault((start, stop), []).append(wire)

    def unpin(self, where=None):
        """Lets pinned bytes leave again; `where` as it was given to `pin`."""
        where = tuple(where or (0, self._size))
        wires = self._pinned.get(where)
        if not wires:
            raise errors.ArgumentError(f"where: {where!r} is not pinned; give what pin was given")
        with talking:
            wires.pop()

    def unlink(self):
        """Takes its name away: it is gone when nobody has it any more."""
        with talking:
            _farpage.shared_unlink(self._name)
            _made_here.pop(self._name, None)

    def __reduce__(self):
        return SharedMemory, (self._name, False, self._size)

    def __repr__(self):
        return f"SharedMemory({self._name!r}, size={self._size})"

    def __del__(self):
        try:
            self.close()
        except (BufferError, AttributeError):
            pass  # what uses it keeps it


def _create(name, size):
    """A new block's name and memory."""
    if name is not None:
        return name, _farpage.shared_create(name, size)
    while True:
        name = f"psm_{secrets.token_hex(4)}"
        try:
            return name, _farpage.shared_create(name, size)
        except errors.Exists:
            pass


def share_over_fork(name, memory):
    """Children of fork have `memory`, too."""
    _open_here[memory] = name


def _after_fork():
    talking.release()
    for memory, name in list(_open_here.items()):
        try:
            memory.after_fork()
        except errors.Error as error:
            print(f"farpage: a child of fork cannot use '{name}': {error}", file=sys.stderr)


def _before_fork():
    talking.acquire()
    for memory in list(_open_here):
        try:
            memory.before_fork()
        except errors.Error:
            pass  # the child will say so, should it need it, or it is closed


os.register_at_fork(
    before=_before_fork, after_in_parent=talking.release, after_in_child=_after_fork
)
