"""`fedkin reproduce PAPER/ITEM`: run a table or figure of a paper, and print paper against ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedkin.experiments.carry_out import carry_out
from fedkin.experiments.declare import SCALES
from fedkin.experiments.outcome import Outcome
from fedkin.experiments.papers import PAPERS, find, items
from fedkin.results.folder import prepare
from fedkin.results.store import write_json

if TYPE_CHECKING:
    from rich.console import Console


def reproduce(
    names: Sequence[str],
    *,
    scale: str,
    seeds: int | None,
    only: tuple[str, ...],
    out: Path,
    workers: int,
    console: Console,
) -> None:
    """Run the named items and print and write their outcomes."""
    from fedkin.engine.progress import counting

    wanted = [pair for given in names for pair in find(given).items()]
    prepare(out, "experiment")
    for name, item in wanted:
        with counting(name, console) as on_progress:
            outcome = carry_out(
                name, item, SCALES[scale], out, seeds=seeds, only=only, workers=workers, on_progress=on_progress
            )
        show(outcome, console)
        for path in write(outcome, out):
            print(f"  {path}")


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


def show_list(seeds: int | None, console: Console) -> None:
    from fedkin.experiments.estimate import seconds
    from fedkin.report.tables import duration, terminal

    rows = []
    for paper in PAPERS:
        for name, item in items(paper).items():
            times = [duration(seconds(item, SCALES[s], seeds)) for s in SCALES]
            rows.append((f"{paper}/{name}", item.title, item.place, str(len(item.cells)), *times))
    header = ("item", "what it shows", "in the paper", "cells", *SCALES)
    note = "\n".join(f"{scale.name}: {scale.says}" for scale in SCALES.values())
    note += "\nTimes are estimates: batches counted, one batch timed; items that share runs share their time."
    table = terminal("Tables and figures of the papers", header, rows, note)
    for column in table.columns[:3]:
        column.justify = "left"
    console.print(table)
