"""Write the numbers of docs/choosing.md, and one line of README.md, from docs/results/leaderboard.json.

    python benchmarks/choosing.py

They are between <!-- numbers --> and <!-- /numbers -->; the words around them are written by hand.
`benchmarks/pages.py` calls it after it has made the leaderboard, and tests/test_choosing.py holds the page against it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedkin.report.tables import markdown, size

DOCS = Path(__file__).parent.parent / "docs"
REFERENCES = ("local", "fedavg", "fedavg-ft")
ONE_MODEL = ("fedavg", "fedprox", "scaffold", "fednova", "moon", "clustered-sampling")
FEW = 5  # lines of a table

Line = dict[str, Any]


def numbers(board: dict[str, Any]) -> str:
    """The tables of the page."""
    lines: list[Line] = board["methods"]
    by_name = {line["method"]: line for line in lines}
    tracks = list(lines[0]["accuracy"])
    little = 0.1 * by_name["fedavg"]["megabytes"] if "fedavg" in by_name else 0.0
    parts = [
        f"All numbers below are from [the leaderboard](results/leaderboard.md) (`{board['command']}`): accuracy in % "
        f"of the personal models, mean over clients, over {len(tracks)} tracks. Budget: {board['budget'].rstrip('.')}."
        + (" One seed: small differences mean nothing." if board.get("seeds") == 1 else ""),
        "### How different the clients are",
        "The best method of each track, beside training alone, one model for all, and that model fine-tuned.",
        markdown(["track", "best", "%", *(f"{name} %" for name in REFERENCES)], [_track(t, lines) for t in tracks]),
        "### How much traffic there may be",
        "First the methods with the best mean rank among those that send at most a tenth of what FedAvg sends, then "
        "the best of all. Traffic is both ways, for each client and round.",
        _table(lines, by_name, lambda line: line["megabytes"] <= little),
        _table(lines, by_name, lambda line: True),
        "### If it must be one network for all",
        "These end with one model that all clients share.",
        _table(lines, by_name, lambda line: line["method"] in ONE_MODEL),
        "### Who is served worst",
        "The methods with the highest accuracy for the worst-served tenth of the clients, mean over tracks.",
        _table(sorted(lines, key=lambda line: -line["worst_decile"]), by_name, lambda line: True),
    ]
    return "\n\n".join(part.strip() for part in parts)


def _track(track: str, lines: list[Line]) -> list[str]:
    best = max(lines, key=lambda line: line["accuracy"][track])
    others = [next((line for line in lines if line["method"] == name), None) for name in REFERENCES]
    return [
        track,
        best["method"],
        *("–" if one is None else _percent(one["accuracy"][track]) for one in (best, *others)),
    ]


def _table(lines: list[Line], by_name: dict[str, Line], wanted: Callable[[Line], bool]) -> str:
    rows = [
        [
            line["method"],
            f"{line['rank']:.1f}",
            _percent(sum(line["accuracy"].values()) / len(line["accuracy"])),
            _percent(line["worst_decile"]),
            size(1e6 * line["megabytes"]),
        ]
        for line in lines
        if wanted(line)
    ]
    return markdown(["method", f"mean rank of {len(by_name)}", "mean %", "worst 10 %", "traffic"], rows[:FEW])


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def page(text: str, board: dict[str, Any]) -> str:
    """The page with its numbers replaced."""
    before, _, rest = text.partition("<!-- numbers -->")
    after = rest.partition("<!-- /numbers -->")[2]
    return f"{before}<!-- numbers -->\n\n{numbers(board)}\n\n<!-- /numbers -->{after}"


def readme(text: str, board: dict[str, Any]) -> str:
    """README with its line about the leaderboard replaced."""
    lines: list[Line] = board["methods"]
    first = min(lines, key=lambda line: line["rank"])
    losers = {line["method"]: line["losers"] for line in lines if line["losers"] is not None}
    fewest = min(losers, key=lambda name: losers[name])
    others = ", ".join(f"`{name}` {_percent(losers[name])} %" for name in REFERENCES if name in losers)
    said = (
        f"- **Measured.** Of {len(lines)} methods on {len(lines[0]['accuracy'])} tracks, `{first['method']}` has the "
        f"best mean rank ({first['rank']:.1f}). With `{fewest}`\n  the fewest clients do decidedly worse than alone "
        f"({_percent(losers[fewest])} %; {others}).\n  [The leaderboard](docs/results/leaderboard.md) says which "
        "differences are decided."
    )
    before, _, rest = text.partition("<!-- numbers -->\n")
    return f"{before}<!-- numbers -->\n{said}\n<!-- /numbers -->{rest.partition('<!-- /numbers -->')[2]}"


def main() -> None:
    board = json.loads((DOCS / "results" / "leaderboard.json").read_text())
    for target, made in ((DOCS / "choosing.md", page), (DOCS.parent / "README.md", readme)):
        target.write_text(made(target.read_text(), board))


if __name__ == "__main__":
    main()
