"""Is FedAvg close to its plateau at the sizes of scale desk and of the leaderboard?

    python benchmarks/plateau.py [NAME ...] [--workers N] [--out FOLDER]

Runs FedAvg for twice the rounds of each setting, one seed, and writes docs/results/plateau.md: its accuracy after the
rounds that the experiments have, and the best mean over three neighboring measurements of the longer run. Names (parts
of them suffice) choose settings to run now; the page has all that are stored with the other cells.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedkin.experiments.bench import TRACKS
from fedkin.experiments.carry_out import run_all
from fedkin.experiments.cells import Cells, Job
from fedkin.experiments.declare import Setting
from fedkin.experiments.papers import PAPERS, items
from fedkin.report.tables import markdown

RESULTS = Path(__file__).parent.parent / "docs" / "results"
POINTS = 20
RATE = 0.1  # of the tracks, which choose their own


def settings() -> dict[str, Setting]:
    """The distinct settings in which FedAvg is run, by the first item that has them; of DC-PFL's many, figure 7's."""
    found: dict[str, tuple[str, Setting]] = {}
    for paper in PAPERS:
        for name, item in items(paper).items():
            for cell in item.cells:
                if cell.method == "fedavg" and cell.desk is not None and (paper != "dcpfl" or name == "fig7"):
                    one = longer(cell.desk)
                    found.setdefault(Job("fedavg", one, 0).folder, (f"{paper}/{name} {cell.column} {cell.row}", one))
    for name, track in TRACKS.items():
        one = longer(replace(track.setting, lr=RATE))
        found.setdefault(Job("fedavg", one, 0).folder, (f"bench {name}", one))
    return {name.removesuffix(" FedAvg"): setting for name, setting in found.values()}


def longer(setting: Setting) -> Setting:
    return replace(setting, rounds=2 * setting.rounds, evaluate_every=max(1, 2 * setting.rounds // POINTS))


def row(name: str, setting: Setting, curve: dict[str, list[float]]) -> list[str]:
    rounds, values = curve["rounds"], 100 * np.array(curve["personal"])
    at = rounds.index(setting.rounds // 2)
    best = max(np.convolve(values, np.ones(3) / 3, "valid"))
    quarters = [f"{values[rounds.index(r)]:.1f}" for r in rounds if r % (setting.rounds // 4) == 0]
    return [name, str(setting.rounds // 2), *quarters, f"{best:.1f}", f"{best - values[at]:+.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/plateau"))
    flags = parser.parse_args()
    cells, found = Cells(RESULTS / "cells"), settings()
    jobs = {name: Job("fedavg", setting, 0) for name, setting in found.items()}
    keep = {job.name: ("curve",) for job in jobs.values()}

    def show(done: int, total: int, label: str) -> None:
        print(f"{done} of {total} {label}", flush=True)

    chosen = [job for name, job in jobs.items() if not flags.names or any(part in name for part in flags.names)]
    failed = run_all(chosen, flags.out, cells, keep=keep, workers=flags.workers, on_progress=show)
    rows = [
        row(name, job.setting, result["kept"]["curve"])
        for name, job in jobs.items()
        if (result := cells.get(job, ("curve",))) is not None
    ]
    header = ["setting", "rounds", "half of them", "all", "one and a half", "twice", "plateau", "missing"]
    text = [
        "# How close FedAvg comes to its plateau",
        "",
        "FedAvg's accuracy (mean over clients, seed 0) at the sizes of scale `desk` and of the leaderboard, after "
        "half, all, one and a half times and twice the rounds that the experiments have. The plateau is the best mean "
        "over three neighboring measurements of the run with twice the rounds. Made by `python benchmarks/plateau.py`.",
        "",
        markdown(header, rows),
    ]
    (RESULTS / "plateau.md").write_text("\n".join(text))
    for name, why in failed.items():
        print(f"{name}: {why}")
    print(f"{RESULTS / 'plateau.md'}")


if __name__ == "__main__":
    main()
