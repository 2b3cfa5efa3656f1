"""`open` and `load`."""

import operator

import numpy as np

from . import _farpage, errors
from ._array import Arrays, array_in, dtype_of
from ._object import Recipe
from ._options import alone, checked, is_address, is_parts, parse_size, places_of


def set_ram(size):
    """Sets what all objects that are opened without `ram=` keep in memory together.

    `size`: bytes, or text: '512M', '1.5G' (of 1024), '500MB' (of 1000). Without this call it is
    half of the memory that the machine, or the control group, has left.

    Raises `ArgumentError` for what is no size, `KernelError` below 4 MiB.

    >>> fp.set_ram("2G")
    """
    _farpage.set_ram(parse_size(size, "ram"))


def _presentation(dtype):
    """What `dtype` of `load` means."""
    if dtype is None:
        return {"native": True, "bf16_as_f32": True}
    if isinstance(dtype, str) and dtype == "stored":
        return {"native": False}
    try:
        if np.dtype(dtype) == np.float32:
            return {"native": True, "bf16_as_f32": True, "f16_as_f32": True}
    except TypeError:
        pass  # no type of NumPy's: refused as others are
    raise errors.ArgumentError(
        f"load cannot present arrays as {dtype!r}; leave dtype out, or give 'float32' or 'stored'; "
        f"a file of nothing but numbers is opened: open(address, dtype={dtype!r})"
    )


def load(address, *, dtype=None, offset=None, size=None, eager=False, progress=None, **options):
    """Maps the arrays of a file: npy, npz (stored), safetensors or Arrow, wherever it is.

    `address`: a path, or `http://`, `https://` and the like; with `offset` and `size` what lies
    there of it; or a list of parts, as of `open`, which make the file together. Returns an `Array`
    for npy, in the file's shape, and `Arrays` (a dict) for the others. Nothing is read but the
    header; what is touched comes in.

    `mode`: 'r', 'r+' (writes back) or 'c' (a private copy). `dtype`: None presents every number as
    NumPy's own type (big-endian as native, bf16 as float32), 'float32' float16 too, 'stored'
    nothing. `eager`: brings all in first, as far as the budget allows. `progress` and all other
    options as of `open`.

    Raises `FormatError` for what is of no format that is known, and what `open` raises.

    >>> np.save("x.npy", np.arange(6.0).reshape(2, 3))
    >>> x = fp.load("x.npy", ram="64M")
    >>> x.shape, float(x[1].sum())
    ((2, 3), 12.0)
    """
    _check_eager(eager)
    if not is_address(address) and not is_parts(address):
        raise errors.ArgumentError(
            f"cannot load {type(address).__name__}: where its arrays lie must be known before it "
            "is mapped; give a path or an address, or open() it and name dtype and shape"
        )
    options = checked(**options, **_presentation(dtype))
    recipe = Recipe(places_of(address, offset, size), options, "load")
    obj, kind, entries = recipe.open()
    arrays = {}
    for name, description, shape, fortran, offset, _ in entries:
        order = "F" if fortran else "C"
        arrays[name] = array_in(obj, dtype_of(description), tuple(shape), offset, order=order)
    if eager:
        obj.prefetch(progress=progress)
    return arrays[""] if kind == "npy" else Arrays(obj, arrays)


