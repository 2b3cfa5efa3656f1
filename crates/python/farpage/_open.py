"""`open`, `load`, and what they return."""

import atexit
import os
import weakref

import numpy as np

from . import _farpage, _server, errors
from ._progress import Bar, size_text

_UNITS = {"": 1, "B": 1}
_UNITS.update({unit: 1024 ** (i + 1) for i, unit in enumerate("KMGT")})
_UNITS.update({unit + "iB": 1024 ** (i + 1) for i, unit in enumerate("KMGT")})
_UNITS.update({unit + "B": 1000 ** (i + 1) for i, unit in enumerate("KMGT")})

_CACHE_LIMIT = 10 << 30
# Types that NumPy does not have, and what they are seen as when nothing is translated.
_FOREIGN = {"bf16": "<u2", "f8_e4m3": "|u1", "f8_e5m2": "|u1"}
_open_objects = weakref.WeakSet()


def parse_size(size, what="size"):
    """Bytes of a size: a number, or text such as '512M', '1.5G', '500MB' (of 1000)."""
    if isinstance(size, (int, np.integer)) and not isinstance(size, bool):
        if size >= 0:
            return int(size)
    elif isinstance(size, str):
        text = size.strip()
        number = text.rstrip("KMGTiB ")
        unit = text[len(number) :].strip()
        try:
            if unit in _UNITS:
                value = float(number) * _UNITS[unit]
                if value >= 0:
                    return int(value)
        except (ValueError, OverflowError):
            pass
    raise errors.ArgumentError(f"{what} {size!r} is no size; give bytes, or text such as '512M'")


def set_ram(size):
    """Sets what all objects that are opened without `ram=` keep in memory together."""
    _farpage.set_ram(parse_size(size, "ram"))


