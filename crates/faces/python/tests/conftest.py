"""What the tests share: data, a server with faults on demand, scripts that run by themselves."""

import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import farpage as fp

pytest_plugins = ["harness"]


def pytest_terminal_summary(terminalreporter):
    """Says what was skipped as all tests do: who runs them knows what may be."""
    for report in terminalreporter.stats.get("skipped", []):
        _, _, why = report.longrepr
        terminalreporter.line("skipped: " + why.removeprefix("Skipped: "))


class TestServer:
    """`farpage-test-server`, which serves `folder`."""

    __test__ = False

    def __init__(self, folder, *options):
        program = os.environ["FARPAGE_TEST_SERVER"]
        self.folder = folder
        self.process = subprocess.Popen(
            [program, "--rules", *options, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.address = self.process.stdout.readline().strip().rstrip("/")

    def url(self, name):
        return f"{self.address}/{name}"

    def rule(self, name, answer):
        line = f"/{name} {answer}\n"
        self.process.stdin.write(line)
        self.process.stdin.flush()
        assert self.process.stdout.readline() == line

    def stop(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A host kernel with 16 MiB of RAM."""
    socket = str(tmp_path / "host")
    monkeypatch.setenv("FARPAGE_HOST", socket)
    run = [os.environ["FARPAGE_COMMAND"], "up", "--ram", "16M", "--spill", str(tmp_path)]
    up = subprocess.Popen(run, stdout=subprocess.PIPE, text=True)
    assert "answers at" in up.stdout.readline()
    fp._farpage.shared_forget_host()
    yield up
    up.send_signal(signal.SIGTERM)
    assert up.wait() == 0
    assert not os.path.exists(socket)


@pytest.fixture
def server(tmp_path):
    server = TestServer(tmp_path)
    yield server
    server.stop()


@pytest.fixture
def slow_server(tmp_path):
    server = TestServer(tmp_path, "--mb-per-s", "1")
    yield server
    server.stop()


@pytest.fixture
def numbers(tmp_path):
    """A file of float64 numbers: its path, and what is in it. 8 MiB."""
    values = np.random.default_rng(1).standard_normal(1 << 20)
    path = tmp_path / "numbers.bin"
    values.tofile(path)
    return str(path), values


@pytest.fixture
def script(tmp_path):
    """Runs a program in an interpreter of its own."""

    def run(text, *arguments, env=None):
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(text))
        return subprocess.run(
            [sys.executable, path, *map(str, arguments)],
            capture_output=True,
            text=True,
            env=dict(os.environ, **(env or {})),
        )

    return run


@pytest.fixture(scope="session", autouse=True)
def not_the_source_tree():
    """It is the installed package that is tested."""
    if "FARPAGE_INSTALLED" in os.environ:
        assert "site-packages" in fp.__file__
