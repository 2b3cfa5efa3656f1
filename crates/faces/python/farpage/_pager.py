"""Memory that Python code answers for, to all processes of the host."""

from . import _farpage, errors
from ._options import parse_size


class _Function:
    """A function `read(offset, length)` alone: it can only be read."""

    def __init__(self, read):
        self.read = read


def serve_pager(name, pager, size, *, patience=None):
    """Answers for `size` bytes that other processes find by `name`, until the host kernel
    (`farpage up`) ends or a signal handler raises.

    `pager`: an object with `read(offset, length)`, which returns so many bytes, and if they can be
    written to `write(offset, data)`, which takes modified pages back; or a function like `read`.
    Several threads call at a time. What it raises is the reason for which pages cannot be had, or
    are not taken; those are offered again. `patience`: who waits for a page waits so many seconds,
    also for a program that died to be started again, and then gets SIGBUS; None: until it comes.

    This process must not open what it answers for. Run the program by `farpage pager serve`, which
    starts it again when it dies.

    Raises `Unreachable` without a host kernel, `Exists` when another program has the name.
    """
    if not isinstance(name, str):
        raise errors.ArgumentError(f"name: {name!r} is no text; give a name")
    if patience is not None and not 0 < patience < 1e9:
        raise errors.ArgumentError(f"patience: {patience!r} is no time; give seconds, or None")
    if not callable(getattr(pager, "read", None)):
        if not callable(pager):
            raise errors.ArgumentError(
                f"pager: {pager!r} has no method read(offset, length); give it one"
            )
        pager = _Function(pager)
    writable = callable(getattr(pager, "write", None))
    _farpage.serve_pager(name, pager, parse_size(size), writable, patience)
