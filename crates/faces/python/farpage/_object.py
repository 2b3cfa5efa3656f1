"""Mapped memory, and how another process comes by it."""

import atexit
import io
import operator
import os
import sys
import weakref

import numpy as np

from . import _farpage, errors
from ._options import parse_size
from ._progress import Bar, size_text

_open_objects = weakref.WeakSet()


class Object(_farpage.Memory):
    """Mapped memory: the bytes of a source, read when they are touched.

    It has the buffer protocol: `memoryview(obj)`, `np.frombuffer(obj, ...)`. All offsets are in
    bytes. Methods raise what the source's failure is: see `farpage.errors`; and `ArgumentError`
    for ranges that do not lie inside, and after `close`.

    >>> with fp.open("big.bin") as obj:
    ...     obj.prefetch((0, 4096)), len(obj[:10]), memoryview(obj)[:2].tobytes()
    (4096, 10, b'\\x00\\x00')
    """

    def __new__(cls, memory, recipe=None, server=None):
        return super().__new__(cls, memory)

    def __init__(self, memory, recipe, server=None):
        self._recipe, self._server = recipe, server
        _open_objects.add(self)
        if not self.writable:
            # Also for workers that are forked before it is sent.
            _known.setdefault(_key(recipe, self.version), self)

    @property
    def nbytes(self):
        """Its size in bytes."""
        return self.size

    def __len__(self):
        return self.size

    def __getitem__(self, key):
        """Copies bytes out. Unlike reading an array, this raises when bytes cannot be had."""
        size = self.size
        if isinstance(key, slice):
            start, stop, step = key.indices(size)
            if step != 1:
                raise errors.ArgumentError("bytes are taken in steps of 1; slice the result")
            return super().read(start, max(start, stop))
        at = self._byte(key)
        return super().read(at, at + 1)[0]

    def _byte(self, key):
        try:
            at = operator.index(key)
        except TypeError:
            raise errors.ArgumentError(
                f"{key!r} is no byte and no range of '{self.name}'; give a number or a slice"
            ) from None
        at = at + self.size if at < 0 else at
        if not 0 <= at < self.size:
            raise IndexError(f"byte {key} of {self.size}")
        return at

    def __setitem__(self, key, value):
        """Writes as many bytes as the range has. Unlike writing to an array, this raises when a
        page around them cannot be had.

        >>> with fp.open("big.bin", mode="r+") as obj:
        ...     obj[0:4] = b"head"
        """
        if not self.writable:
            raise errors.ArgumentError(
                f"'{self.name}' is open for reading; open it with mode='r+', or 'c' for a copy"
            )
        if not isinstance(key, slice):
            at = self._byte(key)
            key, value = slice(at, at + 1), bytes((value,))
        start, stop, step = key.indices(self.size)
        if step != 1:
            raise errors.ArgumentError("bytes are set in steps of 1; give a range without a step")
        bytes_there, value = max(0, stop - start), memoryview(value)
        if not value.c_contiguous:
            raise errors.ArgumentError("the bytes do not lie in one piece; give a copy of them")
        value = value.cast("B") if value.nbytes else b""
        if len(value) != bytes_there:
            raise errors.ArgumentError(
                f"{len(value)} bytes are not the {bytes_there} of the range; give as many"
            )
        super().prefetch(start, start + bytes_there)
        memoryview(self)[start : start + bytes_there] = value

    def _range(self, where):
        """First byte and one past the last of: nothing, a slice, a range, a pair, an array."""
        size = self.size
        if where is None:
            return 0, size
        if isinstance(where, slice):
            start, stop, step = where.indices(size)
            if step == 1:
                return start, max(start, stop)
        elif isinstance(where, range) and where.step == 1:
            return where.start, max(where.start, where.stop)
        elif isinstance(where, tuple) and len(where) == 2:
            return tuple(parse_size(byte, "range:") for byte in where)
        elif isinstance(where, np.ndarray):
            low, high = _bounds(where)
            base, _ = _bounds(bytes_of(self))
            if base <= low and high <= base + size:
                return low - base, high - base
            raise errors.ArgumentError(f"the array does not lie in '{self.name}'; give one of its")
        raise errors.ArgumentError(
            f"{where!r} is no range; give a slice, a range, (start, stop) in bytes, or an array"
        )

    def prefetch(self, where=None, progress=None):
        """Brings bytes in before they are touched, in parallel; returns how many are in memory.

        `where`: a slice or pair of byte offsets, or an array that lies in the object; all of it
        without. At most half of the budget is filled. `progress`: True or False for a bar, by
        default on a terminal and in notebooks; or a function that gets the bytes so far.

        >>> obj = fp.open("big.bin")
        >>> obj.prefetch(slice(0, 8192)), obj.residency()[0][0]
        (8192, 0)
        """
        start, stop = self._range(where)
        if progress not in (None, True, False) and not callable(progress):
            raise errors.ArgumentError(
                f"progress cannot be {progress!r}; give True, False, or a function that gets the "
                "bytes so far"
            )
        if callable(progress):
            return super().prefetch(start, stop, progress)
        if progress is False:
            return super().prefetch(start, stop)
        bar = Bar(f"farpage: {os.path.basename(self.name)}", stop - start)
        try:
            return super().prefetch(start, stop, bar.update)
        finally:
            bar.close()

    def drop(self, where=None):
        """Lets bytes go from memory; what was written is written back before.

        `where` as of `prefetch`. Raises `NotWritten`.

        >>> obj = fp.open("big.bin", eager=True)
        >>> obj.drop()
        >>> obj.residency()
        []
        """
        super().drop(*self._range(where))

    def pin(self, where=None):
        """Brings bytes in and keeps them until `unpin`.

        `where` as of `prefetch`. Raises `KernelError` for more than half of the budget.

        >>> obj = fp.open("big.bin", ram="8M")
        >>> obj.pin((0, 4096))
        >>> obj.unpin((0, 4096))
        """
        super().pin(*self._range(where))

    def unpin(self, where=None):
        """Lets pinned bytes leave again; `where` as of `prefetch`."""
        super().unpin(*self._range(where))

    def record(self, path):
        """Records from now on which pages are asked for, in the file `path`, for `replay=`.

        >>> obj = fp.open("big.bin")
        >>> obj.record("pages.trace")
        """
        super().record(os.fspath(path))

    def close(self):
        """Writes back and unmaps. Refused while arrays or views of it exist.

        Raises `ArgumentError` while they do, `NotWritten` when the source does not take what was
        written; then it stays open. Closing it again does nothing.
        """
        if not self.closed:
            if self.writable and not self.is_copy:
                self.flush()
            super().close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self.closed:
            return
        if self.writable:
            self.flush()
        try:
            self.close()
        except errors.ArgumentError:
            pass  # arrays that live on keep it

    @property
    def is_copy(self):
        """True when what is written to it stays in this process (`mode='c'`)."""
        return self._recipe.options.get("mode") == "c"

    def __reduce__(self):
        if self.writable:
            raise errors.ArgumentError(
                f"'{self.name}' is a private copy, which only this process has; send arrays of it, "
                "which are copied, or open it with mode='r'"
                if self.is_copy
                else f"'{self.name}' is open for writing and cannot be sent to another process: "
                "both would overwrite each other's pages; flush it and open it with mode='r' there"
            )
        return _reopened, (self._recipe, self.version)

    def __repr__(self):
        if self.closed:
            return "<farpage.Object, closed>"
        stats = self.stats()
        there = size_text(stats["resident_bytes"])
        return f"<farpage.Object '{self.name}', {size_text(self.nbytes)}, {there} in memory>"


