"""`fedkin report DIR …`: one self-contained page of runs or of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedkin.cli import flags as parsing
from fedkin.cli.config import method_name


@dataclass(frozen=True)
class ReportFlags:
    out: Path | None = None
    """File of the page; by default report.html in the first folder."""


def command(words: list[str]) -> int:
    folders, flags = parsing.folders(
        words,
        ReportFlags(),
        "report",
        "Write one self-contained HTML page on runs, a comparison or a leaderboard: who learns from whom, who gains.",
    )
    if len(folders) == 1 and (Path(folders[0]) / "leaderboard.json").exists():
        from fedkin.experiments.board_page import write_page

        print(f"Report: {write_page(Path(folders[0]), flags.out)}")
        return 0
    from fedkin.report import page

    print(f"Report: {page.write(folders, flags.out, bibtex(folders))}")
    return 0


def bibtex(folders: Sequence[str]) -> str:
    """The papers of the methods in these folders. This is done here because the report may not import methods."""
    from fedkin.report import read
    from fedkin.results.citation import citation

    return citation([method_name(read.config(path)) for path in read.folders(folders)])
