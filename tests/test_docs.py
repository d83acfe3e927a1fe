"""Every code block of the documentation runs, or says why not.

The `python` and `sh` blocks of a page run one after the other, in one folder and one namespace, in this process. A
comment in the line before a block changes that:

- `<!-- not run: REASON -->`;
- `<!-- file: NAME -->`: the block is the content of this file;
- `<!-- slow: REASON -->`: it runs with `pytest -m slow` only.

Commands on the pages of methods are run with few clients and one round: that they are understood is what counts.
"""

from __future__ import annotations

import re
import shlex
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import fedkin
from fedkin.cli import main

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^(?:<!-- ([a-z ]+): ([^\n]*?) -->\n)?```(python|sh)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
MARKS = ("", "not run", "file", "slow")
SMALL = "--clients 6 --samples-per-client 40 --rounds 1 --engine serial --quiet"
REAL = ("mnist", "fashion-mnist", "cifar10", "cifar100", "svhn", "har", "heart")


class Block(NamedTuple):
    mark: str
    reason: str
    kind: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(m[1] or "", m[2] or "", m[3], m[4]) for m in BLOCK.finditer(page.read_text())]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


ALL = sorted(ROOT.glob("docs/**/*.md"))
METHODS = [page for page in ALL if page.parent.name == "methods"]
PAGES = [page for page in ALL if page.parent.name != "methods" and any(b.mark != "not run" for b in blocks(page))]


def lines(text: str) -> Iterator[list[str]]:
    """The commands of a block, without comments; a line that ends in a backslash goes on."""
    for line in text.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield words


def call(words: list[str]) -> None:
    """Run a fedkin command in this process."""
    assert words[0] == "fedkin", f"{shlex.join(words)}: only fedkin commands are run; mark the block as not run."
    with pytest.raises(SystemExit) as ended:
        main(words[1:])
    assert not ended.value.code, shlex.join(words)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, bool], None]:
    """Run the blocks of a page in an empty folder; `slow`: those that take long as well."""

    def run_page(page: Path, slow: bool) -> None:
        monkeypatch.chdir(tmp_path)
        module = types.ModuleType("fedkin_docs_page")  # where a run finds classes that the page defines
        monkeypatch.setitem(sys.modules, module.__name__, module)
        PREPARED.get(page.name, lambda: None)()
        for block in blocks(page):
            if block.mark == "not run" or (block.mark == "slow" and not slow):
                continue
            if block.mark == "file":
                Path(block.reason).write_text(block.text)
            elif block.kind == "python":
                exec(compile(block.text, name_of(page), "exec"), module.__dict__)
            else:
                for words in lines(block.text):
                    call(words)

    return run_page


def hospitals() -> None:
    """The tables that docs/data.md speaks of, and a run on them."""
    rng = np.random.default_rng(0)
    Path("hospitals").mkdir()
    for path in ("hospitals/north.csv", "hospitals/south.csv", "new.csv", "east.csv"):
        rows = [
            f"{i},{'' if i == 3 else int(rng.integers(30, 80))},{'fm'[i % 2]},{int(rng.integers(0, 2))}"
            for i in range(40)
        ]
        Path(path).write_text("\n".join(["patient_id,age,sex,disease", *rows]) + "\n")
    tables = fedkin.from_folder("hospitals", label="disease", ignore="patient_id", categorical="sex")
    fedkin.run("fedavg", fedkin.federate(tables), rounds=1, out="runs/first", engine="serial")


PREPARED: dict[str, Callable[[], None]] = {"data.md": hospitals}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_blocks_of_a_page_run(page, run):
    run(page, False)


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if any(b.mark == "slow" for b in blocks(p))], ids=name_of)
def test_the_slow_blocks_of_a_page_run(page, run):
    run(page, True)


@pytest.mark.parametrize("page", [page for page in METHODS if blocks(page)], ids=lambda p: p.stem)
def test_the_commands_of_a_method_are_understood(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for block in blocks(page):
        assert block.mark == ""
        for words in lines(block.text):
            data = words[words.index("--data") + 1] if "--data" in words else ""
            call([*words, *SMALL.split(), *(["--data", "digits", "--model", "mlp"] if data in REAL else [])])


@pytest.mark.parametrize("page", ALL, ids=name_of)
def test_every_block_is_run_or_says_why_not(page):
    text = page.read_text()
    assert len(re.findall(r"^```(?:python|sh)$", text, re.MULTILINE)) == len(blocks(page)), "a block is not closed"
    assert not re.search(r"^\s*```(?:bash|shell|console|py)\b", text, re.MULTILINE), "the kinds are sh and python"
    assert not re.search(r"^ {4}(?:fedkin|python|make|pip) ", text, re.MULTILINE), "a command outside of a block"
    for block in blocks(page):
        assert block.mark in MARKS, f"{block.mark} is not a mark"
        assert not block.mark or block.reason.strip()
    marks = len(re.findall(r"^<!-- (?:not run|file|slow): .* -->\n```(?:python|sh)\n", text, re.MULTILINE))
    assert marks == len(re.findall(r"<!-- (?:not run|file|slow)\b", text)), "a mark stands before no block"


def test_a_block_that_fails_is_noticed(tmp_path, run, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("```sh\nfedkin run fedavgg\n```\n")
    with pytest.raises(AssertionError, match="fedavgg"):
        run(page, False)
    page.write_text("```sh\nls\n```\n")
    with pytest.raises(AssertionError, match="mark the block"):
        run(page, False)
    page.write_text("<!-- file: here.py -->\n```python\nx = 1\n```\n\n```python\nassert 'here' == 1\n```\n")
    with pytest.raises(AssertionError):
        run(page, False)
    assert (tmp_path / "here.py").read_text() == "x = 1\n"
