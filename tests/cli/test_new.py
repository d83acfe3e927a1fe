"""`fedkin new method`: what it writes passes; and methods of installed packages are found."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.cli.conftest import SMALL

pytestmark = pytest.mark.processes


def python(*words: str, cwd, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    return subprocess.run([sys.executable, *words], cwd=cwd, env=env, capture_output=True, text=True)


def test_what_is_written_passes(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = call("new", "method", "my-method")
    assert code == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["my_method.md", "my_method.py", "test_my_method.py"]
    assert "fedkin verify my_method.py:MyMethod" in out
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout
    for tool in (["check", "--select", "E,F,W,I,B,UP,RUF"], ["format", "--check"]):
        done = python("-m", "ruff", *tool, "--line-length", "120", "--no-cache", ".", cwd=tmp_path)
        assert done.returncode == 0, done.stdout
    code, out, err = call("compare", "local", "my_method.py:MyMethod,server_step=0.5", *SMALL)
    assert code == 0, err
    assert "my_method.py:MyMethod,server_step=0.5" in out


def test_the_test_that_is_written_can_fail(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call("new", "method", "mine")
    text = (tmp_path / "mine.py").read_text()
    (tmp_path / "mine.py").write_text(text.replace("self.server_step * (mean", "0.5 * self.server_step * (mean"))
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "hand or fedavg", cwd=tmp_path)
    assert "2 failed" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "given: nothing"),
        (["method"], "given: method"),
        (["model", "x"], "given: model x"),
        (["method", "9lives"], "cannot be a Python module"),
        (["method", "class"], "cannot be a Python module"),
        (["method", "lg-fedavg"], "is a method of fedkin already"),
        (["method", "torch"], "is the name of an installed Python module"),
        (["method", "mine"], "Already there: mine.py"),
    ],
)
def test_mistakes(fails, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("mine")
    assert said in fails("new", *words)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.py"]
    assert (tmp_path / "mine.py").read_text() == "mine"


@pytest.fixture
def plug_in(call, tmp_path, monkeypatch):
    """A package with an entry point, as pip would install it."""
    monkeypatch.chdir(tmp_path)
    call("new", "method", "fed-plug")
    info = tmp_path / "fed_plug-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fed-plug\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fedkin.methods]\nfed-plug = fed_plug:FedPlug\n")
    return tmp_path


def fedkin(*words: str, folder) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    return python("-m", "fedkin", *words, cwd=folder, PYTHONPATH=path)


def test_a_plug_in_is_listed_run_and_compared(plug_in):
    done = fedkin("list", "methods", folder=plug_in)
    assert "fed-plug" in done.stdout
    assert "plug-in from fed-plug" in done.stdout
    done = fedkin("run", "fed-plug,server_step=0.5", *SMALL, folder=plug_in)
    assert done.returncode == 0, done.stderr
    done = fedkin("compare", "local", "fed-plug", *SMALL, folder=plug_in)
    assert done.returncode == 0, done.stderr
    assert "fed-plug" in done.stdout


def test_a_plug_in_cannot_take_the_name_of_a_built_in_method(plug_in):
    (plug_in / "fed_plug-1.0.dist-info" / "entry_points.txt").write_text(
        "[fedkin.methods]\nfedavg = fed_plug:FedPlug\n"
    )
    done = fedkin("run", "fedavg", "--json", *SMALL, folder=plug_in)
    assert done.returncode == 0
    assert "fed-plug has a plug-in 'fedavg', but that name is taken: ignored" in done.stderr


def test_a_plug_in_that_cannot_be_imported_says_so(plug_in):
    (plug_in / "fed_plug.py").unlink()
    assert fedkin("list", "methods", folder=plug_in).returncode == 0
    done = fedkin("run", "fed-plug", folder=plug_in)
    assert done.returncode == 2
    assert "No module named 'fed_plug'" in done.stderr
    assert "Traceback" not in done.stderr
