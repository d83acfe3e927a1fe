"""Which method for how many examples: a few methods on Fashion-MNIST with 25, 100 and 400 training examples a client.

    python benchmarks/sizes.py             # run what is missing, then write the table of docs/choosing.md
    python benchmarks/sizes.py --only 25   # the same, for one size
    python benchmarks/sizes.py --page      # write the table from the stored runs alone

Runs are stored in docs/results/cells like those of `fedkin bench`. Each method takes the learning rate with the best
validation accuracy on seed 0. The table is between <!-- sizes --> and <!-- /sizes -->; tests/test_choosing.py holds the
page against the stored runs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from fedkin.experiments.carry_out import run_all
from fedkin.experiments.cells import Cells, Job
from fedkin.experiments.declare import Setting
from fedkin.report.tables import markdown

ROOT = Path(__file__).parent.parent
GRID = (0.03, 0.1)  # at 0.3 some runs diverge
SEEDS = 3
METHODS = ("local", "fedavg", "fedavg-ft", "fedper", "knnper", "kin-lite", "kin")
EPOCHS = {25: 12, 100: 3, 400: 1}
"""Training examples of a client to local epochs. With batches of 32 these are 12 or 13 steps a round at every size."""


def job(method: str, examples: int, lr: float, seed: int) -> Job:
    setting = Setting(
        "fashion-mnist",
        "dirichlet",
        20,
        30,
        "fcnn2",
        partition_options={"alpha": 0.1},
        width=0.3,
        examples=examples * 6 // 5,
        validation=1 / 6,
        official_test=200,
        lr=lr,
        epochs=EPOCHS[examples],
        batch_size=32,
    )
    return Job(method, setting, seed)


def chosen(method: str, examples: int, cells: Cells) -> float | None:
    """The learning rate with the best validation accuracy on seed 0; None if a run is missing."""
    results = {lr: cells.get(job(method, examples, lr, 0)) for lr in GRID}
    scores = {lr: np.mean([v for v in r["validation"] if v is not None]) for lr, r in results.items() if r is not None}
    return max(scores, key=lambda lr: scores[lr]) if len(scores) == len(GRID) else None


def accuracies(method: str, examples: int, cells: Cells) -> list[float]:
    """The mean accuracy of the personal models for each seed; empty if a run is missing."""
    lr = chosen(method, examples, cells)
    results = [] if lr is None else [cells.get(job(method, examples, lr, seed)) for seed in range(SEEDS)]
    found = [r for r in results if r is not None]
    if len(found) < SEEDS:
        return []
    return [float(np.mean([v for v in r["personal"] if v is not None])) for r in found]


def table(cells: Cells) -> str:
    columns = [{m: np.array(accuracies(m, size, cells)) for m in METHODS} for size in EPOCHS]
    best = [max((values.mean() for values in found.values() if len(values)), default=0.0) for found in columns]
    rows = [[method, *(_cell(f[method], top) for f, top in zip(columns, best))] for method in METHODS]
    words = (
        f"Accuracy in % of the personal models, mean ± standard deviation over {SEEDS} seeds "
        "(`python benchmarks/sizes.py`). Fashion-MNIST, 20 clients with different labels (Dirichlet, α = 0.1), a fifth "
        "as many validation examples as training examples, 200 test examples each, 30 rounds in which everybody takes "
        "part, 12 or 13 local steps a round at every size. Each method takes the learning rate, of "
        f"{' and '.join(map(str, GRID))}, with the better validation accuracy on seed 0; the leaderboard's third "
        "rate, 0.3, was left out after three runs had diverged at it. A client for which the partition has fewer "
        "examples keeps those it has. The best of each column is in bold. The standard deviation is over "
        "seeds, which draw other clients for all methods alike."
    )
    if any(len(values) == 0 for found in columns for values in found.values()):
        words += " A dash has not been run yet."
    return f"{words}\n\n{markdown(['method', *(f'{size} training examples' for size in EPOCHS)], rows).strip()}"


def _cell(values: np.ndarray, best: float) -> str:
    if len(values) == 0:
        return "–"
    text = f"{100 * values.mean():.1f} ± {100 * values.std(ddof=1):.1f}"
    return f"**{text}**" if values.mean() == best else text


def page(text: str, cells: Cells) -> str:
    """The page with its table replaced."""
    before, _, rest = text.partition("<!-- sizes -->")
    after = rest.partition("<!-- /sizes -->")[2]
    return f"{before}<!-- sizes -->\n\n{table(cells)}\n\n<!-- /sizes -->{after}"


def run(examples: int, cells: Cells) -> None:
    """Tune every method, then run its seeds."""
    out = ROOT / "runs" / "sizes" / str(examples)
    run_all([job(m, examples, lr, 0) for m in METHODS for lr in GRID], out, cells, on_progress=_show)
    rates = {m: chosen(m, examples, cells) for m in METHODS}
    jobs = [job(m, examples, lr, seed) for m, lr in rates.items() if lr is not None for seed in range(SEEDS)]
    run_all(jobs, out, cells, on_progress=_show)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=int, choices=list(EPOCHS), help="run this size alone")
    parser.add_argument("--page", action="store_true", help="run nothing")
    given = parser.parse_args()
    cells = Cells(ROOT / "docs" / "results" / "cells")
    for examples in () if given.page else (given.only,) if given.only else EPOCHS:
        run(examples, cells)
    target = ROOT / "docs" / "choosing.md"
    target.write_text(page(target.read_text(), cells))


def _show(done: int, total: int, label: str) -> None:
    print(f"{done} of {total} {label}", flush=True)


if __name__ == "__main__":
    main()
