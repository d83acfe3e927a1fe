"""`fedkin reproduce PAPER/ITEM`: run a table or figure of a paper, and print paper against ours."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedkin.cli import flags as parsing


@dataclass(frozen=True)
class Reproduce:
    scale: Literal["full", "desk", "smoke"] = "desk"
    """How much of the paper's experiment is run: see `--list`."""
    seeds: int | None = None
    """Number of seeds; by default the item's own, mostly 3."""
    only: str = ""
    """Rows, columns or methods to run, separated by commas; the others are left out."""
    out: Path = Path("runs/reproduce")
    """Folder for runs, outcomes and figures."""
    cells: Path | None = None
    """Folder of stored results; by default docs/results/cells where docs/results exists, else OUT/cells."""
    workers: int = 0
    """Number of runs side by side; 0 means one for each core."""
    list: bool = False
    """List the items, with an estimate of their time on this machine."""
    status: bool = False
    """Say which runs are done and how many hours the others will take."""


def command(words: list[str]) -> int:
    names, rest = parsing.split_words(words)
    about = (
        "Run tables and figures of the papers, and print paper against ours. PAPER/ITEM is such as fedcedar/table2; "
        "fedcedar alone means all of that paper, all means every paper. Finished runs are not repeated."
    )
    flags = parsing.parse_one(rest, Reproduce, "fedkin reproduce PAPER/ITEM …", about)
    from fedkin.cli.terminal import console
    from fedkin.experiments.reproduce import reproduce, show_list, show_status, store_of

    if flags.status:
        store = store_of(flags.cells, flags.scale, flags.out)
        show_status(names, flags.scale, flags.seeds, store, console())
        return 0
    if flags.list or not names:
        show_list(flags.seeds, console())
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
    )
    return 0
