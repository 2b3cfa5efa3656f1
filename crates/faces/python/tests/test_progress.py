"""A bar on a terminal and in a notebook, and nothing anywhere else."""

import os
import pty
import subprocess
import sys

import pytest
from harness import PATIENCE_S
from jupyter_client.manager import start_new_kernel

import farpage as fp

PROGRAM = """
import sys, farpage as fp
obj = fp.open(sys.argv[1], cache=False, ram="64M")
assert obj.prefetch() == 8 << 20
"""


def on_a_terminal(program, *arguments):
    """What a program writes to a terminal."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen([sys.executable, "-c", program, *arguments], stderr=theirs)
    os.close(theirs)
    written = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        written += part
    os.close(ours)
    assert child.wait() == 0
    return written.decode()


def test_a_terminal_gets_a_bar_that_is_wiped(slow_server, numbers):
    written = on_a_terminal(PROGRAM, slow_server.url("numbers.bin"))
    assert "farpage: numbers.bin" in written and " of 8 MiB" in written and "/s" in written
    assert written.endswith(" \r")


def test_a_terminal_gets_no_bar_when_it_is_quick_or_unwanted(numbers, slow_server):
    # A bar comes when it takes longer than that, which a busy machine may make it.
    quick = PROGRAM.replace("import sys, farpage as fp", "import sys, farpage as fp\nfp._progress._QUIET_SECONDS = 1e9")
    quick = quick.replace("prefetch() == 8 << 20", "prefetch((0, 4096)) == 4096")
    assert "1e9" in quick and "4096" in quick and on_a_terminal(quick, numbers[0]) == ""
    unwanted = PROGRAM.replace("prefetch()", "prefetch(progress=False)")
    assert on_a_terminal(unwanted, slow_server.url("numbers.bin")) == ""


def test_a_pipe_gets_nothing(script, slow_server, numbers):
    done = script(PROGRAM, slow_server.url("numbers.bin"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_function_is_told_how_much_came(slow_server, numbers):
    told = []
    fp.open(slow_server.url("numbers.bin"), cache=False, ram="64M").prefetch(progress=told.append)
    assert len(told) > 3 and told == sorted(told) and told[-1] <= 8 << 20


def test_a_function_that_raises_is_heard(slow_server, numbers):
    def progress(done):
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        fp.open(slow_server.url("numbers.bin"), cache=False).prefetch(progress=progress)


def test_a_notebook_gets_one_display_that_is_updated(slow_server, numbers):
    manager, client = start_new_kernel(startup_timeout=PATIENCE_S, kernel_name="python3")
    shown = []

    def hear(message):
        if message["msg_type"] in ("display_data", "update_display_data", "stream", "error"):
            shown.append((message["msg_type"], message["content"]))

    try:
        program = PROGRAM.replace("sys.argv[1]", repr(slow_server.url("numbers.bin")))
        reply = client.execute_interactive(program, output_hook=hear, timeout=PATIENCE_S)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert reply["content"]["status"] == "ok", shown
    kinds = [kind for kind, _ in shown]
    assert kinds[0] == "display_data" and set(kinds[1:]) == {"update_display_data"}
    texts = [content["data"]["text/plain"] for _, content in shown]
    assert all(text.startswith("farpage: numbers.bin") for text in texts)
    assert len({content["transient"]["display_id"] for _, content in shown}) == 1
