"""Runs Python code that answers for the bytes of an object, in a process of its own.

The thread that touches a page may hold the interpreter lock while it waits, so that code must not
run in the same process. It is asked over a socket pair: see `crates/faces/python/src/served.rs`. Each
request comes with the connection that it is answered on.
"""

import io
import os
import pickle
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref

from . import errors

_REQUEST = struct.Struct("<cQQ")
_ANSWER = struct.Struct("<BQ")
# How long code that nobody waits for any more may go on before its process is ended.
_GRACE_SECONDS = 1.0
# User and password in an address.
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s'\"]+@")
# The ends of this process. A forked server must not hold those of the others.
_controls = weakref.WeakSet()


def without_credentials(text):
    """Text, without what stands before the @ of addresses."""
    return _CREDENTIALS.sub("", text)


class Callback:
    """A function that is called as `read(offset, length)` and returns bytes."""

    def __init__(self, read):
        self._read = read

    def read(self, offset, length):
        return self._read(offset, length)

    def sync(self):
        pass


class FileObject:
    """A file: anything with `seek` and `read`."""

    def __init__(self, file, writable):
        self._file = file
        # Of the interpreter's own files the position belongs to the opener too: it stays.
        own = type(getattr(file, "raw", file)) is io.FileIO
        self._descriptor = file.fileno() if own else None
        if own and writable:
            file.flush()

    def __reduce__(self):
        if self._descriptor is not None:
            raise TypeError("open files are inherited")
        return FileObject, (self._file, False)

    def _read_some(self, offset, length):
        if self._descriptor is not None:
            return os.pread(self._descriptor, length, offset)
        self._file.seek(offset)
        return self._file.read(length)

    def read(self, offset, length):
        parts = []
        while length > 0:
            part = self._read_some(offset, length)
            if not part:
                break
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return b"".join(parts)

    def write(self, offset, data):
        if self._descriptor is None:
            self._file.seek(offset)
        while data:
            if self._descriptor is None:
                done = self._file.write(data)
            else:
                done = os.pwrite(self._descriptor, data, offset)
            data, offset = data[done:], offset + done

    def sync(self):
        if self._descriptor is not None:
            os.fsync(self._descriptor)
            return
        self._file.flush()
        try:
            descriptor = self._file.fileno()
        except (AttributeError, OSError):
            return  # nothing of the system's
        os.fsync(descriptor)


def _receive(connection, length):
    parts = []
    while length > 0:
        part = connection.recv(min(length, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def _answer(handler, what, offset, length, connection):
    if what == b"r":
        data = memoryview(handler.read(offset, length)).cast("B")
        if len(data) != length:
            raise ValueError(f"it returned {len(data)} bytes of {length} at {offset}")
        return data
    if what == b"w":
        handler.write(offset, _receive(connection, length))
    else:
        handler.sync()
    return b""


def _serve_one(handler, head, connection):
    try:
        data = _answer(handler, *_REQUEST.unpack(head), connection)
        status = 0
    except Exception as error:  # its own message, whatever it is
        data = without_credentials(f"{type(error).__name__}: {error}").encode()
        status = 1
    connection.sendall(_ANSWER.pack(status, len(data)))
    connection.sendall(data)


def _watch(control):
    """Ends the process when nobody waits for the code that it is in."""
    poll = select.poll()
    poll.register(control, 0)  # what is reported without being asked for: the other ends are gone
    poll.poll()
    time.sleep(_GRACE_SECONDS)
    os._exit(1)


def serve(handler, control):
    """Answers requests until nobody holds the other end of `control`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is meant for who reads
    threading.Thread(target=_watch, args=(control,), daemon=True).start()
    while True:
        head, descriptors, _, _ = socket.recv_fds(control, _REQUEST.size, 1)
        if not head:
            return
        with socket.socket(fileno=descriptors[0]) as connection:
            try:
                _serve_one(handler, head, connection)
            except (EOFError, OSError):
                pass  # who asked is gone


def _pickled(handler):
    """The handler for a new interpreter, or None when it must be forked into one."""
    try:
        data = pickle.dumps(handler)
    except Exception:  # pickle raises what it likes
        return None
    # What was defined in the script itself, `__main__` or in its workers `__mp_main__`, is known
    # there only.
    return None if b"_main__" in data else data


def _spawn(data, control):
    code = "from farpage._server import main; main()"
    command = [sys.executable, "-c", code, str(control.fileno())]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, pass_fds=(control.fileno(),), env=environment
    )
    try:
        with child.stdin as pipe:
            pipe.write(data)
    except BrokenPipeError:
        pass  # it died; the first request says so
    return child


def _fork(handler, control):
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        for other in list(_controls):
            other.close()
        serve(handler, control)
        status = 0
    finally:
        os._exit(status)


def main():
    """The body of a spawned process."""
    handler = pickle.load(sys.stdin.buffer)
    serve(handler, socket.socket(fileno=int(sys.argv[1])))


class Server:
    """A process that serves `handler`, for as long as anybody holds `control` or a copy of it."""

    def __init__(self, handler):
        self.control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        _controls.add(self.control)
        data = _pickled(handler)
        try:
            child = _fork(handler, other) if data is None else _spawn(data, other)
        except OSError as error:
            self.control.close()
            raise errors.KernelError(f"cannot start a process for the callback: {error}") from error
        finally:
            other.close()
        finalizer = weakref.finalize(self, _end, child, os.getpid())
        finalizer.atexit = False  # it ends with this process

    def opened(self):
        """The native part has a copy of `control` now."""
        self.control.close()


def _end(child, owner):
    # It ends by itself when no child of fork uses it either; somebody must collect it.
    if os.getpid() == owner:
        threading.Thread(target=_collect, args=(child,), daemon=True).start()


def _collect(child):
    try:
        if isinstance(child, int):
            os.waitpid(child, 0)
        else:
            child.wait()
    except OSError:
        pass  # another did
