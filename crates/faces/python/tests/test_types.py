"""The stubs, as a type checker sees them."""

import ast
import os
import subprocess
import sys

import pytest

import farpage as fp

HERE = os.path.dirname(__file__)
STUB = os.path.join(os.path.dirname(fp.__file__), "__init__.pyi")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """What the checker knows of NumPy, which takes it ten seconds to find out."""
    return tmp_path_factory.mktemp("cache")


def mypy(path, tmp_path, cache):
    run = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(cache), path]
    environment = dict(os.environ, MYPYPATH="")
    return subprocess.run(run, capture_output=True, text=True, cwd=tmp_path, env=environment)


def test_a_strict_checker_accepts_a_right_program(tmp_path, cache):
    done = mypy(os.path.join(HERE, "typed_example.py"), tmp_path, cache)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_strict_checker_refuses_a_wrong_one(tmp_path, cache):
    (tmp_path / "wrong.py").write_text(
        "import farpage as fp\n"
        "fp.open('x', mode='a')\n"
        "fp.open('x', colour='red')\n"
        "fp.open('x').prefetch('all')\n"
        "x: str = fp.open('x')[0]\n"
    )
    done = mypy("wrong.py", tmp_path, cache)
    assert [f"wrong.py:{line}: error" in done.stdout for line in (2, 3, 4, 5)] == [True] * 4


def test_the_stubs_name_what_there_is():
    tree = ast.parse(open(STUB).read())
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and hasattr(fp, node.name):
            for member in node.body:
                if isinstance(member, ast.FunctionDef) and member.name != "__buffer__":
                    assert hasattr(getattr(fp, node.name), member.name), member.name
        if isinstance(node, ast.FunctionDef):
            assert callable(getattr(fp, node.name))
    named = {node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    public = {name for name in fp.__all__ if name not in ("Error", "errors", "__version__")}
    assert public <= named


def test_what_is_public_is_documented():
    for thing in (fp.open, fp.load, fp.set_ram, fp.cache_folder, fp.Object, fp.Array, fp.Arrays):
        assert thing.__doc__
    for name in dir(fp.Object):
        if not name.startswith("_"):
            assert getattr(fp.Object, name).__doc__, name
