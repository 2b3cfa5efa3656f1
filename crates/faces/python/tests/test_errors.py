"""Each failure has its class, and a page that fails under an array says why before it dies."""

import errno
import os
import signal

import numpy as np
import pytest
from conftest import TestServer
from harness import until

import farpage as fp

MIB = 1 << 20


def in_time(act):
    """What `act` returns. A machine may be too busy for the short times that are given here."""

    def acted():
        try:
            return [act()]
        except fp.TimedOut:
            return []

    return until(acted, "the server answers in time")[0]


def far(server, timeout=600):
    """8 MiB over HTTP; what fails for now is tried for so many seconds."""
    return in_time(lambda: fp.open(server.url("numbers.bin"), timeout=timeout, cache=False))


def raising(obj, at=4 * MIB):
    """What copying and prefetching raise: the same."""
    with pytest.raises(fp.Error) as copied:
        obj[at : at + 4096]
    with pytest.raises(fp.Error) as prefetched:
        obj.prefetch((at, at + 4096))
    assert type(copied.value) is type(prefetched.value)
    return copied.value


@pytest.mark.parametrize("opener", [fp.open, fp.load])
def test_what_is_not_there(server, tmp_path, opener):
    for address in (server.url("none"), str(tmp_path / "none")):
        with pytest.raises(fp.NotFound, match="none") as caught:
            opener(address)
        assert isinstance(caught.value, FileNotFoundError)


def test_what_is_not_allowed(server, numbers):
    server.rule("numbers.bin", "status 403")
    with pytest.raises(fp.Denied) as caught:
        fp.open(server.url("numbers.bin"))
    assert isinstance(caught.value, PermissionError)


FAULTS = [
    ("status 404", fp.NotFound),
    ("status 403", fp.Denied),
    ("status 416", fp.SourceError),
    ("status 503", fp.TimedOut),
    ("silence", fp.TimedOut),
    ("later 5", fp.WrongRange),
    ('tagged "other"', fp.Changed),
]


@pytest.mark.parametrize("answer, error", FAULTS, ids=[answer for answer, _ in FAULTS])
def test_a_server_that_fails_later(server, numbers, answer, error):
    obj = far(server, timeout=0.5 if error is fp.TimedOut else 600)
    server.rule("numbers.bin", answer)
    caught = raising(obj)
    assert isinstance(caught, error) and "numbers.bin" in str(caught)
    assert obj.stats()["failures"] > 0
    server.rule("numbers.bin", "right")
    assert in_time(lambda: obj[0]) is not None


def test_a_file_that_changed(server, numbers):
    obj = far(server)
    with open(numbers[0], "r+b") as file:
        file.write(b"new")
        os.utime(file.fileno(), (1, 1))
    assert isinstance(raising(obj), fp.Changed)


def test_a_server_that_is_gone(numbers, tmp_path):
    server = TestServer(tmp_path)
    obj = far(server, timeout=0.3)
    server.stop()
    caught = raising(obj)
    assert isinstance(caught, TimeoutError) and "within 1 s" in str(caught)
    with pytest.raises(fp.SourceError):
        fp.open(server.url("numbers.bin"), timeout=0.3)


def test_a_local_file_that_was_cut(numbers):
    obj = fp.open(numbers[0])
    os.truncate(numbers[0], MIB)
    assert isinstance(raising(obj), (fp.Truncated, fp.Changed))


def test_a_packed_file_that_is_damaged(tmp_path):
    import gzip

    data = bytearray(gzip.compress(np.random.default_rng(1).bytes(100_000)))
    data[50_000] ^= 0xFF
    (tmp_path / "x.gz").write_bytes(data)
    with pytest.raises(fp.Corrupt):
        fp.open(tmp_path / "x.gz")[:]


def test_what_is_no_file(tmp_path):
    with pytest.raises(fp.Unsupported):
        fp.open(tmp_path)
    with pytest.raises(fp.Error):
        fp.open("gopher://host/x")


