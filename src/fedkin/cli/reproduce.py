"""`fedkin reproduce PAPER/ITEM`: rerun a table or figure of a paper, and print its numbers beside ours."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedkin.cli import flags as parsing


@dataclass(frozen=True)
class ReproduceFlags:
    scale: Literal["full", "desk", "smoke"] = "desk"
    """How much of the paper's experiment to run; --list explains the scales."""
    seeds: int | None = None
    """Number of seeds; by default the item's own, mostly 3."""
    only: str = ""
    """Rows, columns or methods to run, separated by commas; the others are left out."""
    out: Path = Path("runs/reproduce")
    """Folder for runs, outcomes and figures."""
    cells: Path | None = None
    """Folder of stored results; by default docs/results/cells if docs/results exists, else OUT/cells."""
    workers: int = 0
    """Number of parallel runs; 0 means one for each core."""
    list: bool = False
    """List the items, with an estimate of their time on this machine."""
    status: bool = False
    """Show which runs are done and how many hours the others will take."""
    wide: bool = False
    """Show all columns of a table side by side, however wide it gets."""


def command(words: list[str]) -> int:
    about = (
        "Rerun tables and figures of the papers, and print the paper's numbers beside ours. PAPER/ITEM is, for "
        "example, fedcedar/table2; fedcedar alone stands for that paper, all for every paper. Finished runs are not "
        "repeated."
    )
    flags, names = parsing.parse_one(words, ReproduceFlags(), "fedkin reproduce PAPER/ITEM …", about)
    from fedkin.cli.terminal import console
    from fedkin.experiments.reproduce import reproduce, show_list, show_status, store_of

    if flags.status:
        show_status(names, flags.scale, flags.seeds, store_of(flags.cells, flags.scale, flags.out), console())
        return 0
    if flags.list or not names:
        show_list(flags.seeds, console(), wide=flags.wide)
        return 0
    reproduce(
        names,
        scale=flags.scale,
        seeds=flags.seeds,
        only=tuple(word for word in flags.only.split(",") if word),
        out=flags.out,
        cells=flags.cells,
        workers=flags.workers,
        console=console(),
        wide=flags.wide,
    )
    return 0
