"""What is read from a run: pure functions of its history and summary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkin.maths.convergence import convergence_round
from fedkin.maths.divergence import pairwise_kld
from fedkin.papers.declare import Measure, Run

Numbers = NDArray[np.float64]


def personal(run: Run) -> float:
    """Mean over all clients, last round, of the accuracy of the model each one uses."""
    return float(run.summary["personal"]["mean"])


def received(run: Run) -> float:
    return float(run.summary["received"]["mean"])


def spread_over_clients(run: Run) -> float:
    return float(run.summary["personal"]["std"])


def megabytes(run: Run) -> float:
    return float(run.summary["bytes_down"] + run.summary["bytes_up"]) / 1e6


def curve(run: Run, metric: str = "personal", reduce: str = "mean") -> tuple[list[int], list[float]]:
    """Mean (or std) over all clients in each round that was measured at all of them."""
    rounds = run.history.rounds(metric)
    values: dict[int, list[float]] = {r: [] for r in rounds}
    for row in run.history.select(metric, scope="all"):
        if row.value is not None:
            values[row.round].append(row.value)
    function = np.mean if reduce == "mean" else np.std
    return rounds, [float(function(values[r])) if values[r] else float("nan") for r in rounds]


def rounds_to(level: float) -> Measure:
    """The first measured round with a mean accuracy of at least this; None if it is never reached."""

    def measure(run: Run) -> float | None:
        return next((float(r) for r, v in zip(*curve(run)) if v >= level), None)

    return measure


def events(run: Run, metric: str) -> tuple[list[int], list[Any]]:
    """What the method wrote down under this name, round by round."""
    found = [(row.round, row.value) for row in run.history.select(metric) if row.client is None]
    return [r for r, _ in found], [v for _, v in found]


def last_event(metric: str) -> Measure:
    return lambda run: (events(run, metric)[1] or [None])[-1]


def lowest_event(metric: str) -> Measure:
    return lambda run: min((v for v in events(run, metric)[1] if v is not None), default=None)


def converged(run: Run) -> int:
    """Round of convergence by the run's accuracy curve, or the last round where that cannot be said yet."""
    rounds, values = curve(run)
    return convergence_round(values, rounds) or rounds[-1]


def until_converged(metric: str) -> Measure:
    """Seconds of communication_seconds or compute_seconds, or of both ("total"), until convergence."""
    names = ("communication_seconds", "compute_seconds") if metric == "total" else (metric,)

    def measure(run: Run) -> float:
        end = converged(run)
        return float(sum(v for name in names for r, v in zip(*events(run, name)) if r <= end))

    return measure


def label_counts(run: Run) -> Numbers:
    rows = sorted((row.client, row.value) for row in run.history.select("labels") if row.client is not None)
    return np.array([value for _, value in rows], float)


def mean_kld(run: Run) -> float:
    return float(run.summary["mean_kld"])


def discrepancy_pairs(run: Run) -> tuple[Numbers, Numbers] | None:
    """KLD of labels and model discrepancy of every pair of clients, as vectors; None before there is a tree."""
    found = events(run, "discrepancy")[1]
    if not found:
        return None
    distance, leaves = np.array(found[0], float), np.array(events(run, "leaves")[1][0], int)
    kld = pairwise_kld(label_counts(run))[np.ix_(leaves, leaves)]
    pairs = np.triu_indices(len(leaves), 1)
    return kld[pairs], distance[pairs]


def discrepancy_correlation(run: Run) -> float | None:
    pairs = discrepancy_pairs(run)
    return None if pairs is None else float(np.corrcoef(*pairs)[0, 1])


def last_mixing(run: Run) -> Numbers:
    """[N, N]; of several matrices (one for each group of layers) the first."""
    value = events(run, "mixing")[1][-1]
    return np.array(next(iter(value.values())) if isinstance(value, dict) else value, float)


def evenness(run: Run) -> float:
    """Largest weight over smallest, over all pairs of clients: 1 where everybody learns from everybody alike."""
    matrix = last_mixing(run)
    return float(matrix.max() / max(matrix.min(), 1e-12))


def by_likeness(run: Run) -> float:
    """Mean weight of other clients that share a class, over that of those that share none."""
    matrix, present = last_mixing(run), label_counts(run) > 0
    shares = (present.astype(int) @ present.T.astype(int)) > 0
    other = ~np.eye(len(matrix), dtype=bool)
    if not (shares & other).any() or shares.all():
        return float("nan")
    return float(matrix[shares & other].mean() / max(matrix[~shares].mean(), 1e-12))


def newcomers(run: Run) -> float:
    """Accuracy after the last round of the clients that joined late."""
    setting = run.cell.setting
    first = setting.clients - round(setting.clients * setting.arrive_share)
    values: Sequence[float] = [
        v for client, v in run.history.values("personal", round=run.summary["rounds"]).items() if client >= first
    ]
    return float(np.mean(values))
