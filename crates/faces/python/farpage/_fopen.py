"""`fopen`: streams of bytes that can be mapped."""

import io
import operator
import os
import stat

import numpy as np

from . import _farpage, errors
from ._options import parse_size


def fopen(file, mode="r"):
    """Opens a file of bytes as a buffered stream that can also be mapped: an `io.BufferedIOBase`.

    `file`: a path, or a descriptor, which is closed with the stream. `mode`: of C's `fopen`, `r`,
    `w` or `a`, each perhaps with `+` (update), `b` (it is always bytes) and, with `w`, `x` (new).
    For text give it to `io.TextIOWrapper`.

    It reads and writes as Python's own files do. `Stream.fmap` gives the whole file as an array
    that is the file itself: what is written through the stream is in the array at once, and the
    other way round; `fmap` with a larger size makes the file grow. What cannot be mapped (pipes,
    terminals) is opened by Python's own `open`.

    A file that somebody else cuts off ends there, and the part of an array that is cut off reads
    as zeros. Raises OSError as `open` does, and `ArgumentError` for what is no mode.

    >>> with fp.fopen("lines.txt", "w+") as stream:
    ...     stream.writelines([b"one\\n", b"two\\n"])
    ...     stream.seek(0), list(stream)
    (0, [b'one\\n', b'two\\n'])
    """
    if not isinstance(mode, str):
        raise errors.ArgumentError(f"mode cannot be {mode!r}; give text such as 'r' or 'w+'")
    _farpage.Stream.check(mode)
    if isinstance(file, (str, bytes, os.PathLike)):
        file = os.fsdecode(file)
        if "\0" in file:
            raise errors.ArgumentError(f"no file can be called {file!r}; a name has no NUL")
    elif isinstance(file, bool) or not hasattr(file, "__index__"):
        raise errors.ArgumentError(
            f"{type(file).__name__} is nothing that can be opened; give a path or a descriptor"
        )
    else:
        file = operator.index(file)
    if _is_no_file(file):
        kind = "x" if "x" in mode else mode[0]
        return io.open(file, kind + ("+b" if "+" in mode else "b"))
    opened = _farpage.Stream.open if isinstance(file, str) else _farpage.Stream.of_fd
    return Stream(opened(file, mode), mode)


def _is_no_file(file):
    """Whether something is there that is no regular file."""
    try:
        return not stat.S_ISREG(os.stat(file).st_mode)
    except (OSError, ValueError):
        return False


class Stream(io.BufferedIOBase):
    """What `fopen` returns.

    Everything that Python's own buffered files have, and `fmap`. Any thread may use it.
    """

    closed = False

    def __init__(self, native, mode):
        self._native = native
        self.mode = mode
        self.name = native.name
        if native.appends:
            native.seek(0, os.SEEK_END)

    def __repr__(self):
        state = ", closed" if self.closed else ""
        return f"<farpage.Stream name={self.name!r} mode={self.mode!r}{state}>"

    def __reduce_ex__(self, protocol):
        raise TypeError(f"cannot copy or pickle {self!r}; open its path again")

    def __iter__(self):
        return self._native.lines(self)

    def readable(self):
        self._check()
        return self._native.can_read

    def writable(self):
        self._check()
        return self._native.can_write

    def seekable(self):
        self._check()
        return True

    def isatty(self):
        self._check()
        return False

    def fileno(self):
        return self._native.fileno()

    def read(self, size=-1):
        """`size` bytes, fewer only at the end of the file; all that follow when negative or None."""
        return self._native.read(size)

    def read1(self, size=-1):
        return self._native.read_once(io.DEFAULT_BUFFER_SIZE if size < 0 else size)

    def readinto(self, buffer):
        """Fills `buffer` as far as the file goes. Returns how many bytes that are."""
        return self._native.read_into(_view(buffer), False)

    def readinto1(self, buffer):
        """The same with one read at most."""
        return self._native.read_into(_view(buffer), True)

    def readline(self, size=-1):
        return self._native.read_line(size)

    def peek(self, size=0):
        """What is buffered, at least a byte unless the file ends here; the stream does not move."""
        return self._native.peek()

    def write(self, buffer):
        """Writes all of `buffer`, anything with the buffer protocol. Returns its size in bytes."""
        return self._native.write(_view(buffer))

    def flush(self):
        """Has the file what was written."""
        self._native.flush()

    def seek(self, offset, whence=os.SEEK_SET):
        return self._native.seek(operator.index(offset), whence)

    def tell(self):
        return self._native.tell()

    def truncate(self, size=None):
        return self._native.truncate(size)

    def fmap(self, size=0):
        """Maps the file from its start: a NumPy array of bytes, shared with the file and all others
        who have it open.

        To be read, `size` bytes at most, all of it when that is 0. To be written, the file grows to
        `size`, with room on the disk for each byte, and can be mapped again with more. The stream
        has no buffer from then on: what is written is in the array at once, and writing or seeking
        beyond it is an `ArgumentError`. An array stays valid when the stream is closed. The file keeps
        its size: `truncate` it when less was written. An empty one gets 64 KiB when `size` is 0. What is
        mapped once is mapped again with it, also when `size` is less. What is written to a part that
        others have cut off is lost.
        """
        self._check()
        return np.frombuffer(self._native.map(parse_size(size, "size")), np.uint8)

    def close(self):
        """Writes what is in the buffer and closes the file, also when that fails."""
        self.closed = True
        self._native.close()

    def _check(self):
        if self.closed:
            raise ValueError("cannot use a stream that is closed; open it again")


def _view(buffer):
    """Memory of any kind, in a form that tells its shape, which not all that has memory does."""
    if isinstance(buffer, str):
        raise TypeError("cannot write text, this is of bytes; give it to io.TextIOWrapper")
    return memoryview(buffer)
