"""`fedkin bench`: fedkin's leaderboard. All methods on several tracks, each with the same budget for tuning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedkin.experiments.cells import FOLDER, Cells, Job
from fedkin.experiments.declare import Setting
from fedkin.experiments.outcome import brief
from fedkin.methods import METHODS
from fedkin.registry import lookup
from fedkin.report import tables
from fedkin.report.tables import markdown

if TYPE_CHECKING:
    from rich.console import Console

    from fedkin.experiments.carry_out import Progress
    from fedkin.experiments.estimate import Status
    from fedkin.experiments.leaderboard import Board

GRID = (0.03, 0.1, 0.3)
"""Learning rates tried for every method on the data of seed 0."""
USUAL = 0.1
"""The rate that is taken unless another one is better on validation by more than a standard error."""
VARIANTS = ("fedavg-ft", "kin-lite")
"""Named variants that are ranked beside the methods. The others are ablations and other readings of a method that is
already ranked: they would only push the rest down. `--methods` accepts any of them."""
FIRST = (
    "local", "fedavg", "fedavg-ft", "fedcedar", "pflic", "pfedgat", "dcpfl", "knnper", "kin", "kin-lite", "ditto",
    "fedper",
)  # fmt: skip
"""Run on every track before the others. A track counts once it has all of these, so that a leaderboard is useful long
before every method has been run everywhere."""


@dataclass(frozen=True)
class Track:
    setting: Setting
    """Its learning rate is replaced by the chosen one."""
    seeds: int = 3


def _images(data: str, partition: str, **changes: Any) -> Track:
    usual = Setting(
        data,
        partition,
        20,
        50,
        "fcnn2",
        width=0.3,
        examples=500,
        test=0.4,
        validation=0.1,
        epochs=2,
        batch_size=32,
    )
    return Track(replace(usual, **changes))


HAR = Setting("har", "by_group", 30, 50, "fcnn2", width=0.3, test=0.4, validation=0.1, epochs=1, batch_size=32)
HEART = Setting("heart", "by_group", 4, 50, "mlp", test=0.4, validation=0.1, epochs=1, batch_size=16)
TRACKS: dict[str, Track] = {
    "fashion-dirichlet": _images("fashion-mnist", "dirichlet", partition_options={"alpha": 0.1}),
    "fashion-pathological": _images("fashion-mnist", "pathological", partition_options={"classes_per_client": 2}),
    "fashion-iid": _images("fashion-mnist", "iid"),
    "cifar10-dirichlet": _images("cifar10", "dirichlet", partition_options={"alpha": 0.1}, epochs=1),
    "mnist-rotated": _images("mnist", "rotated"),
    "mnist-feature-shift": _images("mnist", "feature_shift"),
    "har-natural": Track(HAR, seeds=5),
    "heart-natural": Track(HEART, seeds=5),
}
BUDGET = (
    "20 clients with up to 250 training, 50 validation and 200 test examples (HAR: 30 people, about 170 training "
    "windows; heart: 4 hospitals), everybody takes part in 50 rounds of 2 epochs (CIFAR-10, HAR, heart: 1), batch 32 "
    "(heart: 16), plain SGD, a network with two hidden layers of 60 and 30 units (heart: one of 64). Each method takes "
    f"the learning rate, of {', '.join(map(str, GRID))}, with the best validation accuracy on seed 0, but {USUAL} "
    "where the best is not better by more than one standard error over clients; everything else is its default. "
    "3 seeds, 5 on HAR and heart"
)


def bench(
    *,
    tracks: Sequence[str] = (),
    methods: Sequence[str] = (),
    out: Path = Path("runs/bench"),
    cells: Path | None = None,
    workers: int = 0,
    console: Console,
    wide: bool = False,
) -> Board:
    """Run the leaderboard, print it and write it to `out`; by default all tracks and all methods that are ranked."""
    from fedkin.engine.progress import counting

    names, chosen_tracks = known(methods, tracks)
    store = store_of(cells, out)
    failed: dict[str, str] = {}
    for methods in ([m for m in names if m in FIRST], [m for m in names if m not in FIRST]):
        for name, track in chosen_tracks.items() if methods else ():
            with counting(name, console) as on_progress:
                failed |= run_track(methods, track, out, store, workers, on_progress)
    found = collect(names, chosen_tracks, store, failed)
    show(found, console, wide=wide)
    for path in write(found, out):
        print(f"  {path}")
    return found


def ranked() -> list[str]:
    """The methods of the leaderboard."""
    return [name for name, entry in METHODS.items() if not entry.preset or name in VARIANTS]


def known(methods: Sequence[str], tracks: Sequence[str]) -> tuple[list[str], dict[str, Track]]:
    """The methods and tracks with these names; by default all that are ranked."""
    for name in methods:
        lookup(METHODS, name, "method")
    for name in tracks:
        if name not in TRACKS:
            raise ValueError(f"There is no track '{name}'. Known: {', '.join(TRACKS)}.")
    return list(methods) or ranked(), {name: TRACKS[name] for name in tracks or TRACKS}


def store_of(cells: Path | None, out: Path) -> Cells:
    """The named folder of stored results, else the repository's, else one in `out`."""
    return Cells(cells or (FOLDER if FOLDER.parent.exists() else out / "cells"))


