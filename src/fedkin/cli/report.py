"""`fedkin report DIR …`: one self-contained page of runs or of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedkin.cli import flags as parsing


@dataclass(frozen=True)
class Report:
    out: Path | None = None
    """File of the page; by default report.html in the first folder."""


def command(words: list[str]) -> int:
    folders, flags = parsing.folders(
        words, Report, "report", "One self-contained HTML page of runs, a comparison or a leaderboard."
    )
    if len(folders) == 1 and (Path(folders[0]) / "leaderboard.json").exists():
        from fedkin.experiments.board_page import write_page

        print(f"Report: {write_page(Path(folders[0]), flags.out)}")
        return 0
    from fedkin.report import page

    print(f"Report: {page.write(folders, flags.out, cite(page.labels(folders)))}")
    return 0


def cite(methods: Sequence[str]) -> str:
    """BibTeX of the methods' papers. Here, because the report itself knows no method."""
    from fedkin.results.citation import citation

    return citation(methods)
