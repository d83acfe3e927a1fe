"""Is one method better than another? Judged on pairs (seed, client), with a 95 % interval.

Two methods that run with the same seed share data, clients and the initial model, so each (seed, client) gives one
paired difference. Differences of one seed are not independent, and neither are those of one client, so the variance of
the mean difference is estimated by both: how much it varies from seed to seed, plus how much it would vary with other
clients (a cluster bootstrap over clients; for a mean, its exact value). Clients that are drawn anew for each seed are
part of the first already, and only a quarter of the second is added, to steady the estimate from few seeds.
`docs/evaluation.md` states the rule; its error rates are in `tests/results/test_verdict.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Numbers = NDArray[np.float64]
Word = Literal["above", "below", "level", "undecided", "too few seeds", "not measured"]

LEAST_SEEDS = 3
CONFIDENCE = 0.95
RESAMPLES = 1000
MARGIN = 0.005
"""Half a point of accuracy: two methods are level if the whole interval is closer to 0 than this."""
REDRAWN_SHARE = 0.25
"""How much of the variance over clients is added where each seed has other clients. With 0 the rule is Student's t over
seeds, which needs many of them; with 1 clients count twice. At the worst mixture of the two variances a quarter has as
many false alarms as 1, and its intervals are narrower for any number of seeds where clients are what differs."""


@dataclass(frozen=True)
class Judgment:
    """The difference between two methods: its mean, its 95 % interval, and what that decides."""

    word: Word
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    seeds: int = 0

    @property
    def decided(self) -> bool:
        return self.word in ("above", "below", "level")


def judge(
    one: ArrayLike,
    other: ArrayLike,
    *,
    margin: float = 0.0,
    statistic: Callable[[Numbers], Numbers] | None = None,
    redrawn: bool = False,
) -> Judgment:
    """Compare two methods from their values [seeds, clients]; the mean difference is `one` minus `other`.

    A value that was not measured is NaN, and its pair is left out. `statistic` maps values [..., clients] to one number
    for each seed (default: the mean; `spread` compares standard deviations over clients). For measures with one value
    for each seed, pass [seeds, 1] or [seeds]. With a `margin`, a difference whose interval lies within it is "level".
    `redrawn`: each seed has other clients, as in a random partition.
    """
    a, b = (_table(values) for values in (one, other))
    if a.shape != b.shape:
        raise ValueError(f"Values must pair up; their shapes [seeds, clients] are {a.shape} and {b.shape}.")
    missing = ~(np.isfinite(a) & np.isfinite(b))
    a, b = np.where(missing, np.nan, a), np.where(missing, np.nan, b)
    there = ~missing.all(axis=1)
    a, b, seeds = a[there], b[there], int(there.sum())
    if not seeds:
        return Judgment("not measured")
    function = statistic or average
    each = function(a) - function(b)
    mean = float(each.mean())
    if seeds < LEAST_SEEDS:
        return Judgment("too few seeds", mean, seeds=seeds)
    if statistic is None:
        between_clients = _variance_of_mean(np.nanmean(a - b, axis=0))
    else:
        between_clients = _bootstrap_variance(a, b, function)
    if redrawn:
        between_clients *= REDRAWN_SHARE
    clients = int((~np.isnan(a)).any(axis=0).sum())
    half = float(half_width(np.asarray(_variance_of_mean(each)), np.asarray(between_clients), seeds, clients))
    low, high = mean - half, mean + half
    return Judgment(_word(low, high, margin, exact=not np.any(each)), mean, low, high, seeds)


def half_width(between_seeds: Numbers, between_clients: Numbers, seeds: int, clients: int) -> Numbers:
    """Half the interval from the two variances of the mean: Student's t with Satterthwaite's degrees of freedom."""
    from scipy.stats import t

    total = between_seeds + between_clients
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = total**2 / (between_seeds**2 / (seeds - 1) + between_clients**2 / max(clients - 1, 1))
    freedom = np.where(total > 0, freedom, 1.0)
    half: Numbers = np.where(total > 0, t.ppf((1 + CONFIDENCE) / 2, freedom) * np.sqrt(total), 0.0)
    return half


def average(values: Numbers) -> Numbers:
    out: Numbers = np.nanmean(values, axis=-1)
    return out


def spread(values: Numbers) -> Numbers:
    """Standard deviation over clients."""
    out: Numbers = np.nanstd(values, axis=-1)
    return out


def _table(values: ArrayLike) -> Numbers:
    table: Numbers = np.asarray(values, float)
    return table[:, None] if table.ndim == 1 else table


def _word(low: float, high: float, margin: float, *, exact: bool) -> Word:
    if exact and low == high:
        return "level"  # the same numbers in every seed
    if low > 0:
        return "above"
    if high < 0:
        return "below"
    return "level" if -margin < low and high < margin else "undecided"


def _variance_of_mean(values: Numbers) -> float:
    values = values[~np.isnan(values)]
    if len(values) < 2 or np.ptp(values) <= 1e-9 * np.abs(values).max():  # else rounding would look like variance
        return 0.0
    return float(values.var(ddof=1) / len(values))


def _bootstrap_variance(a: Numbers, b: Numbers, function: Callable[[Numbers], Numbers]) -> float:
    """Variance of the mean over seeds of the difference in `function` when clients are resampled."""
    drawn = np.random.default_rng(0).integers(0, a.shape[1], (RESAMPLES, a.shape[1]))
    means = [float(np.mean(function(a[:, d]) - function(b[:, d]))) for d in drawn]
    return float(np.var(means))
