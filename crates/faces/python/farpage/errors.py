"""What can go wrong: one class for each error, all of them `Error`. Those that are an OSError have its `errno`."""

import errno as _errno
import threading as _threading


class Error(Exception):
    """Anything that Farpage reports."""


class ArgumentError(Error, ValueError):
    """An argument that makes no sense."""


class FormatError(Error, ValueError):
    """The source is of no format that is understood, or breaks its rules."""


class KernelError(Error, OSError):
    """Memory could not be mapped, or a budget does not allow it."""

    errno = _errno.ENOMEM


class NotWritten(Error, OSError):
    """Pages could not be written back; they are still in memory."""

    errno = _errno.EIO


class Exists(Error, FileExistsError):
    """There is something of that name already."""

    errno = _errno.EEXIST


class LockError(Error, RuntimeError):
    """A lock is given back by who does not have it, or taken by who has it."""


class HolderDied(LockError):
    """A process died that had a lock: what the lock guards may be half changed."""


class Stale(LockError):
    """Memory is not what was locked any more."""


class BrokenBarrier(Error, _threading.BrokenBarrierError):
    """Not all parties of a barrier will come."""


class Lost(Error, OSError):
    """Shared memory was lost with the host that had it."""

    errno = _errno.EIO


class SourceError(Error, OSError):
    """The source could not be read or written."""

    errno = _errno.EIO


class NotFound(SourceError, FileNotFoundError):
    """There is nothing of that name."""

    errno = _errno.ENOENT


class Denied(SourceError, PermissionError):
    """Access is not allowed."""

    errno = _errno.EACCES


class Changed(SourceError):
    """The source is not the version that was opened."""

    errno = _errno.ESTALE


class Truncated(SourceError, EOFError):
    """The source ends before it should."""


class WrongRange(SourceError):
    """A server answered with other bytes than those asked for."""


class Unreachable(SourceError, ConnectionError):
    """The source could not be reached."""

    errno = _errno.EHOSTUNREACH


class TimedOut(SourceError, TimeoutError):
    """The source, or another host, did not answer in time."""

    errno = _errno.ETIMEDOUT


class InputOutputError(SourceError):
    """Reading or writing failed."""


class Corrupt(SourceError):
    """The bytes are not what they must be."""


class Unsupported(SourceError):
    """The source is of a kind that cannot be opened."""

    errno = _errno.EOPNOTSUPP


class ReadOnly(SourceError):
    """The source cannot be written to."""

    errno = _errno.EROFS


class NotExact(SourceError):
    """A value has no exact counterpart in the type that the source holds."""


class CallbackError(SourceError):
    """The code that answers for the bytes failed."""
