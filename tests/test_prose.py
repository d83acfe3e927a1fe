"""README's commands and code, and the examples: prose that nobody runs drifts."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    line.split("#")[0].strip()
    for kind, text in BLOCKS
    if kind == "sh"
    for line in text.splitlines()
    if line.startswith("fedkin ")
]


def test_readme_has_what_is_tested():
    assert len(COMMANDS) >= 5
    assert any(kind == "python" for kind, _ in BLOCKS)
    assert "make demo" in README
    assert "make test" in README


@pytest.mark.processes
@pytest.mark.parametrize("command", COMMANDS)
def test_readme_command(command, tmp_path):
    if " deploy " in command:
        pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedkin[flower]'")
    maker = next(c for c in COMMANDS if "--out runs/first" in c)
    # what looks at a run needs it first
    for line in dict.fromkeys([maker, command] if "runs/first" in command else [command]):
        words = [sys.executable, "-m", "fedkin", *shlex.split(line)[1:]]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout


@pytest.mark.processes
@pytest.mark.parametrize("code", [text for kind, text in BLOCKS if kind == "python"])
def test_readme_code(code, tmp_path):
    assert len(code.strip().splitlines()) <= 12
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "fedavg-ft" in done.stdout


@pytest.mark.processes
@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_example(path, tmp_path):
    done = subprocess.run([sys.executable, path], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.processes
def test_own_method_of_the_examples_keeps_the_contract():
    done = subprocess.run(
        [sys.executable, "-m", "fedkin", "verify", "examples/own_method.py:KeepTheHead"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


@pytest.mark.processes
def test_demo(tmp_path):
    done = subprocess.run([sys.executable, "-m", "fedkin", "demo"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "gain over local" in done.stdout
    assert "runs/demo" in done.stdout
    assert (tmp_path / "runs/demo/comparison.json").exists()
    assert done.stdout.splitlines()[-1] == "Report: runs/demo/report.html"
    assert '"methods":[' in (tmp_path / "runs/demo/report.html").read_text()


@pytest.mark.parametrize("page", [*sorted(ROOT.glob("docs/**/*.md")), ROOT / "README.md"], ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target
