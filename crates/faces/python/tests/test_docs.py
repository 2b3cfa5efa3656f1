"""The examples of docs/python.md run, one after the other."""

import os
import re

from conftest import TestServer

import farpage as fp

PATH = os.path.join(os.environ["FARPAGE_DOCS"], "python.md")


def blocks():
    with open(PATH) as file:
        text = file.read()
    for found in re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        yield text.count("\n", 0, found.start()) + 1, found.group(1)


def test_all_examples_run(tmp_path, monkeypatch, capsys, host):
    monkeypatch.chdir(tmp_path)
    server = TestServer(tmp_path)
    names = {"__name__": "example"}
    try:
        for line, block in blocks():
            program = "\n" * line + block.replace("http://127.0.0.1:PORT", server.address)
            exec(compile(program, PATH, "exec"), names)
    finally:
        names.clear()  # while there is what they use
        server.stop()
    assert len(list(blocks())) >= 9
    assert "cannot find" in capsys.readouterr().out


THINGS = [fp.load, fp.open, fp.set_ram, fp.cache_folder, fp.Object, fp.Array, fp.Arrays]
THINGS += [fp.fopen, fp.lock_area, fp.lock_shared, fp.map_fd, fp.Registrations]
THINGS += [fp.SharedMemory, fp.Lock, fp.Condition, fp.Semaphore, fp.Barrier]


def test_the_examples_of_docstrings_run(script, host):
    names = [thing.__name__ for thing in THINGS]
    done = script(
        f"""
        import doctest, os, sys, numpy as np, farpage as fp
        os.chdir(os.path.dirname(sys.argv[0]))
        np.save("x.npy", np.arange(6.0).reshape(2, 3))
        np.zeros((100, 768), "f4").tofile("big.bin")
        finder, runner = doctest.DocTestFinder(exclude_empty=True), doctest.DocTestRunner()
        for name in {names}:
            for test in finder.find(getattr(fp, name), name, globs={{"np": np, "fp": fp}}):
                runner.run(test)
        failed, tried = runner.summarize()
        assert tried > 15, tried
        sys.exit(failed)
        """
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