def tuning(method: str, track: Track) -> dict[float, Job]:
    """Learning rate to its run on seed 0."""
    return {lr: Job(method, replace(track.setting, lr=lr), 0) for lr in GRID}


def chosen(method: str, track: Track, cells: Cells) -> float | None:
    """The learning rate with the best validation accuracy, of those whose run did not fail; None if a run is missing,
    or if all failed.

    One seed has about 1,000 validation examples, too few to tell close rates apart. So the usual rate is taken unless
    the best one beats it by more than the standard error of their difference over clients.
    """
    failures = cells.failures
    scores: dict[float, Any] = {}
    for lr, job in tuning(method, track).items():
        result = cells.get(job)
        if result is not None:
            values = result.get("validation") or []
            scores[lr] = np.array([np.nan if v is None else v for v in values], float)
        elif job.name not in failures:
            return None
    if not scores:
        return None
    best = max(scores, key=lambda lr: float(np.nanmean(scores[lr])) if np.isfinite(scores[lr]).any() else -1.0)
    if USUAL in scores and len(scores[USUAL]) == len(scores[best]):
        gain = scores[best] - scores[USUAL]
        gain = gain[np.isfinite(gain)]
        if len(gain) > 1 and gain.mean() <= gain.std(ddof=1) / np.sqrt(len(gain)):
            return USUAL
    return best


def seeds_of(method: str, track: Track, lr: float) -> list[Job]:
    return [Job(method, replace(track.setting, lr=lr), seed) for seed in range(track.seeds)]


def run_track(
    methods: Sequence[str], track: Track, out: Path, cells: Cells, workers: int, on_progress: Progress
) -> dict[str, str]:
    """Tune every method, then run its seeds. Returns the runs that failed, with the reason."""
    from fedkin.experiments.carry_out import run_all

    jobs = [job for method in methods for job in tuning(method, track).values()]
    failed = run_all(jobs, out, cells, workers=workers, on_progress=on_progress)
    jobs = [
        job
        for method in methods
        if (lr := chosen(method, track, cells)) is not None
        for job in seeds_of(method, track, lr)
    ]
    return failed | run_all(jobs, out, cells, workers=workers, on_progress=on_progress)


def collect(methods: Sequence[str], tracks: Mapping[str, Track], cells: Cells, failed: Mapping[str, str]) -> Board:
    """The leaderboard from stored results. It names what failed or is missing."""
    from fedkin.experiments.leaderboard import Entry, board

    entries: dict[tuple[str, str], Entry] = {}
    failures: list[str] = []
    waiting: dict[str, None] = {}
    for name, track in tracks.items():
        first = [method for method in methods if method in FIRST]
        if missing := [method for method in first if not _tried(method, track, cells)]:
            failures.append(f"track {name}: {'' if missing == first else ', '.join(missing) + ' '}not run yet")
            continue
        for method in methods:
            lr = chosen(method, track, cells)
            jobs = seeds_of(method, track, lr) if lr is not None else list(tuning(method, track).values())
            results = [cells.get(job) for job in jobs]
            known = [r for r in results if r is not None]
            if lr is None or len(known) < len(jobs):
                if reasons := [failed[job.name] for job in jobs if job.name in failed]:
                    failures.append(f"{method} on {name}: {brief(reasons[0])}")
                else:
                    waiting[method] = None
                continue
            s = track.setting
            entries[method, name] = Entry(
                _table(known, "personal"),
                _table(known, "tests"),
                float(np.mean([sum(r["bytes"]) for r in known])) / s.rounds / s.clients / 1e6,
                float(np.mean([r["seconds"] for r in known])),
                lr,
                s.redrawn,
            )
    if waiting:
        failures.append(f"not run yet on every track: {', '.join(waiting)}")
    return board(entries, failures)


