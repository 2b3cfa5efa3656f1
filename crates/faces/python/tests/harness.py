"""A pytest plugin: every test starts alike, ends in time, and leaves nothing behind."""

import contextlib
import ctypes
import faulthandler
import fcntl
import gc
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import watcher

LIMIT_S = os.environ.get("FARPAGE_TEST_LIMIT_S") or "1200"
# Longest that a test waits for something. It only ends what hangs.
PATIENCE_S = 120
# Processes of Python's own that serve all tests of a run.
SHARED = (
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "loky.backend.resource_tracker",
)
PR_SET_CHILD_SUBREAPER = 36
FAILED = pytest.StashKey[bool]()


def until(condition, what):
    """Returns what `condition` returns, as soon as that is true. `what`: text, or a function."""
    end = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        if time.monotonic() > end:
            pytest.fail(f"gave up after {PATIENCE_S} s: {what() if callable(what) else what}")
        time.sleep(0.005)  # the only place where tests look again and again
    return found


@contextlib.contextmanager
def alone(what):
    """Holds this machine's lock of that name, which tests in Rust take as well."""
    path = f"/tmp/farpage-test-{what}"
    while True:
        with open(path, "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # Whoever held it last has removed it.
            try:
                is_there = os.path.samestat(os.stat(path), os.fstat(file.fileno()))
            except FileNotFoundError:
                is_there = False
            if is_there:
                try:
                    yield
                finally:
                    os.unlink(path)
                return


def waits(pid):
    """True while the main thread of process `pid` sleeps in a system call, or for a page."""
    return watcher.read(f"/proc/{pid}/syscall") not in ("running", "")


def waits_for_page(pid):
    """True while it sleeps, though in no system call."""
    return watcher.read(f"/proc/{pid}/syscall").startswith("-1 ")


def own_address(number=0):
    """An address of this machine that no other test process uses: its free ports stay free."""
    bits = os.getpid() << 2 | number
    return f"127.{bits >> 16 & 255}.{bits >> 8 & 255}.{bits & 255}"


def free_port(address):
    with socket.socket() as bound:
        bound.bind((address, 0))
        return bound.getsockname()[1]


class Watch:
    """The process that watches this one, and the folder that its tests have for temporary files."""

    def __init__(self, stderr):
        # Paging files lie there, so it should not be in memory. Its name is short, since the name
        # of a socket has at most 107 bytes.
        around = os.environ.get("TMPDIR") or "/var/tmp"
        self.folder = tempfile.mkdtemp(prefix="fp-", dir=around)
        for name in ("TMPDIR", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"):
            os.environ[name] = self.folder
        tempfile.tempdir = self.folder
        # This process may have died before the other one looks for it by its number.
        own = os.pidfd_open(os.getpid())
        arguments = [str(os.getpid()), str(own), self.folder, LIMIT_S]
        self.process = subprocess.Popen(
            [sys.executable, "-I", watcher.__file__, *arguments],
            stdin=subprocess.PIPE,
            stdout=stderr,
            stderr=stderr,
            pass_fds=[own],
            start_new_session=True,  # it survives who kills the group of this process
        )
        os.close(own)

    def tell(self, what):
        os.write(self.process.stdin.fileno(), f"{what}\n".encode())

    def processes(self):
        """Those that these tests have started and that still run, with their commands."""
        pids = watcher.processes(os.getpid(), self.folder) - {self.process.pid}
        all_of_it = {pid: watcher.read(f"/proc/{pid}/cmdline") for pid in pids}
        return {pid: said for pid, said in all_of_it.items() if not any(s in said for s in SHARED)}

    def left(self):
        """Processes and files of these tests."""
        named = {f"process {pid}: {said}" for pid, said in self.processes().items()}
        named.update(map(str, Path(self.folder).glob("farpage*")))
        # Other programs use these folders, too. A name says which process made the file.
        for path in [*Path("/dev/shm").glob("farpage*"), *Path("/var/tmp").glob("farpage*")]:
            maker = re.search(r"-(\d+)(?!\w)", path.name)
            if maker and not watcher.parent(int(maker[1])):
                named.add(str(path))
        return named

    def end(self):
        for pid in self.processes():
            watcher.kill(pid)
        self.tell("goodbye")


def reset_signals():
    """A shell that starts a program in the background has it ignore some; programs inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Python ignores SIGPIPE itself, and `subprocess` has the programs that it starts not do so.
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    reset_signals()
    # What a child leaves when it ends becomes a child of this process.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    stderr = os.dup(2)  # nothing is captured yet
    faulthandler.register(signal.SIGQUIT, stderr, all_threads=True)
    config.watch = Watch(stderr)
    if not hasattr(config, "workerinput"):
        config.option.basetemp = os.path.join(config.watch.folder, "t")


def pytest_unconfigure(config):
    config.watch.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    item.config.watch.tell(item.nodeid)
    try:
        return (yield)
    finally:
        item.config.watch.tell("")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture(autouse=True)
def leaves_nothing(request):
    """No process and no file is left. A test that fails keeps some alive in its traceback."""
    watch = request.config.watch
    before = watch.left()
    yield

    def left():
        gc.collect()
        return watch.left() - before

    if not request.node.stash.get(FAILED, False) and watch.left() - before:
        until(lambda: not left(), lambda: f"the test has left {left()}")
