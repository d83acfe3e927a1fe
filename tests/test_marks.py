"""`make flaky` repeats every test that starts a process or a browser, because such a test says so by its mark; and no
test waits for a time in order to wait for something else."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
STARTS = {"subprocess.run", "subprocess.Popen", "subprocess.check_output", "os.fork", "forked"}
FIXTURES = {"spawn", "browser"}

# What sleeps, and why that is no way of waiting for something
SLEEPS = {
    "deploy/sites.py": 1,  # between two looks at a condition, without an end but the test's own
    "deploy/test_faults.py": 1,  # an outage of this length is what is tested
    "engine/test_kills.py": 1,  # a kill at a random instant
    "engine/test_ray.py": 1,  # an agent that is slow to start is what is tested
    "engine/test_stop.py": 2,  # work that must be interrupted
}


def unmarked(path: Path) -> list[str]:
    """Tests of a file that start a process themselves and are not marked."""
    tree = ast.parse(path.read_text())
    marks = [
        node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    if any("mark.processes" in ast.unparse(node.value) for node in marks):
        return []
    found = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            calls = {ast.unparse(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)}
            arguments = {argument.arg for argument in node.args.args}
            marked = any("mark.processes" in ast.unparse(mark) for mark in node.decorator_list)
            if (calls & STARTS or arguments & FIXTURES) and not marked:
                found.append(node.name)
    return found


@pytest.mark.parametrize("path", sorted(TESTS.rglob("test_*.py")), ids=lambda p: str(p.relative_to(TESTS)))
def test_what_starts_a_process_is_marked(path):
    assert not unmarked(path)


def test_the_rule_would_notice(tmp_path):
    path = tmp_path / "test_bad.py"
    path.write_text(
        "def test_a():\n    subprocess.run(['ls'])\n"
        "@pytest.mark.processes\ndef test_b(spawn):\n    spawn(['ls'])\n"
        "def test_c(browser): ...\ndef test_d(): ...\n"
    )
    assert unmarked(path) == ["test_a", "test_c"]
    path.write_text("pytestmark = pytest.mark.processes\n" + path.read_text())
    assert unmarked(path) == []


def test_nothing_sleeps_to_wait_for_something():
    found = {}
    for path in TESTS.rglob("*.py"):
        calls = re.findall(r"\btime\.sleep\(", path.read_text()) if path != Path(__file__) else []
        if calls:
            found[str(path.relative_to(TESTS))] = len(calls)
    assert found == SLEEPS