def open(
    source, *, dtype=None, shape=None, offset=None, size=None, eager=False, progress=None, **options
):
    """Opens bytes as memory, or raw numbers as an array.

    `source`: a path, an address, a file object (fsspec's too), or a function
    `read(offset, length)` that returns so many bytes, with `size=`. Python code runs in a process
    of its own, because the thread that waits for a page may hold the interpreter lock.

    A list of parts is all of them, one after another. A part is a path or an address, or of what
    is there some bytes: `(address, offset)` or `(address, offset, size)`. A list of one is that
    part. Several can be written to in local files, and are neither made nor grow.

    Without `dtype` it returns an `Object`; with it an `Array` of `shape`, in which one dimension
    may be -1 (all there is). dtypes: NumPy's, '>f4' and the like, 'bf16' (its bits, or numbers with
    `bf16_as_f32=True`), 'vax_f', 'vax_d', 'vax_g'.

    mode        'r', 'r+' (writes back, to files and objects in stores; a file grows if it must),
                'w+' (makes it), 'c' (a private copy: what is written stays in this process)
    offset      the first byte, of a path, an address or a file object; with a shape as many bytes
                are taken as it needs
    size        bytes, of a function, of what is made, of a file that grows; of what is read, or
                has an offset, as many from there on: without, all there are
    ram         the most that is in memory at a time: bytes, or text such as '512M'
    cache       True, a folder, or (folder, limit): keeps on the disk what is fetched
    on_failure  'error', 'wait' (as long as it takes) or 'zero' (zeros are read instead)
    timeout     seconds for which a far source is tried again, and Python code may take: 60
    headers     of HTTP requests: a dict, or pairs
    decompress  gzip and zstd: True or False; by default by the name
    record      a file that gets the pages asked for
    replay      such a file: brings them in, in that order, in the background; of a source that has
                changed since then, which standard error says, those that are there; may be that
                of `record`, which need not be there yet
    eager       brings all in first, as far as the budget allows
    progress    of that: as of `Object.prefetch`

    Raises `ArgumentError`, `NotFound`, `Denied`, `Unreachable`, `TimedOut`, `Unsupported`,
    `KernelError` when the budget is too small, `FormatError` when the shape does not fit.

    >>> a = fp.open("big.bin", dtype="float32", shape=(100, 768), mode="w+", ram="64M")
    >>> a[0] = 1
    >>> a.flush()
    >>> b = fp.open("big.bin", dtype="float32", shape=(-1, 768))
    >>> b.shape, float(b.sum())
    ((100, 768), 768.0)
    >>> fp.open(lambda offset, length: bytes(length), size="1G")[5]
    0
    """
    _check_eager(eager)
    if shape is None and dtype is not None:
        shape = (-1,)
    if shape is not None and dtype is None:
        raise errors.ArgumentError("a shape needs a dtype; give one")
    source, offset, size = alone(source, offset, size)
    is_code = not is_address(source) and not is_parts(source)
    makes = options.get("mode") in ("r+", "w+") and not is_code
    spec = None
    if dtype is not None:
        shape = _shape(shape)
    # Numbers are the native part's business: it can translate them. Records and text are not.
    whole = is_code or _is_opaque(dtype)
    if dtype is not None and not whole:
        spec = (_description(dtype), list(shape))
    elif dtype is not None and size is None:
        if min(shape, default=0) < 0:
            if options.get("mode") == "w+":
                raise errors.ArgumentError(
                    "shape: a new file has no length that -1 could follow from; give each "
                    "dimension, or the size in bytes"
                )
        elif offset is not None or (makes and is_address(source)):
            size = _bytes_of_shape(shape, _numpy_dtype(dtype))
    if is_code:
        recipe = Recipe(source, checked(size=size, offset=offset, **options), spec)
    elif makes and offset is None and is_address(source):
        recipe = Recipe(places_of(source), checked(size=size, **options), spec)
    elif makes and size is not None and is_parts(source):
        raise errors.ArgumentError(
            "size: several parts are neither made nor grow; make each file by itself, with its size"
        )
    else:
        recipe = Recipe(places_of(source, offset, size), checked(**options), spec)
    obj, _, entries = recipe.open()
    if eager:
        obj.prefetch(progress=progress)
    if dtype is None:
        return obj
    if whole:
        dtype = _numpy_dtype(dtype)
        return array_in(obj, dtype, _whole(obj, dtype, shape), 0)
    ((_, description, shape, _, offset, _),) = entries
    return array_in(obj, dtype_of(description), tuple(shape), offset)


def _check_eager(eager):
    if not isinstance(eager, (bool, np.bool_)):
        raise errors.ArgumentError(f"eager cannot be {eager!r}; give True or False")


def _shape(shape):
    try:
        return tuple(operator.index(n) for n in np.atleast_1d(shape))
    except TypeError:
        raise errors.ArgumentError(
            f"shape {shape!r} is no number of elements; give whole numbers, one of them -1 at most"
        ) from None


def _description(dtype):
    """The native part's name of a type."""
    try:
        return np.dtype(dtype).str
    except TypeError:
        return str(dtype)


def _is_opaque(dtype):
    """True for types of NumPy that are no numbers: records, text, times."""
    try:
        return dtype is not None and np.dtype(dtype).kind not in "biufc"
    except TypeError:
        return False


def _numpy_dtype(dtype):
    """A type that can be seen in memory as it is."""
    try:
        dtype = np.dtype(dtype)
    except TypeError:
        raise errors.ArgumentError(
            f"dtype {dtype!r} is not one of NumPy's, and what Python code answers for is not "
            "translated; give the type of the bytes, such as 'uint16'"
        ) from None
    if dtype.hasobject:
        raise errors.ArgumentError(f"{dtype} holds Python objects, which no file has; give another")
    return dtype


def _bytes_of_shape(shape, dtype):
    return int(np.prod(shape, dtype=object)) * dtype.itemsize


def _whole(obj, dtype, shape):
    """The shape with its -1 filled in."""
    if shape.count(-1) > 1 or min(shape, default=0) < -1:
        raise errors.ArgumentError(f"shape {shape} has more than one -1; give one at most")
    fixed = _bytes_of_shape([n for n in shape if n >= 0], dtype)
    free = obj.nbytes // fixed if -1 in shape and fixed else 0
    whole = tuple(free if n == -1 else n for n in shape)
    needed = _bytes_of_shape(whole, dtype)
    if needed != obj.nbytes:
        raise errors.ArgumentError(
            f"shape {shape} of {dtype} takes {needed} bytes, and '{obj.name}' has "
            f"{obj.nbytes}; give a shape that fits"
        )
    return whole