def _tried(method: str, track: Track, cells: Cells) -> bool:
    """Is there a result, or a failure, of every run of this method?"""
    lr = chosen(method, track, cells)
    if lr is None:
        return all(job.name in cells.failures for job in tuning(method, track).values())
    return all(cells.get(job) is not None or job.name in cells.failures for job in seeds_of(method, track, lr))


def _table(results: Sequence[Mapping[str, Any]], name: str) -> Any:
    return np.array([[np.nan if v is None else v for v in r[name]] for r in results], float)


def write(found: Board, out: Path) -> list[Path]:
    """The leaderboard as JSON, Markdown, CSV, LaTeX, two figures and an interactive page."""
    from fedkin.experiments.board_page import write_page
    from fedkin.experiments.leaderboard import critical_difference, pareto
    from fedkin.results.files import write_json

    out.mkdir(parents=True, exist_ok=True)
    made = [out / "leaderboard.json", out / "leaderboard.md"]
    write_json(made[0], {"command": "fedkin bench", "budget": BUDGET, **found.to_json()})
    made[1].write_text(text(found))
    if found.lines:
        for suffix, written in ((".csv", tables.csv(*found.table())), (".tex", tables.latex(*found.table()))):
            made.append(out / f"leaderboard{suffix}")
            made[-1].write_text(written)
    if len(found.lines) > 1:
        for name, draw in (("critical-difference", critical_difference), ("pareto", pareto)):
            made.append(out / f"leaderboard-{name}.png")
            draw(found).savefig(made[-1], dpi=110)
        made.append(write_page(out))
    return made


def text(found: Board) -> str:
    parts = [f"{BUDGET}.", "", found.words(), "", markdown(*found.table())]
    if found.winners:
        parts += [markdown(*found.winner_table())]
    if found.failures:
        parts += ["Left out, because a run failed or is missing: " + "; ".join(found.failures) + "."]
    return "\n".join(parts) + "\n"


def show(found: Board, console: Console, *, wide: bool = False) -> None:
    tables.show(console, "Leaderboard", *found.table(), BUDGET, wide=wide)
    console.print(found.words(), markup=False, highlight=False)
    for line in found.failures:
        console.print(f"Not ranked: {line}", markup=False, highlight=False)


def show_status(methods: Sequence[str], tracks: Mapping[str, Track], cells: Cells, console: Console) -> None:
    from fedkin.experiments.estimate import Status, status
    from fedkin.report.tables import terminal

    rows, failures, total = [], cells.failures, Status(0, 0, 0.0, 0.0)
    for name, track in tracks.items():
        jobs: list[Job] = []
        for method in methods:
            jobs += tuning(method, track).values()
            jobs += seeds_of(method, track, chosen(method, track, cells) or GRID[0])
        found = status([job for job in jobs if job.name not in failures], cells, {})
        lost = len({job.name for job in jobs if job.name in failures})
        total = Status(*(a + b for a, b in zip(astuple(total), astuple(found))))
        rows.append((name, *_columns(found, lost)))
    rows.append(("all together", *_columns(total, len(failures))))
    header = ("track", "runs done", "failed", "core hours spent", "hours left")
    console.print(terminal("Leaderboard", header, rows, f"Stored results: {cells.folder}."))


def _columns(found: Status, lost: int) -> tuple[str, str, str, str]:
    return (f"{found.done} of {found.total}", str(lost), f"{found.spent / 3600:.2f}", f"{found.hours_left:.2f}")
