"""docs/architecture.md is true: the walk from the command to the equations, and the files of the engine."""

from __future__ import annotations

import ast
import functools
import re
import sys
from itertools import groupby
from pathlib import Path

import pytest

import fedkin
from fedkin.cli.main import main
from fedkin.methods.fedcedar import FedCEDAR

SOURCE = Path(fedkin.__file__).parent
PAGE = (SOURCE.parents[1] / "docs" / "architecture.md").read_text()
PICTURE = re.search(r"## From the command to the equation.*?```\n(.*?)```", PAGE, re.DOTALL)[1]


def names_in(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def test_every_file_and_function_of_the_picture_exists():
    steps = re.findall(r"([a-z]+(?:/[a-z]+)*\.py) +([A-Za-z_.]+)(?:\(| )", PICTURE)
    assert len(steps) >= 8
    for file, function in steps:
        assert set(function.split(".")) <= names_in(SOURCE / file), (file, function)


def test_every_file_of_the_engine_is_listed():
    table = PAGE.split("## The engine, file by file")[1].split("##")[0]
    listed = set(re.findall(r"`(\w+\.py)`", table))
    there = {path.name for path in (SOURCE / "engine").glob("*.py")} - {"__init__.py"}
    assert listed == there


def test_the_top_of_the_package_is_listed_and_holds_nothing_else():
    """Loose modules belong into a room. `fedkin.verify` must stay a function, so no module may have that name."""
    table = PAGE.split("## The top of the package")[1].split("##")[0]
    listed = set(re.findall(r"^\| `(\w+\.py)`", table, re.MULTILINE))
    assert {path.name for path in SOURCE.glob("*.py")} == listed
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir()} | {path.stem for path in SOURCE.glob("*.py")}
    assert not rooms & set(fedkin.__all__)


def walked() -> list[str]:
    """The files of fedkin on the stack, from the command on; calls inside a file count once."""
    frame, files = sys._getframe(2), []
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if SOURCE in path.parents:
            files.append(str(path.relative_to(SOURCE)))
        frame = frame.f_back
    files = [file for file, _ in groupby(reversed(files))]
    return files[files.index("cli/run.py") :]


def test_the_walk_is_that_of_the_picture(monkeypatch):
    seen: dict[str, list[str]] = {}

    def noted(name: str, original):
        def function(self, *arguments):
            seen.setdefault(name, walked())
            return original(self, *arguments)

        return functools.wraps(original)(function)

    for name in ("merge", "local"):
        monkeypatch.setattr(FedCEDAR, name, noted(name, getattr(FedCEDAR, name)))
    with pytest.raises(SystemExit) as end:
        main(["run", "fedcedar", "--clients", "2", "--rounds", "1", "--samples-per-client", "40", "--quiet",
              "--engine", "serial"])  # fmt: skip
    assert end.value.code == 0
    assert seen["merge"] == ["cli/run.py", "engine/loop.py", "protocol.py"]
    assert seen["local"] == [
        "cli/run.py", "engine/loop.py", "protocol.py", "engine/round.py", "engine/serial.py", "engine/runner.py",
    ]  # fmt: skip
    pictured = [file for file in re.findall(r"[a-z]+(?:/[a-z]+)*\.py", PICTURE) if file != "methods/fedcedar.py"]
    pictured = [file for file, _ in groupby(pictured)]
    with_workers = [f for file in seen["local"] for f in ([file] if file != "engine/serial.py" else
                    ["engine/scheduler.py", "engine/pool.py"])]  # fmt: skip
    assert pictured == with_workers
