"""What is read from a run: functions of its stored result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkin.experiments.convergence import convergence_round
from fedkin.experiments.declare import Measure, Run
from fedkin.maths.divergence import pairwise_kld
from fedkin.results.verdict import MARGIN, spread

Numbers = NDArray[np.float64]


def _mean(metric: str) -> Callable[[Run], float | None]:
    def of(run: Run) -> float | None:
        values = run.clients(metric)
        return float(np.nanmean(values)) if len(values) and not np.isnan(values).all() else None

    return of


def _clients(metric: str) -> Callable[[Run], Numbers]:
    return lambda run: run.clients(metric)


personal = Measure(_mean("personal"), _clients("personal"), margin=MARGIN, style="percent")
"""Accuracy of the model that each client uses: mean over all clients after the last round."""

received = Measure(_mean("received"), _clients("received"), margin=MARGIN, style="percent")
"""Accuracy of the model as it was sent; None where nothing is sent (Local)."""

spread_over_clients = Measure(
    lambda run: float(np.nanstd(run.clients("personal"))), _clients("personal"), spread, style="percent"
)
"""Standard deviation of the accuracy over clients."""

megabytes = Measure(lambda run: sum(run.result["bytes"]) / 1e6)
mean_kld = Measure(lambda run: run.result["kld"])


def _newcomers(run: Run) -> Numbers:
    late = round(run.setting.clients * run.setting.arrive_share)
    return run.clients("personal")[-late:]


newcomers = Measure(lambda run: float(np.nanmean(_newcomers(run))), _newcomers, margin=MARGIN, style="percent")
"""Accuracy after the last round of the clients that joined late."""


# ---- curves
def curve(run: Run, metric: str = "personal") -> tuple[list[int], list[float]]:
    """Mean over all clients (or, with `_std`, its standard deviation) in each round that measured all of them."""
    kept = run.result["kept"]["curve"]
    return kept["rounds"], [np.nan if v is None else v for v in kept.get(metric, [None] * len(kept["rounds"]))]


def rounds_to(level: float) -> Measure:
    """The first measured round with a mean accuracy of at least `level`; None if it is never reached, that is, not
    before the last round has passed."""
    return Measure(
        lambda run: next((float(r) for r, v in zip(*curve(run)) if v >= level), None),
        needs=("curve",),
        at_least=lambda run: run.setting.rounds + 1.0,
        least=lambda run: float(curve(run)[0][0]),
    )


def _patience(run: Run) -> int:
    return min(20, max(4, run.setting.rounds // 5))


def converged(run: Run) -> int | None:
    """Round of convergence of the accuracy curve: no gain of 0.1 point in 20 rounds, or in a fifth of a shorter run.
    None: the run ended before it converged."""
    rounds, values = curve(run)
    return convergence_round(values, rounds, patience=_patience(run))


def earliest_convergence(run: Run) -> int | None:
    """The first round in which a run that ended before it converged may have converged: fewer rounds are left than it
    takes to tell."""
    rounds = curve(run)[0]
    return next((r for r in rounds if r + _patience(run) > rounds[-1]), None)


def until_converged(*names: str) -> Measure:
    """Sum of simulated seconds ("communication_seconds", "compute_seconds") or of rounds with any traffic ("sent")
    until convergence; None if the run did not converge. Then it takes at least as long as until the first round in
    which it may have converged."""

    def until(end: int | None, run: Run) -> float | None:
        if end is None:
            return None
        at = run.result["kept"]["curve"]["rounds"].index(end)
        total = float(sum(run.result["kept"]["time"][name][at] for name in names))
        # nobody sends anything in any round (Local): the paper has no number either
        return None if total == 0 and names == ("sent",) else total

    return Measure(
        lambda run: until(converged(run), run),
        needs=("curve", "time"),
        at_least=lambda run: until(earliest_convergence(run), run),
    )


communications = until_converged("sent")
"""Rounds until convergence in which any client sent something."""


def simulated_time(run: Run) -> list[float]:
    """Seconds of communication and computing until the end of each measured round."""
    time = run.result["kept"]["time"]
    return [a + b for a, b in zip(time["communication_seconds"], time["compute_seconds"])]


# ---- what methods write down
def events(run: Run, metric: str) -> tuple[list[int], list[Any]]:
    found = run.result["kept"].get(metric) or []
    return [r for r, _ in found], [v for _, v in found]


def last_event(metric: str) -> Measure:
    return Measure(lambda run: (events(run, metric)[1] or [None])[-1], needs=(metric,))


def every(step: int, metric: str) -> Callable[[Run], list[float]]:
    """The values of every `step`-th round; of all rounds where the run is shorter (smoke)."""

    def values(run: Run) -> list[float]:
        found = {r: v for r, v in zip(*events(run, metric)) if v is not None}
        return [v for r, v in found.items() if r % step == 0] or list(found.values())

    return values


def label_counts(run: Run) -> Numbers:
    return np.array(run.result["kept"]["labels"], float)


def discrepancy_pairs(run: Run) -> tuple[Numbers, Numbers] | None:
    """KLD of labels and model discrepancy of every pair of clients, as vectors; None before there is a tree."""
    found = events(run, "discrepancy")[1]
    if not found:
        return None
    distance, leaves = np.array(found[0], float), np.array(events(run, "leaves")[1][0], int)
    kld = pairwise_kld(label_counts(run))[np.ix_(leaves, leaves)]
    pairs = np.triu_indices(len(leaves), 1)
    return kld[pairs], distance[pairs]


def _correlation(run: Run) -> float | None:
    pairs = discrepancy_pairs(run)
    return None if pairs is None else float(np.corrcoef(*pairs)[0, 1])


TREE = ("discrepancy", "leaves", "tree", "labels")
discrepancy_correlation = Measure(_correlation, needs=TREE)


# ---- who learns from whom
def last_mixing(run: Run) -> Numbers:
    """The mixing matrix [N, N]; the first of several (one for each group of layers)."""
    return np.array(run.result["kept"]["mixing"], float)


def _evenness(run: Run) -> float:
    matrix = last_mixing(run)
    return float(matrix.min() / matrix.max())


def _to_like(run: Run) -> float | None:
    matrix, present = last_mixing(run), label_counts(run) > 0
    shares = (present.astype(int) @ present.T.astype(int)) > 0
    other = ~np.eye(len(matrix), dtype=bool)
    if not (shares & other).any() or shares.all():
        return None
    like, unlike = float(matrix[shares & other].mean()), float(matrix[~shares].mean())
    return like / (like + unlike) if like + unlike > 0 else None


evenness = Measure(_evenness, needs=("mixing",))
"""Smallest weight over largest, over all pairs of clients: 1 where everybody learns equally from everybody."""

own_weight = Measure(lambda run: float(np.mean(np.diag(last_mixing(run)))), needs=("mixing",))
"""Mean weight that clients give themselves."""

to_like = Measure(_to_like, needs=("mixing", "labels"))
"""Mean weight on others that share a class, over that plus the mean weight on those that share none: 0.5 where it makes
no difference, 1 where unlike clients get nothing. None where all are alike, or no weight goes to others."""
