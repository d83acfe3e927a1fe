"""`fedkin figures DIR …`: figures for papers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedkin.cli import flags as parsing


@dataclass(frozen=True)
class FigureFlags:
    format: Literal["pdf", "png", "svg"] = "pdf"
    """Output format."""
    out: Path | None = None
    """Folder of the files; by default figures/ in the first folder."""


def command(words: list[str]) -> int:
    folders, flags = parsing.folders(
        words, FigureFlags(), "figures", "Draw figures for papers: learning curves, gains, partition, costs, mixing."
    )
    from fedkin.report import figures

    for path in figures.write(folders, flags.out, flags.format):
        print(path)
    return 0