def cache_folder():
    """Where `cache=True` keeps what is fetched."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.environ.get("FARPAGE_CACHE") or os.path.join(base, "farpage")


def _cache(cache):
    if cache is None:
        cache = bool(os.environ.get("FARPAGE_CACHE"))
    if cache is False:
        return None
    if cache is True:
        return cache_folder(), _CACHE_LIMIT
    if isinstance(cache, tuple):
        folder, limit = cache
        return os.fspath(folder), parse_size(limit, "cache limit")
    return os.fspath(cache), _CACHE_LIMIT


_KEYWORDS = frozenset(
    "mode ram cache on_failure timeout headers decompress record replay size "
    "native bf16_as_f32 f16_as_f32".split()
)


def _options(**options):
    """Checks options and gives them the form that the native part wants."""
    unknown = set(options) - _KEYWORDS
    if unknown:
        raise TypeError(f"unknown options: {', '.join(sorted(unknown))}")
    for name in ("ram", "size"):
        if options.get(name) is not None:
            options[name] = parse_size(options[name], name)
    options["cache"] = _cache(options.get("cache"))
    if options.get("headers"):
        headers = options["headers"]
        options["headers"] = list(headers.items() if hasattr(headers, "items") else headers)
    for name in ("record", "replay"):
        if options.get(name) is not None:
            options[name] = os.fspath(options[name])
    return {name: value for name, value in options.items() if value is not None}


class Object:
    """Mapped memory: the bytes of a source, read when they are touched.

    It has the buffer protocol: `memoryview(obj)`, `np.frombuffer(obj, ...)`.
    """

    def __init__(self, memory, recipe, server=None):
        self._memory, self._recipe, self._server = memory, recipe, server
        _open_objects.add(self)

    def __buffer__(self, flags):
        return memoryview(self._memory)

    @property
    def name(self):
        """What messages call it."""
        return self._memory.name

    @property
    def writable(self):
        """True when it can be written to."""
        return self._memory.writable

    @property
    def version(self):
        """What tells its version from others of the same name; None when nothing does."""
        return self._memory.version

    @property
    def closed(self):
        """True after `close`."""
        return self._memory.closed

    @property
    def nbytes(self):
        """Its size in bytes."""
        return self._memory.size

    def __len__(self):
        return self._memory.size

    def __getitem__(self, key):
        """Copies bytes out. Unlike reading an array, this raises when bytes cannot be had."""
        size = self._memory.size
        if isinstance(key, slice):
            start, stop, step = key.indices(size)
            if step != 1:
                raise errors.ArgumentError("bytes are taken in steps of 1; slice the result")
            return self._memory.read(start, max(start, stop))
        at = key + size if key < 0 else key
        if not 0 <= at < size:
            raise IndexError(f"byte {key} of {size}")
        return self._memory.read(at, at + 1)[0]

    def _range(self, where):
        """First byte and one past the last of: nothing, a slice, a range, a pair, an array."""
        size = self._memory.size
        if where is None:
            return 0, size
        if isinstance(where, slice):
            start, stop, step = where.indices(size)
            if step == 1:
                return start, max(start, stop)
        elif isinstance(where, range) and where.step == 1:
            return where.start, max(where.start, where.stop)
        elif isinstance(where, tuple) and len(where) == 2:
            return where
        elif isinstance(where, np.ndarray):
            low, high = _bounds(where)
            base, _ = _bounds(_bytes_of(self))
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
        """
        start, stop = self._range(where)
        if callable(progress):
            return self._memory.prefetch(start, stop, progress)
        if progress is False:
            return self._memory.prefetch(start, stop)
        bar = Bar(f"farpage: {os.path.basename(self.name)}", stop - start)
        try:
            return self._memory.prefetch(start, stop, bar.update)
        finally:
            bar.close()

    def drop(self, where=None):
        """Lets bytes go from memory; what was written is written back before."""
        self._memory.drop(*self._range(where))

    def flush(self):
        """Writes back what was written; it is durable when this returns."""
        self._memory.flush()

    def pin(self, where=None):
        """Brings bytes in and keeps them until `unpin`. Half of the budget can be pinned."""
        self._memory.pin(*self._range(where))

    def unpin(self, where=None):
        """Lets pinned bytes leave again."""
        self._memory.unpin(*self._range(where))

    def stats(self):
        """What it takes and has cost: a dict of numbers; sizes in bytes."""
        return self._memory.stats()

    def residency(self):
        """Which bytes are in memory: pairs (start, stop), in order."""
        return self._memory.residency()

    def record(self, path):
        """Records from now on which pages are asked for, for `replay=`."""
        self._memory.record(os.fspath(path))

    def close(self):
        """Writes back and unmaps. Refused while arrays or views of it exist."""
        if not self._memory.closed:
            self._memory.close()
        if self._server is not None:
            self._server.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self._memory.closed:
            return
        if self.writable:
            self.flush()
        try:
            self.close()
        except errors.ArgumentError:
            pass  # arrays that live on keep it

    def __reduce__(self):
        if self.writable and self._recipe.options.get("mode") != "c":
            raise errors.ArgumentError(
                f"'{self.name}' is open for writing and cannot be sent to another process: both "
                "would overwrite each other's pages; flush it and open it with mode='r' there"
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


class _Recipe:
    """How an object was opened, so that another process can open it."""

    def __init__(self, address, options, spec=None):
        self.address, self.options, self.spec = address, options, spec

    def open(self):
        """The object, the kind of file, and its arrays."""
        options = dict(self.options)
        if not isinstance(self.address, str):
            return _served(self.address, self, options), "raw", []
        if self.spec == "load":
            memory, kind, entries = _farpage.load(self.address, options)
        elif self.spec is not None:
            memory, kind, entries = _farpage.raw(self.address, *self.spec, options)
        else:
            memory, kind, entries = _farpage.open(self.address, options), "raw", []
        return Object(memory, self), kind, entries


# What this process has opened for others, so that it is mapped once.
_received = {}


def _reopened(recipe, version):
    key = (repr((recipe.address, sorted(recipe.options.items()), recipe.spec)), version)
    found = _received.get(key)
    found = found() if found is not None else None
    if found is not None and not found.closed:
        return found
    if isinstance(recipe.address, str):
        options = {k: v for k, v in recipe.options.items() if k not in ("record", "replay")}
        recipe = _Recipe(recipe.address, options, recipe.spec)
    obj, _, _ = recipe.open()
    if obj.version != version:
        raise errors.Changed(
            f"'{obj.name}' has changed since it was sent here: it was {version} and is "
            f"{obj.version}; open it again"
        )
    _received[key] = weakref.ref(obj)
    return obj


class Array(np.ndarray):
    """An array that lies in an `Object`: a NumPy array that is pickled by reference."""

    def __array_finalize__(self, base):
        self.object = None
        owner = getattr(base, "object", None)
        if owner is not None and np.may_share_memory(self, base):
            self.object = owner

    def __array_wrap__(self, array, context=None, return_scalar=False):
        array = np.ndarray.__array_wrap__(self, array, context)
        if self is array or type(self) is not Array:
            return array
        if return_scalar or array.shape == ():
            return array[()]
        return array.view(np.ndarray)

    def __reduce__(self):
        if self.object is None or self.object.closed:
            return np.asarray(self).__reduce__()
        memory = _bytes_of(self.object)
        offset = self.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
        return _array, (self.object, self.dtype, self.shape, offset, self.strides)

    def flush(self):
        """As `Object.flush`."""
        if self.object is not None:
            self.object.flush()

    def prefetch(self, progress=None):
        """As `Object.prefetch`, of this array."""
        return self.object.prefetch(self, progress) if self.object is not None else self.nbytes


def _bytes_of(obj):
    """All bytes of an object, as an array."""
    return np.frombuffer(obj._memory, np.uint8) if obj.nbytes else np.empty(0, np.uint8)


def _array(obj, dtype, shape, offset, strides=None, order="C"):
    # `frombuffer` holds on to the buffer, which keeps the memory mapped; `ndarray` would not.
    array = np.ndarray.__new__(Array, shape, dtype, _bytes_of(obj), offset, strides, order)
    array.object = obj
    return array


def _dtype(description):
    """NumPy's type of an entry."""
    if description in _FOREIGN:
        return np.dtype(_FOREIGN[description])
    if description.startswith(("[", "(")):
        import ast

        return np.dtype(ast.literal_eval(description))
    return np.dtype(description)


class Arrays(dict):
    """Arrays by name, and the `object` that they lie in."""

    def __init__(self, obj, items):
        super().__init__(items)
        self.object = obj

    def close(self):
        """Lets go of the arrays and closes the object."""
        self.clear()
        self.object.close()


def _presentation(dtype):
    """What `dtype` of `load` means."""
    if dtype is None:
        return {"native": True, "bf16_as_f32": True}
    if isinstance(dtype, str) and dtype == "stored":
        return {"native": False}
    if np.dtype(dtype) == np.float32:
        return {"native": True, "bf16_as_f32": True, "f16_as_f32": True}
    raise errors.ArgumentError(
        f"load cannot present arrays as {dtype!r}; leave dtype out, or give 'float32' or 'stored'"
    )


def load(address, *, dtype=None, eager=False, progress=None, **options):
    """Maps the arrays of a file: npy, npz (stored), safetensors or Arrow, wherever it is.

    Returns an array for npy and `Arrays` (a dict) for the others. Nothing is read but the header;
    what is touched comes in. `mode`: 'r', 'r+' or 'c' (a private copy). `ram`: how much of it may
    be in memory at a time. `dtype`: None presents every number as NumPy's own type (big-endian as
    native, bf16 as float32), 'float32' float16 too, 'stored' nothing. `eager`: brings all in
    first, as far as the budget allows. See `open` for the other options.
    """
    options = _options(**options, **_presentation(dtype))
    recipe = _Recipe(os.fspath(address), options, "load")
    obj, kind, entries = recipe.open()
    arrays = {}
    for name, description, shape, fortran, offset, _ in entries:
        order = "F" if fortran else "C"
        arrays[name] = _array(obj, _dtype(description), tuple(shape), offset, order=order)
    if eager:
        obj.prefetch(progress=progress)
    return arrays[""] if kind == "npy" else Arrays(obj, arrays)


def open(source, *, dtype=None, shape=None, size=None, eager=False, progress=None, **options):
    """Opens bytes as memory, or raw numbers as an array.

    `source`: a path, an address (http, https, s3, gs, az), a file object (fsspec's too), or a
    function `read(offset, length) -> bytes` with `size=`; Python code runs in a process of its
    own, because the thread that waits for a page may hold the interpreter lock.

    Without `dtype` it returns an `Object`; with it an array of `shape`, in which one dimension may
    be -1 (all there is). dtypes: NumPy's, '>f4' and the like, 'bf16', 'vax_f', 'vax_d', 'vax_g'.

    Options: `mode` 'r', 'r+' (writes back), 'w+' (makes the file), 'c' (a private copy).
    `ram` the most that is in memory at a time. `cache` True, a folder, or (folder, limit): keeps
    on the disk what is fetched. `on_failure` 'error', 'wait' or 'zero'. `timeout` seconds for
    which a far source is tried again. `headers` of HTTP requests. `decompress` gzip and zstd (by
    default by the name). `record` a file that gets the pages asked for, `replay` brings those of
    such a file in, in that order, in the background.
    """
    if shape is None and dtype is not None:
        shape = (-1,)
    if shape is not None and dtype is None:
        raise errors.ArgumentError("a shape needs a dtype; give one")
    served = not isinstance(source, (str, bytes, os.PathLike))
    address = source if served else os.fspath(source)
    spec = None
    if dtype is not None and not served:
        shape = tuple(int(n) for n in np.atleast_1d(shape))
        spec = (_description(dtype), list(shape))
    recipe = _Recipe(address, _options(size=size, **options), spec)
    obj, _, entries = recipe.open()
    if eager:
        obj.prefetch(progress=progress)
    if dtype is None:
        return obj
    if served:
        return _array(obj, dtype, _whole(obj, dtype, shape), 0)
    ((_, description, shape, _, offset, _),) = entries
    return _array(obj, _dtype(description), tuple(shape), offset)


def _description(dtype):
    """The native part's name of a type."""
    try:
        return np.dtype(dtype).str
    except TypeError:
        return str(dtype)


def _whole(obj, dtype, shape):
    """The shape with its -1 filled in."""
    shape = tuple(int(n) for n in np.atleast_1d(shape))
    fixed = int(np.prod([n for n in shape if n >= 0], dtype=object))
    item = np.dtype(dtype).itemsize
    if shape.count(-1) > 1 or min(shape, default=0) < -1:
        raise errors.ArgumentError(f"shape {shape} has more than one -1; give one at most")
    free = obj.nbytes // (item * fixed) if -1 in shape and fixed else 0
    whole = tuple(free if n == -1 else n for n in shape)
    needed = int(np.prod(whole, dtype=object)) * item
    if needed > obj.nbytes or (-1 in shape and needed != obj.nbytes):
        raise errors.ArgumentError(
            f"shape {shape} of {np.dtype(dtype)} takes {needed} bytes, and '{obj.name}' has "
            f"{obj.nbytes}; give a shape that fits"
        )
    return whole


def _served(source, recipe, options):
    """An object whose bytes Python code answers for."""
    size = options.pop("size", None)
    writable = options.get("mode") in ("r+", "w+")
    if hasattr(source, "seek") and hasattr(source, "read"):
        name = str(getattr(source, "path", None) or getattr(source, "name", None) or source)
        size = source.seek(0, os.SEEK_END) if size is None else size
        handler = _server.FileObject(source, writable)
    elif callable(source):
        name = getattr(source, "__qualname__", None) or type(source).__name__
        if size is None:
            raise errors.ArgumentError("a function has no size of its own; give size=")
        if writable:
            raise errors.ArgumentError("a function only reads; open it with mode='r' or 'c'")
        handler = _server.Callback(source)
    else:
        raise errors.ArgumentError(
            f"cannot open {type(source).__name__}; give a path, an address, a file object or a "
            "function with size="
        )
    server = _server.Server(handler)
    memory = _farpage.open_served(server.path, name, size, writable, options)
    return Object(memory, recipe, server)


@atexit.register
def _flush_all():
    """What was written reaches its files also when the interpreter ends with arrays alive."""
    for obj in list(_open_objects):
        try:
            if not obj.closed:
                obj.flush()
        except errors.Error as error:
            print(f"farpage: {error}", file=__import__("sys").stderr)
