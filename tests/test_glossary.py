"""One word for one thing, in American spelling: names that were replaced do not come back."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
# Replaced by Client, RunContext, RoundClients, Slot, SiteConfig, SiteInfo, NodeDirectory, RemoteFederation,
# checkpoint, on_progress, _notify, evaluate_all, RESUMABLE, with_rows, index, path or rank.
REPLACED = {
    "Me", "me", "Desk", "Exchanges", "Place", "Home", "Card", "Roll", "Roster",
    "book", "told", "_tell", "_sweep", "FREE", "rows_of", "place",
}  # fmt: skip
BRITISH = re.compile(
    r"behaviour|colour|favour|honour|neighbour|centre(d|s|\b)|grey\b|(?<!aria-)labelled(?!by)|modelled|cancelled|travelled|artefact|"
    r"\b(normal|optim|initial|regular|personal|organ|recogn|general|standard|summar|minim|maxim|random|serial|synchron|"
    r"visual|parallel|central|util)is(e|es|ed|er|ers|ing|ation)\b|analys(e|ed|ing)\b|judgement|whilst",
    re.IGNORECASE,
)
# Old names of flags and fields, each with its new one, and a color of the site's theme.
OLD_NAMES = {"CHANGELOG.md", "src/fedkin/registry.py", "tests/cli/test_cli.py", "tests/test_glossary.py", "mkdocs.yml"}
TEXTS = [
    path
    for folder in ("src", "tests", "docs", "examples", "benchmarks", "scripts", ".github")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".md", ".txt", ".js", ".html", ".css", ".toml", ".yml") and "results" not in path.parts
] + sorted(path for path in ROOT.glob("*") if path.suffix in (".md", ".toml", ".yml", ".cff"))


def defined(tree: ast.AST) -> set[str]:
    """Everything that this code gives a name."""
    out = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            out.add(node.name)
        elif isinstance(node, ast.arg):
            out.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            out.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            out.add(node.attr)
    return out


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_a_replaced_name_is_not_used(path):
    assert not defined(ast.parse(path.read_text())) & REPLACED


def test_spelling_is_american():
    assert len(TEXTS) > 500
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in TEXTS
        if str(path.relative_to(ROOT)) not in OLD_NAMES
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if (match := BRITISH.search(line))
    ]
    assert not found


def test_the_checks_can_fail():
    assert defined(ast.parse("def f(told):\n    self.book = 1\n    place = 2\nclass Desk: ...")) >= {
        "told", "book", "place", "Desk",
    }  # fmt: skip
    for word in ("behaviour", "normalised", "optimiser", "centre", "Colour", "personalisation", "analysed"):
        assert BRITISH.search(f"the {word} of")
    for word in ("optimistic", "center", "analysis", "personalized", "organism", "minimal"):
        assert not BRITISH.search(f"the {word} of")
