"""Python code that answers for memory of other processes: `farpage.serve_pager`."""

import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from harness import until

import farpage as fp

CODE = """
    import sys
    import farpage as fp

    class Numbers:
        def __init__(self):
            self.written = {}

        def read(self, offset, length):
            if offset <= 13 * 4096 < offset + length:
                raise ValueError("page 13 brings bad luck")
            pages = range(offset // 4096, (offset + length + 4095) // 4096)
            whole = b"".join(self.written.get(page, bytes([page % 251]) * 4096) for page in pages)
            return whole[:length]

        def write(self, offset, data):
            for at in range(0, len(data), 4096):
                self.written[(offset + at) // 4096] = data[at:at + 4096].ljust(4096, b"\\0")
            print("written", offset, len(data), flush=True)

    print("ready", flush=True)
    fp.serve_pager(sys.argv[1], Numbers(), "4M", patience=600)
"""


def serve(name):
    code = textwrap.dedent(CODE)
    run = [sys.executable, "-c", code, name]
    pager = subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert pager.stdout.readline() == "ready\n"
    return pager


def find(name):
    def found():
        try:
            return fp.SharedMemory(name)
        except fp.errors.NotFound:
            return None

    return until(found, f"{name} is served")


def test_a_class_answers_in_a_process_of_its_own(host):
    pager = serve("numbers")
    shm = find("numbers")
    numbers = np.ndarray((1024, 4096), "u1", buffer=shm.buf)
    assert (numbers[20:1000] == (np.arange(20, 1000) % 251)[:, None]).all()
    numbers[500] = 7
    del numbers
    shm.close()
    assert pager.stdout.readline() == f"written {500 * 4096} 4096\n"
    pager.send_signal(signal.SIGINT)
    _, said = pager.communicate()
    assert pager.returncode != 0 and "KeyboardInterrupt" in said


def test_what_it_raises_is_the_reason(host, script):
    pager = serve("unlucky")
    find("unlucky").close()
    done = script(
        """
        import farpage as fp
        shm = fp.SharedMemory("unlucky")
        print(shm.buf[13 * 4096])
        """
    )
    assert done.returncode == -signal.SIGBUS
    why = f"gets SIGBUS: it uses 'unlucky' at byte {13 * 4096}, which cannot be had: "
    assert why in done.stderr and "page 13 brings bad luck" in done.stderr
    pager.send_signal(signal.SIGTERM)
    _, said = pager.communicate()
    assert "page 13 brings bad luck" in said


def test_a_function_answers_and_what_it_says_can_only_be_read(host):
    code = "import farpage as fp; fp.serve_pager('ones', lambda offset, n: b'1' * n, 10000)"
    pager = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    shm = find("ones")
    assert bytes(shm.buf) == b"1" * 10000 and shm.buf.readonly
    with pytest.raises(TypeError):
        shm.buf[5] = 1
    shm.close()
    pager.kill()
    pager.wait()


def test_what_makes_no_sense_is_refused(host):
    for name, pager, size, patience in [
        (5, len, 10, None),
        ("x", 5, 10, None),
        ("x", len, 10, 0),
        ("x", len, 10, -1),
        ("a/b", len, 10, None),
        ("x", len, 0, None),
    ]:
        with pytest.raises(fp.errors.ArgumentError):
            fp.serve_pager(name, pager, size, patience=patience)
    shm = fp.SharedMemory("taken", create=True, size=10)
    with pytest.raises(fp.errors.Exists):
        fp.serve_pager("taken", len, 10)
    shm.close()
    shm.unlink()


def test_without_a_host_kernel_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("FARPAGE_HOST", os.fspath(tmp_path / "none"))
    with pytest.raises(fp.errors.Unreachable):
        fp.serve_pager("x", len, 10)
