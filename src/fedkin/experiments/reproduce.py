"""`fedkin reproduce PAPER/ITEM`: rerun a table or figure of a paper, and print its numbers beside ours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedkin.experiments.carry_out import carry_out, jobs_of, needs
from fedkin.experiments.cells import FOLDER, Cells, Job
from fedkin.experiments.declare import SCALES, Item
from fedkin.experiments.outcome import VERDICTS, Outcome
from fedkin.experiments.papers import PAPERS, find, items
from fedkin.report import tables
from fedkin.results.files import write_json

if TYPE_CHECKING:
    from rich.console import Console


def reproduce(
    names: Sequence[str],
    *,
    scale: str = "desk",
    seeds: int | None = None,
    only: tuple[str, ...] = (),
    out: Path = Path("runs/reproduce"),
    cells: Path | None = None,
    workers: int = 0,
    console: Console,
    wide: bool = False,
) -> None:
    """Run the named items ("all": every one), and print and write their outcomes."""
    from fedkin.engine.progress import counting

    keep, store = needs(chosen(PAPERS), scale), store_of(cells, scale, out)
    for name, item in chosen(names).items():
        with counting(name, console) as on_progress:
            outcome = carry_out(
                name,
                item,
                scale,
                out,
                store,
                seeds=seeds,
                only=only,
                keep=keep,
                workers=workers,
                on_progress=on_progress,
            )
        show(outcome, console, wide=wide)
        for path in write(outcome, out):
            print(f"  {path}")


def chosen(names: Iterable[str]) -> dict[str, Item]:
    given = [paper for name in names for paper in (PAPERS if name == "all" else (name,))]
    return {name: item for one in given for name, item in find(one).items()}


def store_of(cells: Path | None, scale: str, out: Path) -> Cells:
    """The named folder of stored results, else the repository's (not for smoke runs), else one in `out`."""
    return Cells(cells or (FOLDER if FOLDER.parent.exists() and scale != "smoke" else out / "cells"))


def write(outcome: Outcome, out: Path) -> list[Path]:
    """The outcome as JSON and Markdown, each of its tables as CSV and LaTeX, and its picture."""
    out.mkdir(parents=True, exist_ok=True)
    stem = out / f"{outcome.name.replace('/', '-')}-{outcome.scale}"
    made = [stem.with_suffix(".json"), stem.with_suffix(".md")]
    write_json(made[0], outcome.to_json())
    made[1].write_text(outcome.markdown())
    several = len(outcome.item.measures) > 1
    for measure in outcome.item.measures:
        name = f"{stem.name}-{measure.replace(' ', '-').replace('/', '-')}" if several else stem.name
        table = outcome.table(measure)
        for suffix, text in ((".csv", tables.csv(*table)), (".tex", tables.latex(*table))):
            made.append(out / f"{name}{suffix}")
            made[-1].write_text(text)
    if outcome.item.figure is not None and outcome.runs:
        figure = outcome.item.figure(outcome)
        figure.suptitle(f"{outcome.name}, scale {outcome.scale}", x=0.01, ha="left", fontsize=9, color="0.4")
        for suffix in (".png", ".pdf"):
            figure.savefig(stem.with_suffix(suffix), dpi=110)
            made.append(stem.with_suffix(suffix))
    return made


def show(outcome: Outcome, console: Console, *, wide: bool = False) -> None:
    """Tables that fit the console, or with `wide` all columns of a measure in one table; then the claims."""
    asked = {row for row, _ in (*outcome.runs, *outcome.missing)}  # not what --only leaves out
    for measure in outcome.item.measures:
        title = f"{outcome.name}: {outcome.item.title}"
        header, rows = outcome.table(measure)
        rows = [row for row in rows if row[0] in asked] or rows
        tables.show(console, title, header, rows, outcome.item.where, wide=wide)
    for reason in dict.fromkeys(outcome.missing.values()):
        count = sum(1 for why in outcome.missing.values() if why == reason)
        console.print(f"{count} {'cell' if count == 1 else 'cells'}: {reason}", markup=False, highlight=False)
    judged = outcome.claims()
    for verdict in VERDICTS:
        found: dict[str, list[str]] = {}
        for one in judged:
            if one.verdict == verdict:
                found.setdefault(one.claim.text(), []).append(one.claim.above[1])
        count = sum(len(columns) for columns in found.values())
        if verdict in ("one seed", "two seeds") and found:
            console.print(f"{count} claims are not judged: fewer than three seeds decide nothing. Add --seeds 3.")
        elif verdict == "not measured" and found:
            console.print(f"{count} claims are not judged: their cells have no results.")
        elif found:
            text = "; ".join(f"{claim}: {', '.join(columns)}" for claim, columns in found.items())
            console.print(f"{verdict} ({count}): {text}", markup=False, highlight=False)


def show_list(seeds: int | None, console: Console, *, wide: bool = False) -> None:
    """Every item with an estimate of its time. A narrow console has no room for where it is in the paper."""
    from fedkin.experiments.estimate import status
    from fedkin.report.tables import duration, terminal

    none, rows = Cells(Path("/nonexistent")), []
    for paper in PAPERS:
        for name, item in items(paper).items():
            times = []
            for scale in SCALES:
                jobs = jobs_of(name, item, scale, seeds=seeds).values()
                times.append(duration(3600 * status(jobs, none, {}).hours_left))
            rows.append((f"{paper}/{name}", item.title, item.where, str(len(item.cells)), *times))
    header = ("item", "what it shows", "in the paper", "cells", *SCALES)
    note = "\n".join(f"{scale}: {says}." for scale, says in SCALES.items())
    note += "\nTimes are estimates for this machine's cores; items that share runs share their time."
    if wide:
        console.width = max(console.width, 160)
    elif console.width < 120:
        header, rows = (header[:2] + header[3:]), [row[:2] + row[3:] for row in rows]
        note += "\n--wide also says where each item is in its paper."
    table = terminal("Tables and figures of the papers", header, rows, note)
    for column in table.columns[: -1 - len(SCALES)]:
        column.justify = "left"
    console.print(table)


def show_status(names: Sequence[str], scale: str, seeds: int | None, cells: Cells, console: Console) -> None:
    """How many runs are done, and how many hours the others will take."""
    from fedkin.experiments.estimate import status
    from fedkin.report.tables import terminal

    rows = []
    every: list[Job] = []
    keep = needs(chosen(PAPERS), scale)
    for name, item in chosen(names or ("all",)).items():
        jobs = list(jobs_of(name, item, scale, seeds=seeds).values())
        found = status(jobs, cells, keep)
        rows.append((name, f"{found.done} of {found.total}", f"{found.spent / 3600:.2f}", f"{found.hours_left:.2f}"))
        every += jobs
    found = status(every, cells, keep)
    rows.append(
        ("all together", f"{found.done} of {found.total}", f"{found.spent / 3600:.2f}", f"{found.hours_left:.2f}")
    )
    note = f"Stored results: {cells.folder}. Items share runs: the last line counts each of them once."
    header = ("item", "runs done", "core hours spent", "hours left")
    console.print(terminal(f"Scale {scale}", header, rows, note))
