"""However a program ends, it ends, and what was written is in its file."""

import signal

import numpy as np
import pytest

HEAD = """
import os, sys, threading, time
import numpy as np
import farpage as fp
path = sys.argv[1]
array = fp.open(path, dtype="f8", mode="r+", ram="4M")
import shutil
shutil.copy(path, path + ".copy")
reader = fp.open(path + ".copy", dtype="f8")
served = fp.open(lambda offset, length: b"\\1" * length, size=1 << 20, dtype="u1")
array[:5000] = 9
assert reader[-1] != 9 and served[5] == 1
"""

ENDS = {
    "the end": ("", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "an exception": ("raise KeyError('x')", 1),
    "sys.exit in a thread": (
        "t = threading.Thread(target=sys.exit); t.start(); t.join(); sys.exit(4)",
        4,
    ),
    "a daemon thread that reads": (
        "def go():\n    while True: reader[::64].sum(); reader.object.drop()\n"
        "threading.Thread(target=go, daemon=True).start()\nreader.sum()",
        0,
    ),
    "a prefetch on its way": (
        "threading.Thread(target=served.object.prefetch, daemon=True).start()",
        0,
    ),
    "an array in a cycle": ("class C: pass\nc = C(); c.c = c; c.array = array; del array", 0),
    "a forked child": (
        "pid = os.fork()\nif pid == 0:\n    array[:5000].sum(); sys.exit(7)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))",
        7,
    ),
    "exec": ("array.flush(); os.execv('/bin/sh', ['sh', '-c', 'exit 5'])", 5),
}


@pytest.mark.parametrize("end, status", ENDS.values(), ids=ENDS.keys())
def test_a_program_that_ends_by(script, numbers, end, status):
    done = script(HEAD + end, numbers[0])
    assert done.returncode == status, done.stderr
    if end.startswith("raise"):
        assert done.stderr.endswith("KeyError: 'x'\n")
    else:
        assert done.stderr == ""
    after = np.fromfile(numbers[0])
    assert (after[:5000] == 9).all()
    np.testing.assert_array_equal(after[5000:], numbers[1][5000:])


@pytest.mark.parametrize(
    "end, status", [("os._exit(6)", 6), ("os.kill(os.getpid(), 9)", -signal.SIGKILL)]
)
def test_a_program_that_ends_at_once_leaves_what_was_flushed(script, numbers, end, status):
    done = script(HEAD + "array.flush(); array[5000:6000] = 8\n" + end, numbers[0])
    assert (done.returncode, done.stderr) == (status, "")
    after = np.fromfile(numbers[0])
    assert (after[:5000] == 9).all()
    np.testing.assert_array_equal(after[6000:], numbers[1][6000:])


def test_what_cannot_be_written_at_the_end_is_said(script, numbers):
    done = script(
        HEAD
        + "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        + "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))",
        numbers[0],
    )
    assert f"cannot write '{numbers[0]}' back" in done.stderr


def test_ctrl_c_ends_a_prefetch(script, slow_server, numbers):
    done = script(
        """
        import signal, sys, farpage as fp
        # What runs in the background may have been started with the signal ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        obj = fp.open(sys.argv[1], cache=False)
        def progress(done):
            signal.raise_signal(signal.SIGINT)
        try:
            obj.prefetch(progress=progress)
        except KeyboardInterrupt:
            print("interrupted")
        """,
        slow_server.url("numbers.bin"),
    )
    assert (done.stdout, done.stderr) == ("interrupted\n", "")
