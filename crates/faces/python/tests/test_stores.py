"""Objects in a real store, read and written."""

import os
import socket
import subprocess
from pathlib import Path

import numpy as np
import pytest
from harness import free_port, own_address, until

import farpage as fp

GATEWAY = Path(__file__).parents[4] / ".tools/bin/versitygw"


class Store:
    """A store with one empty bucket, `bucket`; `environment` says where it is."""

    def __init__(self, folder):
        self.bucket = folder / "bucket"
        self.bucket.mkdir()
        address = own_address()
        port = free_port(address)
        keys = ["--access", "testkey", "--secret", "testsecret"]
        listen = ["--port", f"{address}:{port}", "--quiet"]
        self.process = subprocess.Popen([GATEWAY, *keys, *listen, "posix", folder])
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://{address}:{port}",
            "AWS_ACCESS_KEY_ID": "testkey",
            "AWS_SECRET_ACCESS_KEY": "testsecret",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }
        ended = self.process.poll
        until(lambda: listens(address, port) or ended() is not None, "the store listens")
        assert ended() is None

    def stop(self):
        self.process.kill()
        self.process.wait()


def listens(address, port):
    try:
        socket.create_connection((address, port)).close()
    except OSError:
        return False
    return True


@pytest.fixture
def store(tmp_path, monkeypatch):
    (tmp_path / "store").mkdir()
    store = Store(tmp_path / "store")
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    yield store
    store.stop()


def make(url, values):
    """An object of these numbers."""
    with fp.open(url, mode="w+", size=values.nbytes) as obj:
        np.frombuffer(obj, values.dtype)[:] = values


def test_what_was_flushed_is_in_the_store(store):
    values = np.arange(1_500_000.0)
    make("s3://bucket/x", values)
    array = fp.open("s3://bucket/x", dtype="f8", mode="r+", ram="4M")
    before = array.object.version
    array[::1000] = -1
    assert np.fromfile(store.bucket / "x")[1000] == 1000
    array.flush()
    wanted = values.copy()
    wanted[::1000] = -1
    np.testing.assert_array_equal(np.fromfile(store.bucket / "x"), wanted)
    assert array.object.version != before
    array.object.drop()
    np.testing.assert_array_equal(array, wanted)
    np.testing.assert_array_equal(fp.open("s3://bucket/x", dtype="f8"), wanted)


def test_npy_and_new_arrays_are_written_in_the_store(store, tmp_path):
    np.save(tmp_path / "x.npy", np.arange(5000, dtype=">f4"))
    make("s3://bucket/x.npy", np.fromfile(tmp_path / "x.npy", "u1"))
    array = fp.load("s3://bucket/x.npy", mode="r+")
    array[3] = 1.5
    array.flush()
    stored = np.load(store.bucket / "x.npy")
    assert (stored[3], stored[4], stored.dtype) == (1.5, 4, np.dtype(">f4"))

    new = fp.open("s3://bucket/new", dtype="f8", shape=(100, 10), mode="w+")
    new[99, 9] = 7
    assert not (store.bucket / "new").exists()
    del new
    assert np.fromfile(store.bucket / "new").sum() == 7
    with pytest.raises(fp.Unsupported, match="would be lost"):
        fp.open("s3://bucket/new", dtype="f8", shape=(3,), mode="w+")


def test_an_interpreter_that_ends_writes_back(store, script):
    make("s3://bucket/x", np.zeros(1000))
    done = script(
        """
        import farpage as fp
        array = fp.open("s3://bucket/x", dtype="f8", mode="r+")
        array[:3] = 6
        """,
        env=store.environment,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert np.fromfile(store.bucket / "x").sum() == 18


def test_a_change_of_somebody_else_is_raised_and_kept(store, capfd):
    make("s3://bucket/x", np.zeros(1000))
    array = fp.open("s3://bucket/x", dtype="f8", mode="r+")
    array[0] = 1
    other = fp.open("s3://bucket/x", dtype="f8", mode="r+")
    other[1] = 2
    other.flush()
    with pytest.raises(fp.Changed, match="copy out what you wrote"):
        array.flush()
    assert array[0] == 1
    assert list(np.fromfile(store.bucket / "x")[:2]) == [0, 2]
    del array
    assert "is lost" in capfd.readouterr().err
