"""Write what the leaderboard says about each method into its page.

    python benchmarks/method_pages.py

It is between <!-- leaderboard --> and <!-- /leaderboard --> in the section Findings; the rest is written by hand.
`benchmarks/pages.py` calls it after it has made the leaderboard, and tests/test_method_pages.py holds the pages
against it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedkin.methods import METHODS
from fedkin.report.tables import markdown, size

DOCS = Path(__file__).parent.parent / "docs"
REFERENCES = ("local", "fedavg-ft")
LINK = "[leaderboard](../results/leaderboard.md)"


def findings(names: list[str], board: dict[str, Any]) -> str:
    """What the leaderboard says about a method and its variants, beside the references."""
    lines = {line["method"]: line for line in board["methods"]}
    if not set(names) & lines.keys():
        return f"Not on the {LINK} yet: it has not been run on every track, or a run failed."
    tracks = len(next(iter(lines.values()))["accuracy"])
    rows = [
        [
            f"`{name}`",
            f"{lines[name]['rank']:.1f}",
            f"{100 * sum(lines[name]['accuracy'].values()) / tracks:.1f}",
            f"{100 * lines[name]['worst_decile']:.1f}",
            "–" if lines[name]["losers"] is None else f"{100 * lines[name]['losers']:.1f}",
            size(1e6 * lines[name]["megabytes"]),
        ]
        for name in dict.fromkeys((*REFERENCES, *names))
        if name in lines
    ]
    head = ["method", f"mean rank of {len(lines)}", "accuracy %", "worst-served tenth %", "losers %", "traffic"]
    return (
        f"On the {LINK} (`{board['command']}`), means over {tracks} tracks. Losers are the clients that do decidedly "
        "worse than alone; traffic is both ways, for each client and round.\n\n" + markdown(head, rows).strip()
    )


def page(text: str, names: list[str], board: dict[str, Any]) -> str:
    """The page with its block replaced."""
    before, _, rest = text.partition("<!-- leaderboard -->")
    after = rest.partition("<!-- /leaderboard -->")[2]
    return f"{before}<!-- leaderboard -->\n{findings(names, board)}\n<!-- /leaderboard -->{after}"


def pages() -> dict[Path, list[str]]:
    """Each page of a method, with the names under which the method runs."""
    files = {path.stem.replace("-", "_"): path for path in (DOCS / "methods").glob("*.md")}
    out: dict[Path, list[str]] = {}
    for name, entry in METHODS.items():
        if entry.target.startswith("fedkin."):
            out.setdefault(files[entry.target.split(":")[0].split(".")[-1]], []).append(name)
    return out


def main() -> None:
    board = json.loads((DOCS / "results" / "leaderboard.json").read_text())
    for path, names in pages().items():
        path.write_text(page(path.read_text(), names, board))


if __name__ == "__main__":
    main()
