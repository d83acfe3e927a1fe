"""The numbers of docs/choosing.md, and those of README.md, are those of the leaderboard and of the stored runs."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

from fedkin.experiments.cells import Cells
from fedkin.methods import METHODS

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "choosing.md").read_text()


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def choosing():
    return script("choosing")


def test_the_page_has_the_numbers_of_the_leaderboard(choosing):
    board = json.loads((ROOT / "docs" / "results" / "leaderboard.json").read_text())
    assert choosing.page(PAGE, board) == PAGE, "run python benchmarks/choosing.py"
    readme = (ROOT / "README.md").read_text()
    assert choosing.readme(readme, board) == readme, "run python benchmarks/choosing.py"


def test_the_numbers_by_size_are_those_of_the_stored_runs():
    sizes = script("sizes")
    assert sizes.page(PAGE, Cells(ROOT / "docs" / "results" / "cells")) == PAGE, "run python benchmarks/sizes.py"


def test_a_run_by_size_that_is_missing_is_a_dash(tmp_path):
    sizes, cells = script("sizes"), Cells(tmp_path)
    assert "| local | – | – | – |" in sizes.table(cells)
    for seed, accuracy in enumerate((0.8, 0.9, 1.0)):
        for lr in sizes.GRID:
            result = {"personal": [accuracy, accuracy], "validation": [lr], "kept": {}}
            cells.put(sizes.job("local", 25, lr, seed), result)
    assert "| local | **90.0 ± 10.0** | – | – |" in sizes.table(cells)
    assert "has not been run yet" in sizes.table(cells)


def test_the_best_of_a_track_and_few_bytes(choosing):
    def line(name: str, one: float, two: float, megabytes: float) -> dict:
        return {"method": name, "rank": 1.0, "accuracy": {"a": one, "b": two}, "worst_decile": 0.5,
                "megabytes": megabytes}  # fmt: skip

    lines = [line("local", 0.6, 0.7, 0.0), line("fedavg", 0.8, 0.5, 1.0), line("other", 0.7, 0.9, 0.2)]
    text = choosing.numbers({"command": "c", "budget": "b.", "methods": lines})
    assert "| a | fedavg | 80.0 | 60.0 | 80.0 | – |" in text
    assert "| b | other | 90.0 | 70.0 | 50.0 | – |" in text
    few = text.split("at most a tenth")[1].split("| method |")[1]
    assert "| local | 1.0 | 65.0 | 50.0 | 0 B |" in few
    assert "other" not in few


def test_every_method_that_the_page_names_exists():
    words = PAGE.split("<!-- numbers -->")[0]
    named = set(re.findall(r"`([a-z0-9-]+)`", words))
    assert len(named & set(METHODS)) > 15
    assert named <= set(METHODS)
