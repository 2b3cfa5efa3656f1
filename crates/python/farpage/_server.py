"""Runs Python code that answers for the bytes of an object, in a process of its own.

The thread that touches a page may hold the interpreter lock while it waits, so that code must not
run in the same process. It is asked over a socket: see `crates/python/src/served.rs`.
"""

import os
import pickle
import select
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import weakref

from . import errors

_REQUEST = struct.Struct("<cQQ")
_ANSWER = struct.Struct("<BQ")


class Callback:
    """A function that is called as `read(offset, length)` and returns bytes."""

    def __init__(self, read, write=None):
        self._read, self._write = read, write

    def read(self, offset, length):
        return self._read(offset, length)

    def write(self, offset, data):
        self._write(offset, data)

    def sync(self):
        pass


class FileObject:
    """A file: anything with `seek` and `read`."""

    def __init__(self, file, writable):
        self._file, self._writable = file, writable

    def read(self, offset, length):
        self._file.seek(offset)
        parts = []
        while length > 0:
            part = self._file.read(length)
            if not part:
                break
            parts.append(part)
            length -= len(part)
        return b"".join(parts)

    def write(self, offset, data):
        self._file.seek(offset)
        while data:
            data = data[self._file.write(data) :]

    def sync(self):
        self._file.flush()
        try:
            os.fsync(self._file.fileno())
        except (AttributeError, OSError):
            pass


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


def _serve_one(handler, connection):
    with connection:
        head = _receive(connection, _REQUEST.size)
        try:
            data = _answer(handler, *_REQUEST.unpack(head), connection)
            status = 0
        except Exception as error:  # its own message, whatever it is
            data = f"{type(error).__name__}: {error}".encode()
            status = 1
        connection.sendall(_ANSWER.pack(status, len(data)))
        connection.sendall(data)


def serve(handler, listener, alive):
    """Answers requests until the other end of `alive` is closed by all who hold it."""
    while True:
        ready, _, _ = select.select([listener, alive], [], [])
        if alive in ready:
            return
        connection, _ = listener.accept()
        try:
            _serve_one(handler, connection)
        except (EOFError, OSError):
            pass  # who asked is gone


def _listen():
    folder = tempfile.mkdtemp(prefix="farpage-")
    path = os.path.join(folder, "socket")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(128)
    return listener, path


def _remove(path):
    for act, what in ((os.unlink, path), (os.rmdir, os.path.dirname(path))):
        try:
            act(what)
        except OSError:
            pass


def _pickled(handler):
    """The handler for a new interpreter, or None when it must be forked into one."""
    try:
        data = pickle.dumps(handler)
    except Exception:  # pickle raises what it likes
        return None
    # What was defined in the script itself is known there only.
    return None if b"__main__" in data else data


def _spawn(data, listener, alive):
    code = "from farpage._server import main; main()"
    descriptors = (listener.fileno(), alive)
    command = [sys.executable, "-c", code, *map(str, descriptors)]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, pass_fds=descriptors, env=environment
    )
    with child.stdin as pipe:
        pipe.write(data)
    return child.pid


def _fork(handler, listener, alive, keep):
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.close(keep)
        serve(handler, listener, alive)
        status = 0
    finally:
        os._exit(status)


def main():
    """The body of a spawned process."""
    listener, alive = (int(argument) for argument in sys.argv[1:3])
    handler = pickle.load(sys.stdin.buffer)
    serve(handler, socket.socket(fileno=listener), alive)


class Server:
    """A process that serves `handler`. It ends when nobody holds this object any more."""

    def __init__(self, handler):
        listener, self.path = _listen()
        alive, keep = os.pipe()
        data = _pickled(handler)
        try:
            if data is None:
                pid = _fork(handler, listener, alive, keep)
            else:
                pid = _spawn(data, listener, alive)
        except OSError as error:
            os.close(keep)
            _remove(self.path)
            raise errors.KernelError(f"cannot start a process for the callback: {error}") from error
        finally:
            listener.close()
            os.close(alive)
        self._finalizer = weakref.finalize(self, _end, keep, pid, self.path, os.getpid())

    def close(self):
        self._finalizer()


def _end(keep, pid, path, owner):
    os.close(keep)
    if os.getpid() != owner:
        return
    _remove(path)
    # It ends by itself when no child of fork uses it either; somebody must collect it.
    threading.Thread(target=_collect, args=(pid,), daemon=True).start()


def _collect(pid):
    try:
        os.waitpid(pid, 0)
    except OSError:
        pass
