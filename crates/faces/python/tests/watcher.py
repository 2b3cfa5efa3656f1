"""A process that watches a pytest process: see `harness.py`.

It is a process of its own because a test that hangs may hold the interpreter lock, so that no
thread of the test process could act.

Usage: watcher.py PID PIDFD FOLDER SECONDS, and lines on standard input: the test that begins, an
empty line when it has ended, `goodbye` at last.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

SPY_LIMIT_S = 120


def read(path):
    try:
        return Path(path).read_text(errors="replace").replace("\0", " ").strip()
    except OSError:
        return ""


def parent(pid):
    """The parent of a process that runs; 0 for one that has ended."""
    state, number, *_ = read(f"/proc/{pid}/stat").rpartition(") ")[2].split() or ("X", 0)
    return 0 if state in "ZX" else int(number)


def processes(root, folder):
    """Living descendants of process `root`, and all that has `folder` for its temporary files."""
    parents, found = {}, set()
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        if above := parent(pid):
            parents[pid] = above
            if f"TMPDIR={folder}" in read(f"/proc/{pid}/environ").split():
                found.add(pid)
    children = {root}
    while children := {pid for pid in parents if parents[pid] in children}:
        found |= children
    return found - {root, os.getpid()}


def report(pid):
    """Prints what each thread of a process waits for, and for root where in the kernel it does."""
    print(f"process {pid}, a child of {parent(pid)}: {read(f'/proc/{pid}/cmdline')}")
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        name, place, call = (read(task / file) for file in ("comm", "wchan", "syscall"))
        print(f"    {task.name} {name} is in {place}; its system call is {call}")
        for frame in read(task / "stack").splitlines():
            print("       ", frame)
    sys.stdout.flush()
    spy = shutil.which("py-spy", path=os.path.dirname(sys.executable)) or shutil.which("py-spy")
    if spy and "python" in os.path.basename(os.path.realpath(f"/proc/{pid}/exe")):
        subprocess.run(
            [spy, "dump", "--nonblocking", "--pid", str(pid)],
            stderr=subprocess.STDOUT,
            timeout=SPY_LIMIT_S,
            check=False,
        )


def kill(pid, number=signal.SIGKILL):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def end_all(root, folder):
    """Kills a test process and all that its tests started, in whatever session that is."""
    kill(root, signal.SIGSTOP)  # so that it does not go on with other tests meanwhile
    while left := processes(root, folder):
        for pid in left:
            kill(pid)
        time.sleep(0.01)
    kill(root)


def watch(root, ended, folder, limit_s):
    """Ends everything when a test runs for too long, or when the test process dies."""
    running = ""
    while True:
        ready = select.select([0, ended], [], [], limit_s if running else None)[0]
        if said := os.read(0, 1 << 16).decode() if 0 in ready else "":
            running = said.split("\n")[-2]
            if running == "goodbye":
                select.select([ended], [], [])  # Python uses the folder until it ends
                break
        elif ended in ready:
            print(f"\nthe test process died in {running or 'no test'}", flush=True)
            break
        elif not ready:
            print(f"\n{running} did not end within {limit_s:g} s, so it is killed", flush=True)
            kill(root, signal.SIGQUIT)  # it prints its own stacks
            for pid in [*sorted(processes(root, folder)), root]:
                report(pid)
            break
    if running != "goodbye":
        end_all(root, folder)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    watch(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4]))
