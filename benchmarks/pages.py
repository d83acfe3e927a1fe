"""Write the result pages from the stored cells.

    python benchmarks/pages.py [PAPER/ITEM ... | leaderboard]

Reads docs/results/cells and writes, at scale desk:

- docs/results/PAPER/ITEM.json and .png: the outcome of each item that has results;
- docs/results/PAPER.md: between <!-- items --> and <!-- /items -->; what is written by hand above them stays;
- docs/results/index.md: one table of all claims of the four papers;
- docs/results/leaderboard.json, .md (between <!-- board --> and <!-- /board -->) and its two figures;
- docs/choosing.md: the numbers, by benchmarks/choosing.py;
- docs/methods/kin.md: what it gains on each track (between <!-- tracks --> and <!-- /tracks -->);
- docs/methods/*.md: what the leaderboard says about each method, by benchmarks/method_pages.py.

tests/experiments/test_pages.py holds the pages against the cells.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedkin.experiments.bench import TRACKS, ranked
from fedkin.experiments.bench import collect as collect_board
from fedkin.experiments.bench import text as board_text
from fedkin.experiments.bench import write as write_board
from fedkin.experiments.carry_out import collect
from fedkin.experiments.cells import Cells
from fedkin.experiments.declare import Item
from fedkin.experiments.leaderboard import Board
from fedkin.experiments.outcome import DECIDED, VERDICTS, Outcome, verdict_text
from fedkin.experiments.papers import PAPERS, items
from fedkin.experiments.reproduce import write
from fedkin.report.tables import markdown

ROOT = Path(__file__).parent.parent / "docs" / "results"
SCALE = "desk"
WAITING = "not run yet"
WORDS = (*VERDICTS, "to be run")
FOLD = 8  # lines of claims from which they are folded
KIN = ROOT.parent / "methods" / "kin.md"
UNSEEN = ("cifar10-dirichlet", "mnist-rotated", "mnist-feature-shift")  # when kin was frozen
TITLES = {"fedcedar": "FedCEDAR", "pflic": "PFLIC", "pfedgat": "pFedGAT", "dcpfl": "DC-PFL"}


def outcomes(paper: str, cells: Cells) -> dict[str, Outcome]:
    """Of the items that have a cell whose seeds are all done."""
    found = {name: collect(f"{paper}/{name}", item, SCALE, cells) for name, item in items(paper).items()}
    return {name: whole for name, outcome in found.items() if (whole := whole_cells(outcome)).runs}


def whole_cells(outcome: Outcome) -> Outcome:
    """An outcome without the cells that wait for some of their seeds: they would look done, or decide on fewer."""
    runs = {index: found for index, found in outcome.runs.items() if outcome.missing.get(index) != WAITING}
    once = {(r.cell.method, repr(r.setting), r.seed): r.result["seconds"] for found in runs.values() for r in found}
    return replace(outcome, runs=runs, seconds=sum(once.values()))


def block(outcome: Outcome) -> str:
    """One item on its paper's page."""
    paper, item = outcome.name.split("/")
    heading, _, text = outcome.markdown().partition("\n")
    head, mark, claims = text.strip().partition("Claims: ")
    if mark:
        tally, _, table = claims.partition("\n\n")
        if table.count("\n") > FOLD:
            table = f"<details><summary>claim by claim</summary>\n\n{table.strip()}\n\n</details>"
        text = f"{head}Claims: {tally}\n\n{table}"
    picture = f"\n\n![{item}]({paper}/{item}.png)" if outcome.item.figure is not None else ""
    title = heading.removeprefix(f"### {outcome.name}: ")
    return f"## {item}: {title}\n\n{text.strip()}{picture}\n\nNumbers: [{item}.json]({paper}/{item}.json).\n"


def between(page: str, mark: str, text: str) -> str:
    """A page with the text between its two marks replaced."""
    begin, end = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    before, _, rest = page.partition(begin)
    after = rest.partition(end)[2] if end in rest else "\n"
    return f"{before.rstrip()}\n\n{begin}\n{text.strip()}\n{end}{after}"


def start(page: Path, title: str, mark: str) -> str:
    """The page as it is, if it has the mark; else a new one, because what it says is about other results."""
    found = page.read_text() if page.exists() else ""
    return found if f"<!-- {mark} -->" in found else f"# {title}\n"


def paper_page(paper: str, found: dict[str, Outcome], page: str) -> str:
    text = "\n".join(block(outcome) for outcome in found.values())
    if left := [name for name in items(paper) if name not in found or WAITING in found[name].missing.values()]:
        text += f"\n## Still to be run\n\n{', '.join(left)}: `fedkin reproduce --status` says how long it takes.\n"
    return between(page, "items", text)


# ---- the claims page
def tally(claims: Iterable[dict[str, Any]]) -> list[str]:
    """How many claims have each verdict, and how many of those that were measured are decided."""
    found = ["to be run" if claim.get("reason") == WAITING else claim["verdict"] for claim in claims]
    decided = sum(verdict in DECIDED for verdict in found)
    measured = len(found) - found.count("not measured") - found.count("to be run")
    return [*(str(found.count(word)) for word in WORDS), f"{decided} of {measured}" if measured else "–"]


