"""Every registered method has a page on one template, and its parameters are those of the code."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from fedkin.methods import METHODS
from fedkin.registry import Entry

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "methods"
SECTIONS = [
    "Algorithm", "Who sees what", "Parameters", "Decisions and deviations", "How to run it", "What it costs", "Limits",
    "Findings", "What each part is worth", "When to use it",
]  # fmt: skip
OPTIONAL = ["Limits", "What each part is worth"]
BUILT_IN = {name: entry for name, entry in METHODS.items() if entry.target.startswith("fedkin.")}
TARGETS = sorted({entry.target for entry in BUILT_IN.values()})


def page_of(target: str) -> Path:
    """The page is named like the method's module."""
    module = target.split(":")[0].split(".")[-1]
    return next((p for p in PAGES.glob("*.md") if p.stem.replace("-", "_") == module), PAGES / f"{module}.md")


def names_of(target: str) -> list[str]:
    return [name for name, entry in BUILT_IN.items() if entry.target == target]


def section(text: str, name: str) -> str:
    return re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)[1]


def parameters(text: str) -> dict[str, str]:
    """Field to default, as the table of the page says; several fields may share a line."""
    found = {}
    for line in section(text, "Parameters").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) < 4 or "the run's" in cells[1]:
            continue
        names = re.findall(r"`(\w+)`", cells[1])
        values = cells[2].split(", ") if len(names) > 1 else [cells[2]]
        found.update(zip(names, values[: len(names)], strict=True))
    return found


def said(value: Any) -> str:
    """A default as a page writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return ", ".join(map(said, value))
    return str(value)


def test_no_page_has_a_mark_that_was_to_be_replaced():
    """A line like RESULTS_TABLE, for numbers that never came."""
    left = {
        page.name: found
        for page in PAGES.parent.rglob("*.md")
        if (found := re.findall(r"^[A-Z]+(?:_[A-Z]+)+$|\bTODO\b|\bTBD\b", page.read_text(), re.MULTILINE))
    }
    assert not left


def test_every_page_is_of_a_method():
    assert {p.name for p in PAGES.glob("*.md")} - {"index.md"} == {page_of(target).name for target in TARGETS}


@pytest.mark.parametrize("target", TARGETS)
def test_a_page_keeps_to_the_template(target):
    text = page_of(target).read_text()
    found = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert found == [name for name in SECTIONS if name in found or name not in OPTIONAL]
    assert text.startswith("# ")
    assert "| symbol | field | default | meaning |" in section(text, "Parameters") or not fields(entry(target).load())
    for name in names_of(target):
        assert re.search(rf"`{name}`|fedkin run {name} ", text), f"{page_of(target).name} does not name {name}"
    assert f"fedkin run {names_of(target)[0]}" in section(text, "How to run it")


@pytest.mark.parametrize("target", TARGETS)
def test_who_sees_what_is_what_the_code_says(target):
    text = section(page_of(target).read_text(), "Who sees what")
    made = entry(target).load()()
    assert f"- **Travels in a round:** {made.travels}.\n" in text
    assert f"- **Stays at the client:** {made.stays}.\n" in text
    if made.travels != "nothing":
        assert ("secure aggregation](../privacy.md) is possible" in text) == bool(made.averages)
        assert ("secure aggregation](../privacy.md) is refused" in text) != bool(made.averages)


def test_findings_are_those_of_the_leaderboard():
    spec = importlib.util.spec_from_file_location("method_pages", ROOT / "benchmarks" / "method_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    board = json.loads((ROOT / "docs" / "results" / "leaderboard.json").read_text())
    pages = module.pages()
    assert {path.name for path in pages} == {page_of(target).name for target in TARGETS}
    for path, names in pages.items():
        text = path.read_text()
        assert module.page(text, names, board) == text, "run python benchmarks/method_pages.py"
    assert "| `kin` | " in module.findings(["kin"], board)
    assert "Not on the" in module.findings(["no-such-method"], board)


@pytest.mark.parametrize("target", TARGETS)
def test_parameters_are_those_of_the_code(target):
    listed = parameters(page_of(target).read_text())
    code = {f.name: f.default for f in fields(entry(target).load())}
    assert set(listed) == set(code)
    for name, default in code.items():
        given = re.sub(r" \(.*\)$", "", listed[name]).replace("`", "").replace("−", "-").lower()
        allowed = {said(default).lower()} | ({"", "none", "all"} if default in (None, (), "") else set())
        assert given in allowed, f"{page_of(target).name}: {name} is {said(default)!r}, the page says {given!r}"


def entry(target: str) -> Entry:
    return BUILT_IN[names_of(target)[0]]
