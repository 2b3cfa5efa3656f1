"""Registrations: memory that stays registered with a device after its use, and is found again."""

import operator
import weakref

from . import _farpage, errors
from ._locks import view_of
from ._options import parse_size

_REGIONS = 16384
_REGIONS_MOST = 1 << 24
_ALL = (1 << 64) - 1
_WHAT = "registered"


class Registered:
    """Memory that a cache has registered, until `put`, the end of a `with` block, or until it is let go of,
    whichever comes first. The array, or what else it was got of, is not closed or resized meanwhile."""

    __slots__ = ("_held",)

    def __init__(self, held):
        self._held = held

    def __repr__(self):
        state = "" if self._held.is_held else ", put back"
        return f"<farpage.Registered{state}>"

    def __enter__(self):
        _ = self._held.token
        return self

    def __exit__(self, *_):
        self._held.put()

    @property
    def token(self):
        """What it is known by, an int: what `register` returned, or the index of the ring's buffer."""
        return self._held.token

    @property
    def range(self):
        """Addresses of the first byte that is registered and of what follows the last: a pair. All that was asked
        for, in whole pages of 4096 bytes, and perhaps more."""
        return self._held.range

    @property
    def is_gone(self):
        """True when some of its memory went away since it was got (`madvise`, a mapping over it), or more was
        registered together with it: the device has what was there, and it is to be got again."""
        return self._held.is_gone

    @property
    def is_held(self):
        """False once it was put back, and in a child of fork."""
        return self._held.is_held

    def put(self):
        """Puts it back: from now on it may be given up for others. Once more is nothing."""
        self._held.put()


class _All(list):
    """Several `Registered`, which are put back together at the end of a `with` block."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for registered in self:
            registered.put()


class Registrations:
    """A cache of registrations. What is `get`, used and put back stays registered, and is found again when the same
    memory, or a part of it, is asked for, until its memory goes away or others need the place.

    Without arguments memory is pinned: its frames stay (with an io_uring of the process, on which nothing is sent).
    `Registrations(register, deregister)` is of a device of the program's: `register(address, bytes)` is called once
    for whole pages and returns what they are known by, an int from 0 to 2**64 - 1; `deregister(address, bytes, token)`
    is called once for each of these, perhaps by a thread of the library, and also when the memory has gone. Neither
    may use a cache. `Registrations(ring=fd, buffers=n)` is of the first n buffers of an io_uring of the program's,
    whose table of buffers was registered sparse: what is there is replaced. A ring has one cache at a time.

    `limit`: bytes that are registered at most, a number or text such as '1G'; `regions`: how many at most, 16384
    without, or all of the ring's buffers. What was not used for longest goes first, and what is held stays.

    Raises `Unsupported` where Linux does not tell when memory goes away (userfaultfd), and `KernelError` for more than
    64 caches of a process. A child of fork has nothing registered, and makes a cache of its own.

    >>> buffer = np.zeros(1000)
    >>> with fp.Registrations() as cache:
    ...     cache.get(buffer).put()
    ...     with cache.get(buffer[:10]) as registered:
    ...         registered.is_gone, cache.stats()["made"]
    (False, 1)
    """

    def __init__(
        self, register=None, deregister=None, *, ring=None, buffers=None, limit=None, regions=None
    ):
        functions = _functions(register, deregister)
        if (ring is None) != (buffers is None) or (ring is not None and functions):
            raise errors.ArgumentError(
                "a ring comes with its number of buffers, and without functions; give ring= and buffers=, or neither"
            )
        if ring is not None:
            most = _count(buffers, "buffers", _REGIONS)
            ring = (_descriptor(ring), most)
        else:
            most = _REGIONS_MOST
        usual = min(most, _REGIONS)
        regions = usual if regions is None else _count(regions, "regions", most)
        limit = _ALL if limit is None else parse_size(limit, "limit")
        self._cache = _farpage.RegCache(functions, ring, limit, regions)
        # Also at the end of the interpreter, while its functions still work.
        self._closes = weakref.finalize(self, self._cache.close)

    def __repr__(self):
        if self._cache.is_closed:
            return "<farpage.Registrations, closed>"
        return "<farpage.Registrations>"

    def __enter__(self):
        self._cache.sums()
        return self

    def __exit__(self, *_):
        self.close()

    def get(self, memory):
        """The memory of an array, or of anything with the buffer protocol, registered: as before, or from now on.
        A `Registered`.

        What overlaps becomes one region, but for neighbours with one page in common. Raises `ArgumentError` for memory
        that cannot be registered, and says why; `KernelError` where the limits of the cache, or Linux's, do not allow it;
        `Unsupported` for memory that is not watched, such as Farpage's own: `lock_area` that. What `register` raises is raised here; after MemoryError and
        OSError with ENOMEM or ENOSPC it is first asked again when others were given up.
        """
        return Registered(self._cache.get(view_of(memory, _WHAT)))

    def get_all(self, memories):
        """As `get`, of several at once, for lists of scatter and gather: a list in their order, or nothing is had of
        it. What overlaps, or follows each other, is registered as one. Each is put back by itself, or all at the end
        of a `with` block."""
        held = self._cache.get_all([view_of(memory, _WHAT) for memory in memories])
        return _All(map(Registered, held))

    def put(self, registered):
        """The same as `registered.put()`."""
        registered.put()

    def forget(self, memory):
        """Nothing of this memory is found again: for what goes away unseen, such as a shared memory file that is cut
        off or punched by descriptor. What is held stays registered until it is put back."""
        self._cache.forget(view_of(memory, _WHAT))

    def stats(self):
        """A dict: `regions` that are registered, their `bytes`, and how many registrations were `made`, `evicted` for
        others, and `gone`: with their memory, or into a larger one."""
        return dict(zip(("regions", "bytes", "made", "evicted", "gone"), self._cache.sums()))

    def close(self):
        """Gives up all that is registered; what is held, when it is put back. Once more is nothing."""
        self._closes()


def _functions(register, deregister):
    if register is None and deregister is None:
        return None
    if not callable(register) or not callable(deregister):
        raise errors.ArgumentError(
            "a device has a function that registers and one that deregisters; give both, or none"
        )
    return register, deregister


def _descriptor(ring):
    number = ring.fileno() if hasattr(ring, "fileno") else ring
    try:
        return operator.index(number)
    except TypeError:
        raise errors.ArgumentError(f"ring cannot be {ring!r}; give the descriptor of an io_uring") from None


def _count(count, what, most):
    try:
        number = operator.index(count)
    except TypeError:
        number = 0
    if not 1 <= number <= most:
        raise errors.ArgumentError(f"{what} cannot be {count!r}; give a number from 1 to {most}")
    return number
