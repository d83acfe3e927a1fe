"""`fedkin reproduce PAPER/ITEM`: run a table or figure of a paper, and print paper against ours."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from fedkin.experiments.carry_out import carry_out
from fedkin.experiments.declare import SCALES
from fedkin.experiments.outcome import Outcome
from fedkin.experiments.papers import PAPERS, find, items
from fedkin.results.store import write_json

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Reproduce:
    """Run tables and figures of the papers, and print paper against ours. Runs that are done are not done again."""

    names: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Such as fedcedar/table2, or fedcedar for all of a paper."""
    scale: Literal["full", "half", "tenth", "smoke"] = "tenth"
    """How much of the paper's experiment is run: see `--list`."""
    seeds: int | None = None
    """How many seeds; where not given: the item's own, at most 3 below full scale (tenth: at most 200 runs)."""
    only: str = ""
    """Rows or methods, with commas between: leave out the others."""
    out: Path = Path("runs/reproduce")
    """Folder for runs, outcomes and figures."""
    workers: int = 0
    """Runs side by side; 0: one for each core."""
    list: bool = False
    """Name the items, with an estimate of their time on this machine."""


def command(words: list[str], console: Console) -> int:
    flags = tyro.cli(Reproduce, args=words, prog="fedkin reproduce", config=(tyro.conf.FlagCreatePairsOff,))
    if flags.list or not flags.names:
        show_list(flags, console)
        return 0
    for name, item in [pair for given in flags.names for pair in find(given).items()]:
        from fedkin.engine.progress import counting

        with counting(name, console) as on_progress:
            outcome = carry_out(
                name,
                item,
                SCALES[flags.scale],
                flags.out,
                seeds=flags.seeds,
                only=tuple(w for w in flags.only.split(",") if w),
                workers=flags.workers,
                on_progress=on_progress,
            )
        show(outcome, console)
        for path in write(outcome, flags.out):
            print(f"  {path}")
    return 0


def write(outcome: Outcome, out: Path) -> list[Path]:
    """The outcome as JSON, Markdown and picture."""
    stem = out / f"{outcome.name.replace('/', '-')}-{outcome.scale.name}"
    made = [stem.with_suffix(".json"), stem.with_suffix(".md")]
    write_json(made[0], outcome.to_json())
    made[1].write_text(outcome.markdown())
    if outcome.item.figure is not None and outcome.runs:
        figure = outcome.item.figure(outcome)
        figure.suptitle(f"{outcome.name}, scale {outcome.scale.name}", x=0.01, ha="left", fontsize=9, color="0.4")
        for suffix in (".png", ".pdf"):
            figure.savefig(stem.with_suffix(suffix), dpi=110)
            made.append(stem.with_suffix(suffix))
    return made


def show(outcome: Outcome, console: Console) -> None:
    from fedkin.report.tables import terminal

    for measure in outcome.item.measures:
        header, rows = outcome.table(measure)
        console.print(terminal(f"{outcome.name}: {outcome.item.title}", header, rows, outcome.item.place))
    for reason in dict.fromkeys(outcome.missing.values()):
        console.print(f"Not run: {reason}", markup=False)
    claims = outcome.claims()
    for verdict in ("held", "not held", "undecided", "not measured"):
        found: dict[str, list[str]] = {}
        for claim, on_progress, _, _ in claims:
            if on_progress == verdict:
                found.setdefault(claim.text(), []).append(claim.above[1])
        if found:
            text = "; ".join(f"{claim}: {', '.join(columns)}" for claim, columns in found.items())
            count = sum(len(columns) for columns in found.values())
            console.print(f"{verdict} ({count}): {text}", markup=False, highlight=False)


def show_list(flags: Reproduce, console: Console) -> None:
    from fedkin.experiments.estimate import seconds
    from fedkin.report.tables import duration, terminal

    rows = []
    for paper in PAPERS:
        for name, item in items(paper).items():
            times = [duration(seconds(item, SCALES[s], flags.seeds)) for s in SCALES]
            rows.append((f"{paper}/{name}", item.title, item.place, str(len(item.cells)), *times))
    header = ("item", "what it shows", "in the paper", "cells", *SCALES)
    note = "\n".join(f"{scale.name}: {scale.says}" for scale in SCALES.values())
    note += "\nTimes are estimates: batches counted, one batch timed; items that share runs share their time."
    table = terminal("Tables and figures of the papers", header, rows, note)
    for column in table.columns[:3]:
        column.justify = "left"
    console.print(table)