def _bounds(array):
    """First address of an array and one past the last."""
    found = getattr(np.lib, "array_utils", np)  # where NumPy 2 has it, and NumPy 1
    return found.byte_bounds(array)


def bytes_of(obj):
    """All bytes of an object, as an array that keeps it mapped."""
    return np.frombuffer(obj, np.uint8) if obj.nbytes else np.empty(0, np.uint8)


class Recipe:
    """How an object was opened, so that another process can open it.

    `source`: a list of (address, offset, size), as of `places_of`, or Python code.
    """

    def __init__(self, source, options, spec=None):
        self.source, self.options, self.spec = source, options, spec

    def __getstate__(self):
        """For another process: where it is from everywhere, and without traces."""
        state = dict(self.__dict__)
        left_out = ("record", "replay")
        state["options"] = {k: v for k, v in self.options.items() if k not in left_out}
        if isinstance(self.source, list):
            state["source"] = [(_absolute(address), *part) for address, *part in self.source]
        return state

    def open(self):
        """The object, the kind of file, and its arrays."""
        options = dict(self.options)
        if not isinstance(self.source, list):
            return _served(self.source, self, options), "raw", []
        if self.spec == "load":
            memory, kind, entries = _farpage.load(self.source, options)
        elif self.spec is not None:
            memory, kind, entries = _farpage.raw(self.source, *self.spec, options)
        else:
            memory, kind, entries = _farpage.open(self.source, options), "raw", []
        return Object(memory, self), kind, entries


