"""What is read from a run: pure functions of its history and summary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkin.experiments.convergence import convergence_round
from fedkin.experiments.declare import Measure, Run
from fedkin.maths.divergence import pairwise_kld

Numbers = NDArray[np.float64]


def personal(run: Run) -> float:
    """Mean over all clients, last round, of the accuracy of the model each one uses."""
    return float(run.summary["personal"]["mean"])


def received(run: Run) -> float | None:
    """Of the model as it was sent; None where nothing is (Local)."""
    found = run.summary.get("received")
    return None if found is None else float(found["mean"])


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


def every(step: int, metric: str) -> Callable[[Run], list[float]]:
    """What was written down in every so manieth round; in all where the run is shorter (smoke)."""

    def measure(run: Run) -> list[float]:
        found = {r: v for r, v in zip(*events(run, metric)) if v is not None}
        return [v for r, v in found.items() if r % step == 0] or list(found.values())

    return measure


def converged(run: Run) -> int | None:
    """Round of convergence by the run's accuracy curve: no gain in 20 rounds, or in a fifth of a shorter run."""
    rounds, values = curve(run)
    patience = min(20, max(4, run.cell.setting.rounds // 5))
    return convergence_round(values, rounds, patience=patience)


def communications(run: Run) -> float | None:
    """Rounds until convergence in which any client sent something; None without an end, or where nobody ever does."""
    end = converged(run)
    sent = {row.round for row in run.history.select("bytes_up") if row.value}
    if end is None or not sent:
        return None
    return float(sum(1 for r in sent if r <= end))


def until_converged(metric: str) -> Measure:
    """Seconds of communication_seconds or compute_seconds, or of both ("total"), until convergence."""
    names = ("communication_seconds", "compute_seconds") if metric == "total" else (metric,)

    def measure(run: Run) -> float:
        end = converged(run) or run.cell.setting.rounds
        return float(sum(v for name in names for r, v in zip(*events(run, name)) if r <= end))

    return measure


def simulated_time(run: Run, rounds: Sequence[int]) -> list[float]:
    """Seconds of communication and computing until the end of each of these rounds."""
    parts = [dict(zip(*events(run, name))) for name in ("communication_seconds", "compute_seconds")]
    spent = np.cumsum([sum(part.get(r, 0.0) for part in parts) for r in range(1, max(rounds) + 1)])
    return [float(spent[r - 1]) for r in rounds]


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
    """Smallest weight over largest, over all pairs of clients: 1 where everybody learns from everybody alike."""
    matrix = last_mixing(run)
    return float(matrix.min() / matrix.max())


def own_weight(run: Run) -> float:
    """Mean weight that clients give themselves."""
    return float(np.mean(np.diag(last_mixing(run))))


def to_like(run: Run) -> float | None:
    """How far weight on others goes to those that share a class: mean weight of like over that of like and unlike,
    so 0.5 where no difference is made and 1 where unlike ones get nothing. None where all are alike, or no weight goes
    to others."""
    matrix, present = last_mixing(run), label_counts(run) > 0
    shares = (present.astype(int) @ present.T.astype(int)) > 0
    other = ~np.eye(len(matrix), dtype=bool)
    if not (shares & other).any() or shares.all():
        return None
    like, unlike = float(matrix[shares & other].mean()), float(matrix[~shares].mean())
    return like / (like + unlike) if like + unlike > 0 else None


def newcomers(run: Run) -> float:
    """Accuracy after the last round of the clients that joined late."""
    setting = run.cell.setting
    first = setting.clients - round(setting.clients * setting.arrive_share)
    values: Sequence[float] = [
        v for client, v in run.history.values("personal", round=run.summary["rounds"]).items() if client >= first
    ]
    return float(np.mean(values))
