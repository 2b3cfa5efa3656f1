"""What `harness.py` promises, shown by a run of pytest within a test."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import watcher
from harness import until

HERE = Path(__file__).parent

HANGS = """
import subprocess, sys

GRANDCHILD = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
GRANDCHILD += "print('there', flush=True); signal.pause()"
CHILD = "import subprocess, sys; run = [sys.executable, '-c', " + repr(GRANDCHILD) + "];"
CHILD += "subprocess.Popen(run, start_new_session=True)"
# Before the test, and so before its time begins. The child ends; its own child stays.
started = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True)
assert started.stdout.readline() == "there\\n"
started.wait()

def test_that_hangs():
    started.stdout.read()
"""

LEAVES = """
import harness, pathlib, subprocess

harness.PATIENCE_S = 1

def test_that_leaves_a_process():
    started = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    pathlib.Path("pid").write_text(str(started.pid))
"""

DIES = LEAVES + "    import os; os.abort()"

IGNORED = """
import signal, subprocess, sys

def test_that_nothing_is_ignored():
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    status = subprocess.run(["cat", "/proc/self/status"], stdout=subprocess.PIPE, text=True).stdout
    ignored = int(status.split("SigIgn:")[1].split()[0], 16)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        assert not ignored >> number - 1 & 1
"""


def run(folder, program, limit="600", before=""):
    """How a run of pytest ends and what it prints, and the descendants that it leaves."""
    (folder / "test_program.py").write_text(program)
    pytest = [sys.executable, "-m", "pytest", "-p", "harness", "-p", "no:cacheprovider", "-s"]
    shell = ["sh", "-c", before + 'exec "$@"', "sh", *pytest, "test_program.py"]
    environment = dict(os.environ, FARPAGE_TEST_LIMIT_S=limit, PYTHONPATH=str(HERE))
    return subprocess.run(
        shell,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=environment,
        check=False,
    )


def test_a_test_that_hangs_is_killed_with_all_that_it_started_and_stacks_are_printed(tmp_path):
    done = run(tmp_path, HANGS, limit="1")
    assert done.returncode == -signal.SIGKILL, done.stdout
    said = done.stdout
    assert "test_program.py::test_that_hangs did not end within 1 s" in said
    # Where Python was in the test, and where Linux was in the grandchild.
    assert "in test_that_hangs" in said
    # Python prints its stacks meanwhile, perhaps within that line.
    pid = int(re.search(r"process (\d+), a child of .*pause", said)[1])
    assert f"    {pid} python" in said and "system call" in said
    until(lambda: not watcher.parent(pid), "the grandchild is gone")


def test_a_test_that_leaves_a_process_fails_and_the_process_is_ended(tmp_path):
    done = run(tmp_path, LEAVES)
    assert done.returncode == 1, done.stdout
    assert "the test has left {'process " in done.stdout and "sleep 1000" in done.stdout
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not watcher.parent(pid), "the process is gone")


def test_a_test_process_that_dies_takes_all_with_it(tmp_path):
    done = run(tmp_path, DIES)
    assert done.returncode == -signal.SIGABRT, done.stdout
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not watcher.parent(pid), "the process is gone")


def test_signals_that_the_shell_ignored_are_not_ignored(tmp_path):
    done = run(tmp_path, IGNORED, before="trap '' INT HUP PIPE; ")
    assert done.returncode == 0, done.stdout