def _absolute(address):
    return address if "://" in address else os.path.abspath(address)


# What this process has opened for others, or sent to them, so that it is mapped once.
_known = weakref.WeakValueDictionary()


def _key(recipe, version):
    state = recipe.__getstate__()
    return repr((state["source"], sorted(state["options"].items()), recipe.spec)), version


def _reopened(recipe, version):
    key = _key(recipe, version)
    found = _known.get(key)
    if found is not None and not found.closed:
        return found
    try:
        obj, _, _ = recipe.open()
        if obj.version != version:
            raise errors.Changed(
                f"'{obj.name}' has changed since it was sent here: it was {version} and is "
                f"{obj.version}; open it again"
            )
    except errors.Error as error:
        process = sys.modules.get("multiprocessing.process")
        if process is None or process.parent_process() is None:
            raise
        return Unopened(error)
    _known[key] = obj
    return obj


class Unopened:
    """What a worker gets instead of what could not be opened there: whatever is done with it raises
    why. (A worker that raised while it unpickles would never answer for that task.)"""

    def __init__(self, error):
        vars(self)["_error"] = error

    def _raise(self, *args, **kwargs):
        raise vars(self)["_error"]

    __getattr__ = __setattr__ = __getitem__ = __setitem__ = __len__ = __iter__ = _raise
    __array__ = __array_ufunc__ = __array_function__ = __bool__ = __float__ = __int__ = _raise
    __contains__ = __reduce_ex__ = __enter__ = __exit__ = _raise

    def __repr__(self):
        # What could not be sent back is shown in the error.
        return f"<not opened here: {vars(self)['_error']}>"


for _name in "eq ne lt le gt ge neg abs add sub mul truediv floordiv mod pow matmul".split():
    for _kind in ("", "r", "i"):
        setattr(Unopened, f"__{_kind}{_name}__", Unopened._raise)


def _served(source, recipe, options):
    """An object whose bytes Python code answers for."""
    # Here: what it needs in turn takes milliseconds that others would wait for.
    from . import _server

    size, offset = options.pop("size", None), options.pop("offset", None)
    writable = options.get("mode") in ("r+", "w+")
    if isinstance(source, io.TextIOBase):
        raise errors.ArgumentError("a file of text has no bytes to map; open it with mode 'rb'")
    if hasattr(source, "seek") and hasattr(source, "read"):
        name = getattr(source, "path", None) or getattr(source, "name", None)
        name = _server.without_credentials(str(name or type(source).__name__)).split("?")[0]
        start = offset or 0
        end = _length(source) if size is None else start + size
        if start > end:
            raise errors.ArgumentError(
                f"offset {start} is not inside '{name}', which has {end}; give one inside"
            )
        handler = _server.FileObject(source, writable)
    elif callable(source):
        name = getattr(source, "__qualname__", None) or type(source).__name__
        if size is None:
            raise errors.ArgumentError("a function has no size of its own; give size=")
        if writable:
            raise errors.ArgumentError("a function only reads; open it with mode='r' or 'c'")
        if offset is not None:
            raise errors.ArgumentError("a function is asked from byte 0 on; add the offset in it")
        start, end = 0, size
        handler = _server.Callback(source)
    else:
        raise errors.ArgumentError(
            f"cannot open {type(source).__name__}; give a path, an address, a list of them, a file "
            "object or a function with size="
        )
    server = _server.Server(handler)
    try:
        control = server.control.fileno()
        memory = _farpage.open_served(control, name, (start, end), writable, options)
    finally:
        server.opened()
    return Object(memory, recipe, server)


def _length(file):
    """Bytes of a file; its position stays."""
    at = file.tell()
    length = file.seek(0, os.SEEK_END)
    file.seek(at)
    return length


@atexit.register
def _flush_all():
    """What was written reaches its files also when the interpreter ends with arrays alive."""
    for obj in list(_open_objects):
        try:
            if not obj.closed:
                obj.flush()
        except errors.Error as error:
            print(f"farpage: {error}", file=sys.stderr)
