"""Arrays that lie in objects."""

import ast

import numpy as np

from ._object import Unopened, bytes_of

# Types that NumPy does not have, and what they are seen as when nothing is translated.
_FOREIGN = {"bf16": "<u2", "f8_e4m3": "|u1", "f8_e5m2": "|u1"}


class Array(np.ndarray):
    """An array that lies in an `Object`: a NumPy array that is pickled by reference.

    `object` is what it lies in, None for what is no view of one. Results of arithmetic and `copy`
    are plain arrays. A page that cannot be had ends the process with SIGBUS and a message: NumPy
    reads memory, which cannot raise; `prefetch` does.

    >>> x = fp.load("x.npy")
    >>> x[1:].object is x.object, type(x + 1) is np.ndarray
    (True, True)
    """

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
        obj = self.object
        if obj is None or obj.closed or obj.is_copy or self.size == 0:
            return np.asarray(self).__reduce__()
        memory = bytes_of(self.object)
        offset = self.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
        return array_in, (self.object, self.dtype, self.shape, offset, self.strides)

    def copy(self, order="C"):
        """A plain array in memory of its own."""
        return np.array(self, order=order)

    def flush(self):
        """As `Object.flush`."""
        if self.object is not None:
            self.object.flush()

    def prefetch(self, progress=None):
        """As `Object.prefetch`, of this array."""
        return self.object.prefetch(self, progress) if self.object is not None else self.nbytes


def array_in(obj, dtype, shape, offset, strides=None, order="C"):
    if isinstance(obj, Unopened):
        return obj
    # `frombuffer` holds on to the buffer, which keeps the memory mapped; `ndarray` would not.
    array = np.ndarray.__new__(Array, shape, dtype, bytes_of(obj), offset, strides, order)
    array.object = obj
    return array


def dtype_of(description):
    """NumPy's type of an entry."""
    if description in _FOREIGN:
        return np.dtype(_FOREIGN[description])
    if description.startswith(("[", "(", "'")):
        return np.lib.format.descr_to_dtype(ast.literal_eval(description))
    return np.dtype(description)


class Arrays(dict):
    """Arrays by name, and the `object` that they lie in.

    >>> np.savez("data.npz", a=np.ones(3), b=np.zeros((2, 2)))
    >>> with fp.load("data.npz") as data:
    ...     sorted(data), data["b"].shape
    (['a', 'b'], (2, 2))
    """

    def __init__(self, obj, items):
        super().__init__(items)
        self.object = obj

    def close(self):
        """Lets go of the arrays and closes the object. Raises `ArgumentError` while others have
        views of them."""
        self.clear()
        self.object.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.clear()
        self.object.__exit__(*exc)
