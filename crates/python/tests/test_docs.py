"""The examples of docs/python.md run, one after the other."""

import os
import re

import pytest
from conftest import TestServer

PATH = os.path.join(os.environ["FARPAGE_DOCS"], "python.md")


def blocks():
    with open(PATH) as file:
        text = file.read()
    for found in re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        yield text.count("\n", 0, found.start()) + 1, found.group(1)


def test_all_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    server = TestServer(tmp_path)
    names = {"__name__": "example"}
    try:
        for line, block in blocks():
            program = "\n" * line + block.replace("http://127.0.0.1:PORT", server.address)
            exec(compile(program, PATH, "exec"), names)
    finally:
        server.stop()
    assert len(list(blocks())) >= 9
    assert "cannot find" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["load", "open", "set_ram"])
def test_the_text_names_what_there_is(name):
    with open(PATH) as file:
        assert name in file.read()