def index(stored: dict[str, dict[str, Any]]) -> str:
    """One table of all claims; `stored` maps PAPER/ITEM to its outcome as JSON."""
    every = {name: one["claims"] for name, one in stored.items()}
    rows = []
    for paper, title in TITLES.items():
        own = [c for name, found in every.items() if name.startswith(f"{paper}/") for c in found if not c.get("ours")]
        rows.append([f"[{title}]({paper}.md)", *tally(c for c in own if c["measure"] != "received")])
        if again := [c for c in own if c["measure"] == "received"]:
            rows.append([f"{title}, on the received model", *tally(again)])
    rows.append(["all", *tally(c for found in every.values() for c in found if not c.get("ours"))])
    rows.append(["our own claims", *tally(c for found in every.values() for c in found if c.get("ours"))])
    parts = [
        "# What the four papers claim, and what we found",
        "",
        "Every ordering that a paper's tables, figures or words claim, run again with fedkin at scale "
        "[desk](../reproducing.md) and judged by [one rule](../evaluation.md#when-one-method-is-better-than-another). "
        "*held*: the method that the paper puts first is decidedly above the other. *level*: the two are within half a "
        "point, or the same. *not held*: it is decidedly below. *undecided*: the 95 % interval of the difference "
        "holds too much; it is stated. *not measured*: it cannot be measured here, with the reason. *to be run*: its "
        "runs wait. Differences are in points of accuracy unless "
        "the claim names another measure; `received` is the accuracy of the model as sent, before local training.",
        "",
        "Made by `python benchmarks/pages.py` from the stored runs; do not edit.",
        "",
        markdown(["paper", *WORDS, "decided of measured"], rows),
    ]
    lines = [
        [
            f"[{name}]({name.split('/')[0]}.md)",
            claim["column"],
            f"{claim['claim']}{' (ours)' if claim.get('ours') else ''}",
            claim["measure"],
            verdict_text(
                claim["verdict"],
                claim["difference"],
                *claim["interval"],
                claim["style"],
                claim.get("reason", ""),
                at_least=claim.get("at_least", False),
            ),
        ]
        for name, one in stored.items()
        for claim in one["claims"]
    ]
    parts += [markdown(["item", "column", "claim", "measure", "verdict, difference [95 % interval]"], lines)]
    return "\n".join(parts)


def stored_outcomes() -> dict[str, dict[str, Any]]:
    """The outcomes on disk, in the order of the papers. An item that waits for its runs has claims, but no verdicts."""
    out = {}
    for paper in PAPERS:
        for name, item in items(paper).items():
            path = ROOT / paper / f"{name}.json"
            found = json.loads(path.read_text()) if path.exists() else {}
            full = f"{paper}/{name}"
            out[full] = found if found.get("scale") == SCALE else {"claims": waiting(full, item)}
    return out


def waiting(name: str, item: Item) -> list[dict[str, Any]]:
    """The claims of an item that has not been run, as an outcome has them. Some of them never can be here."""
    return collect(name, item, SCALE, Cells(ROOT / "none")).to_json()["claims"]


def main(chosen: list[str]) -> None:
    cells = Cells(ROOT / "cells")
    for paper, title in TITLES.items():
        found = outcomes(paper, cells)
        if not found:
            continue
        target, page = ROOT / paper, ROOT / f"{paper}.md"
        for old in [p for p in target.glob("*") if p.stem not in found]:
            old.unlink()  # of an item that no longer exists, or waits for its runs
        for name, outcome in found.items():
            path = target / f"{name}.json"
            current = path.exists() and json.loads(path.read_text()) == json.loads(json.dumps(outcome.to_json()))
            if (outcome.name not in chosen) if chosen else current:
                continue
            for made in write(outcome, target):
                if made.suffix in (".json", ".png"):
                    made.replace(target / f"{name}{made.suffix}")
                else:
                    made.unlink()
            print(outcome.name)
        page.write_text(paper_page(paper, found, start(page, f"{title}: the paper's tables and figures", "items")))
    (ROOT / "index.md").write_text(index(stored_outcomes()))
    leaderboard(cells)


def kin_table(board: Board) -> str:
    """kin beside what it should beat, track by track."""
    by_name = {line.method: line for line in board.lines}
    names = [name for name in ("local", "fedavg-ft", "knnper", "kin-lite", "kin") if name in by_name]
    rows = [
        [
            f"{track} (not seen)" if track in UNSEEN else track,
            *(f"{100 * by_name[n].accuracy[track]:.1f}" for n in names),
        ]
        for track in board.tracks
    ]
    lines = [by_name[name] for name in names]
    rows.append(["worst-served tenth", *(f"{100 * line.worst_decile:.1f}" for line in lines)])
    losers = ("–" if line.losers is None else f"{100 * line.losers:.1f} ({line.sure_losers})" for line in lines)
    rows.append(["losers % (sure losers)", *losers])
    return markdown(["track", *(f"`{name}`" for name in names)], rows)


def leaderboard(cells: Cells) -> None:
    board = collect_board(ranked(), TRACKS, cells, cells.failures)
    if board.lines:
        page = ROOT / "leaderboard.md"
        before = start(page, "Leaderboard", "board")  # what is written by hand; the next line writes over it
        write_board(board, ROOT)
        page.write_text(between(before, "board", board_text(board)))
        KIN.write_text(between(KIN.read_text(), "tracks", kin_table(board)))
        from choosing import main as write_choosing
        from method_pages import main as write_methods

        write_choosing()
        write_methods()


if __name__ == "__main__":
    if sys.argv[1:] == ["leaderboard"]:
        leaderboard(Cells(ROOT / "cells"))
    else:
        main(sys.argv[1:])