def test_a_flush_that_the_disk_refuses(script, tmp_path):
    (tmp_path / "x").write_bytes(bytes(1 << 20))
    done = script(
        """
        import resource, signal, sys, farpage as fp
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        array = fp.open(sys.argv[1], dtype="u1", mode="r+")
        array[600_000] = 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, -1))
        for _ in range(2):
            try:
                array.flush()
            except fp.NotWritten as error:
                print(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
        array.flush()
        """,
        tmp_path / "x",
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 2 and str(tmp_path / "x") in lines[0], done
    assert done.stderr == "" and (tmp_path / "x").read_bytes()[600_000] == 1


def test_passwords_are_in_no_message(server, numbers, tmp_path):
    address = server.url("numbers.bin").replace("://", "://user:hush@") + "?key=hush"
    obj = fp.open(address, headers={"Authorization-Token": "hush"}, cache=False)
    server.rule("numbers.bin", "status 404")
    texts = [str(raising(obj)), repr(obj), obj.name]
    with pytest.raises(fp.NotFound) as caught:
        fp.open(address)
    texts.append(str(caught.value))
    assert not any("hush" in text for text in texts)


SCRIPT = """
import os, sys, farpage as fp
array = fp.open(sys.argv[1], dtype="u1", timeout=0.3)
os.truncate(sys.argv[1], 4096)
print("before", flush=True)
array[{at}]
print("after", flush=True)
"""


def test_a_page_that_fails_under_an_array_says_which_and_why(script, numbers):
    done = script(SCRIPT.format(at=5_000_000), numbers[0])
    assert done.returncode == -signal.SIGBUS
    assert done.stdout == "before\n"
    (line,) = done.stderr.splitlines()
    assert numbers[0] in line and line.startswith("farpage: ")
    page = 5_000_000 // 4096 * 4096
    assert str(page) in line, line
    assert "open it again" in line


def test_a_function_that_raises_under_an_array_says_so(script):
    done = script(
        """
        import farpage as fp
        def read(offset, length):
            raise RuntimeError("no luck")
        fp.open(read, size=5000, dtype="u1")[0]
        """
    )
    assert done.returncode == -signal.SIGBUS
    (line,) = done.stderr.splitlines()
    assert "RuntimeError: no luck" in line and "read" in line


def test_zeros_are_read_where_they_were_asked_for(script, server, numbers):
    obj = fp.open(server.url("numbers.bin"), on_failure="zero", cache=False)
    server.rule("numbers.bin", "status 404")
    array = np.frombuffer(obj, "f8")
    assert not array[4096:4100].any()


@pytest.mark.parametrize("name", [n for n in dir(fp.errors) if n[0].isupper()])
def test_each_class_is_an_error_and_says_what_it_is(name):
    error = getattr(fp.errors, name)
    assert issubclass(error, fp.Error) and error.__doc__ and getattr(fp, name) is error


def test_options_of_the_wrong_kind_are_refused(numbers):
    for options, words in [
        ({"mode": 5}, "mode cannot be 5; give 'r', "),
        ({"timeout": "soon"}, "timeout cannot be 'soon'; give seconds"),
        ({"timeout": -1}, "timeout is no time"),
        ({"headers": 5}, "headers cannot be 5; give a dict"),
        ({"headers": "Name: value"}, "headers are no pairs"),
        ({"headers": {"Name": 5}}, "headers are no pairs"),
        ({"cache": 5}, "cache cannot be 5; give True, a folder"),
        ({"cache": ("a", "1G", "b")}, "is no .folder, limit."),
        ({"decompress": "yes"}, "give True or False"),
        ({"record": 5}, "record cannot be 5; give a path"),
        ({"ram": object()}, "is no number of bytes; give one from 0 to"),
        ({"size": -1}, "size -1 is no number"),
        ({"size": 1 << 80}, "is no number of bytes; give one from 0 to"),
        ({"ram": "9000000T"}, "is no number of bytes"),
        ({"dtype": "f8", "shape": 2.5}, "shape 2.5 is no number of elements"),
        ({"dtype": "f8", "shape": "ab"}, "is no number of elements"),
        ({"on_failure": "hope"}, "on_failure 'hope' is not known"),
        ({"eager": "x"}, "eager cannot be 'x'; give True or False"),
        ({"eager": True, "progress": 5}, "progress cannot be 5; give True, False, or a function"),
    ]:
        with pytest.raises(fp.ArgumentError, match=words):
            fp.open(numbers[0], **options)
    with pytest.raises(fp.FormatError, match="-1 for a dimension, or the offset where it begins"):
        fp.open(numbers[0], dtype="f8", shape=5)
    with pytest.raises(fp.Unsupported, match="'/proc/x': no cache can be kept there: .*; give "):
        fp.open(numbers[0], cache="/proc/x")
    obj = fp.open(numbers[0])
    for wrong in (lambda: obj[...], lambda: obj[(1, 2)], lambda: obj.prefetch((-5, 10))):
        with pytest.raises(fp.ArgumentError, match="is no byte and no range|no number of bytes"):
            wrong()
    with pytest.raises(fp.ArgumentError, match="cannot present .* as 'nope'.*open.address, dtype='nope'"):
        fp.load(numbers[0], dtype="nope")
    with pytest.raises(TypeError, match="unknown option 'colour'; there are dtype, "):
        fp.open(numbers[0], colour="red")
    with pytest.raises(fp.ArgumentError, match="neither made nor grow"):
        fp.open([numbers[0], "new"], mode="w+", size=5)


def test_what_is_an_os_error_has_its_number(tmp_path):
    with pytest.raises(OSError) as absent:
        fp.open(tmp_path / "none")
    assert absent.value.errno == errno.ENOENT
    kinds = [getattr(fp.errors, name) for name in dir(fp.errors)]
    kinds = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, OSError)]
    assert len(kinds) > 10 and all(kind("why").errno for kind in kinds)
    assert str(fp.errors.Denied("why")) == "why"
