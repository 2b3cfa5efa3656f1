"""`map_fd`: bytes of a file in memory."""

import operator
import os

import numpy as np

from . import _farpage, errors
from ._array import dtype_of
from ._object import Recipe
from ._options import checked, is_address, parse_size, places_of
from ._shared import SharedMemory

_TRANSLATED = ("bf16", "vax_f", "vax_d", "vax_g")


def map_fd(source, offset=0, length=None, *, shared=False, dtype=None, **options):
    """Maps a private copy of some bytes of a file, from any byte on: a NumPy array.

    `source`: a descriptor, a file object, a path, an address (`http://`, `s3://` and the like), or
    `shared:NAME`, shared memory of the host kernel, which is copied at once.
    `offset` and `length` are bytes, numbers or text such as '1M', and need not be multiples of
    anything; without `length` all from `offset` on is meant. What others write to the file later is
    not seen, and what is written to the array stays in this process.

    Up to a MiB is copied at once. More, of a file that nobody has open for writing, comes when it
    is touched, and whoever opens it for writing waits until the rest is copied to an unnamed file;
    of other files all is copied at once. What is at an address comes when it is touched; options
    are those of `open`: `headers`, `timeout`, `cache`, `on_failure`, `ram`.

    `shared=True` maps the bytes themselves: what is written is in the file, and what others write
    is seen. A descriptor or file object must be open for both, or the array is for reading only; a
    path is opened for both.

    `dtype`: NumPy's (uint8 without), '>f4' and the like, which are seen as they are; 'bf16',
    'vax_f', 'vax_d' and 'vax_g', which are presented as float32 and float64.

    Raises `ArgumentError` for a range that is not inside and a length that is no multiple of an
    element; `NotFound`, `Denied`; `Unsupported` for what is no file; `Changed` when others do not
    stop writing to the file; and for addresses what `open` raises.

    >>> np.arange(1000, dtype="u2").tofile("numbers.bin")
    >>> copy = fp.map_fd("numbers.bin", 1, 8)
    >>> copy[0] = 7
    >>> copy, fp.map_fd("numbers.bin", 4, 6, dtype="u2")
    (array([7, 1, 0, 2, 0, 3, 0, 4], dtype=uint8), array([2, 3, 4], dtype=uint16))
    """
    if not isinstance(shared, (bool, np.bool_)):
        raise errors.ArgumentError(f"shared cannot be {shared!r}; give True or False")
    offset = parse_size(offset, "offset")
    length = None if length is None else parse_size(length, "length")
    translated = isinstance(dtype, str) and dtype in _TRANSLATED
    if translated and shared:
        raise errors.ArgumentError(
            f"{dtype} is translated, and a shared mapping shows what is there; leave shared out, "
            f"or open() it with dtype={dtype!r} and mode='r+'"
        )
    dtype = dtype if translated else _numpy(dtype)
    if isinstance(source, str) and source.startswith("shared:") and not translated and not options:
        return _of_memory(source[7:], (offset, length), shared, dtype)
    if is_address(source) and _is_far(os.fsdecode(source)):
        return _of_address(os.fsdecode(source), (offset, length), shared, dtype, options)
    if options:
        raise errors.ArgumentError(
            f"{', '.join(options)}: for addresses alone, and {source!r} is none; leave it out"
        )
    fd, is_own = _descriptor(source, shared)
    try:
        if length is None:
            length = _rest(fd, offset)
        if translated:
            opened = _farpage.map_fd_numbers(fd, (offset, length), dtype, _presented())
            return _presented_array(opened)
        mapping = _farpage.map_fd(fd, offset, length, bool(shared))
    finally:
        if is_own:
            os.close(fd)
    return _array(mapping, dtype)


def _is_far(address):
    scheme, separator, _ = address.partition("://")
    named = scheme and all(c.isascii() and (c.isalnum() or c in "+-.") for c in scheme)
    return bool(separator and named and scheme.lower() != "file")


def _of_address(address, part, shared, dtype, options):
    if shared:
        raise errors.ArgumentError(
            f"'{address}' is on another machine, and cannot be shared; leave shared out, or open() "
            "it with mode='r+'"
        )
    offset, length = part
    if isinstance(dtype, str):
        options = checked(**options, **_presented())
        recipe = Recipe(places_of(address, offset, length), options, (dtype, [-1]))
        obj, kind, entries = recipe.open()
        return _presented_array((obj, kind, entries))
    return _array(_farpage.map_url(address, offset, length, checked(**options)), dtype)


def _of_memory(name, part, shared, dtype):
    """Of shared memory of the host kernel."""
    memory = SharedMemory(name)
    offset, length = part
    end = memory.size if length is None else offset + length
    if not offset < end <= memory.size:
        raise errors.ArgumentError(
            f"bytes {offset} to {end} are not inside 'shared:{name}', which has {memory.size}; give "
            "a range inside"
        )
    bytes_ = np.frombuffer(memory.buf, np.uint8)[offset:end]
    return _array(bytes_ if shared else bytes_.copy(), dtype)


def _presented():
    return {"mode": "c", "native": True, "bf16_as_f32": True}


def _presented_array(opened):
    obj, _, ((_, description, shape, _, offset, _),) = opened
    array = np.frombuffer(memoryview(obj), dtype_of(description), offset=offset)
    return array.reshape(tuple(shape))


def _numpy(dtype):
    """A type that can be seen in memory as it is."""
    try:
        dtype = np.dtype(np.uint8 if dtype is None else dtype)
    except TypeError:
        raise errors.ArgumentError(
            f"dtype {dtype!r} is not known; give one of NumPy's, or {', '.join(_TRANSLATED)}"
        ) from None
    if dtype.hasobject or dtype.itemsize == 0:
        raise errors.ArgumentError(f"{dtype} is of no bytes that a file has; give another")
    return dtype


def _array(mapping, dtype):
    bytes_ = memoryview(mapping)
    if bytes_.nbytes % dtype.itemsize:
        raise errors.ArgumentError(
            f"{bytes_.nbytes} bytes are no whole number of {dtype}, of {dtype.itemsize} bytes; "
            "give the length of some"
        )
    return np.frombuffer(bytes_, dtype)


def _rest(fd, offset):
    """How many bytes there are from `offset` on; 1 where the native part says what is wrong."""
    try:
        return max(os.fstat(fd).st_size - offset, 1)
    except (OSError, OverflowError):
        return 1


def _descriptor(source, shared):
    """A descriptor, and whether it is to be closed."""
    if is_address(source):
        path = os.fsdecode(source)
        if path[:7].lower() == "file://":
            path = path[7:].removeprefix("localhost")
        flags = os.O_CLOEXEC | os.O_NONBLOCK | (os.O_RDWR if shared else os.O_RDONLY)
        try:
            return os.open(path, flags), True
        except FileNotFoundError as error:
            raise errors.NotFound(
                f"cannot find '{path}': {error.strerror}; check the name"
            ) from None
        except IsADirectoryError:
            raise errors.Unsupported(
                f"cannot open '{path}': it is a directory; give a file"
            ) from None
        except PermissionError as error:
            raise errors.Denied(
                f"may not access '{path}': {error.strerror}; ask its owner for permission, or map "
                "a private copy"
            ) from None
    if hasattr(source, "fileno"):
        if hasattr(source, "flush") and not getattr(source, "closed", False):
            source.flush()
        return source.fileno(), False
    try:
        return operator.index(source), False
    except TypeError:
        raise errors.ArgumentError(
            f"{type(source).__name__} is nothing that can be mapped; give a descriptor, a file, a "
            "path or an address"
        ) from None
