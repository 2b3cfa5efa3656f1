"""Arrays that all hosts of a cluster have in common."""

import json
import math

import numpy as np

from . import _farpage, errors
from ._options import parse_size
from ._shared import share_over_fork, talking

_SCHEDULERS = ("distributed", "simple")


class SharedArray(np.ndarray):
    """An array of `shared`: a NumPy array that is pickled by its name.

    `name`: None for what is no view of one. Results of arithmetic and `copy` are plain arrays.
    """

    def __array_finalize__(self, base):
        self.name = self._whole = None
        whole = getattr(base, "_whole", None)
        if whole is not None and np.may_share_memory(self, base):
            self.name, self._whole = base.name, whole

    def __array_wrap__(self, array, context=None, return_scalar=False):
        array = np.ndarray.__array_wrap__(self, array, context)
        if self is array or type(self) is not SharedArray:
            return array
        return array[()] if return_scalar or array.shape == () else array.view(np.ndarray)

    def __reduce__(self):
        if self._whole is None:
            return np.asarray(self).__reduce__()
        start = self.__array_interface__["data"][0] - self._whole
        return _again, (self.name, start, self.dtype.str, self.shape, self.strides)

    def unlink(self):
        """Takes its name away: it is gone when no process of any host has it any more."""
        unshare(self.name)


def _again(name, start, dtype, shape, strides):
    whole = shared(name)
    flat = np.ndarray.view(whole.reshape(-1), np.ndarray).view(np.uint8)
    array = np.ndarray(shape, dtype, flat, start, strides).view(SharedArray)
    array.name, array._whole = name, whole._whole
    return array


def shared(
    name, shape=None, dtype="f8", *, page_size=None, scheduler="distributed", replicas=1, stays=False
):
    """The array of this name that all hosts of the cluster have in common: what one host writes,
    the others read, as threads of one process do.

    It is found, or made of zeros when there is none. `shape`, `dtype`: of a new one; one that is
    there must be the same, or is opened as it is without a shape. `page_size`: what goes from host to
    host together, 4096 bytes to 2 MiB, a power of two ('64K' suits arrays that are read in order,
    4096 what is written everywhere). `scheduler`: 'distributed', or
    'simple', by which the host that made it decides, and takes it with it when it goes.
    `replicas=2`: one host that dies loses nothing. It is gone when no process of any host has it any
    more; `stays=True`: when its name was taken away, too (`unlink`, `farpage rm --cluster`).

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
    if shape is None:
        with talking:
            memory, note = _farpage.shared_of_cluster(name)
        return _array(name, memory, *_noted(name, note))
    shape = tuple(int(n) for n in (shape if np.iterable(shape) else (shape,)))
    dtype = np.dtype(dtype)
    if dtype.hasobject:
        raise errors.ArgumentError(f"dtype: {dtype} has Python objects; give numbers or bytes")
    size = math.prod(shape) * dtype.itemsize
    if min(shape, default=1) < 0 or size == 0:
        raise errors.ArgumentError(f"shape: {shape} of {dtype} has no bytes; give sizes above 0")
    wanted = json.dumps({"shape": shape, "dtype": np.lib.format.dtype_to_descr(dtype)})
    with talking:
        memory, note = _farpage.shared_of_cluster(
            name, (size, unit, scheduler == "simple", replicas, bool(stays), wanted)
        )
    there = _noted(name, note)
    if there != (shape, dtype):
        raise errors.Exists(
            f"'{name}' is there with shape {there[0]} and dtype {there[1]}; open it without a shape, "
            "or give another name"
        )
    return _array(name, memory, shape, dtype)


def unshare(name):
    """Takes the name of an array of `shared` away: it is gone when no process has it any more."""
    with talking:
        _farpage.unlink_of_cluster(name)


def _noted(name, note):
    try:
        said = json.loads(note)
        return tuple(said["shape"]), np.lib.format.descr_to_dtype(said["dtype"])
    except (ValueError, KeyError, TypeError) as error:
        raise errors.ArgumentError(
            f"'{name}' is no array ({error}); give its shape and dtype as they were given first"
        ) from None


def _array(name, memory, shape, dtype):
    share_over_fork(name, memory)
    array = np.ndarray(shape, dtype, buffer=memory).view(SharedArray)
    array.name, array._whole = name, array.__array_interface__["data"][0]
    return array
