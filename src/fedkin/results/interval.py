"""How far a result may be off because a client has few test examples: a paired bootstrap over examples and seeds.

Two methods are scored on the same draws of the same examples, so that hard examples do not count as a difference
between the methods. An example that is tested in several seeds is one example: it is drawn for all seeds at once. Seeds
are drawn too (the pigeonhole bootstrap of Owen, 2007, which errs on the wide side); with one seed, the interval is for
the models that were trained. Quantiles are those of Hesterberg's expanded percentile interval (The American
Statistician, 2015), which makes up for the narrowness of the bootstrap with few examples. `docs/evaluation.md` states
the rule; coverage on synthetic data is tested in `tests/results/test_interval.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkin.task import Metric

Numbers = NDArray[np.float64]
Ints = NDArray[np.int64]

DRAWS = 2000
CONFIDENCE = 0.95
LEAST_EXAMPLES = 20
LEAST_OF_CLASS = 5


class Predictions(NamedTuple):
    """One model's outputs on a client's test examples, in one seed."""

    examples: Ints
    """Which examples: the same number is the same example in every seed."""
    outputs: NDArray[Any]
    targets: NDArray[Any]


class Resamples:
    """Draws of one client's examples and of the seeds. All methods are scored on the same draws."""

    def __init__(self, examples: Sequence[Ints], *, draws: int = DRAWS, seed: int = 0) -> None:
        rng = np.random.default_rng([seed, 0xB007])
        known = np.unique(np.concatenate(examples))
        counts = rng.multinomial(len(known), np.full(len(known), 1 / len(known)), size=draws)
        seeds = len(examples)
        self.examples = len(known)
        self._counts = [counts[:, np.searchsorted(known, own)] for own in examples]
        self._seeds = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=draws).astype(float)

    def scores(self, metric: Metric, tested: Sequence[Predictions]) -> Numbers:
        """The metric of one method on each draw: the mean over the seeds of that draw; NaN if it is not defined."""
        each = np.stack([metric.on_draws(t.outputs, t.targets, c) for t, c in zip(tested, self._counts)], 1)
        weights = np.where(np.isnan(each), 0.0, self._seeds)
        with np.errstate(invalid="ignore"):
            mean: Numbers = np.nansum(each * weights, 1) / weights.sum(1)
        return mean


def interval(draws: Numbers, examples: int, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """The expanded percentile interval; None if there is not enough data."""
    from scipy.stats import norm, t

    draws = draws[~np.isnan(draws)]
    if len(draws) < DRAWS // 4 or examples < 2:
        return None
    spread = np.sqrt(examples / (examples - 1)) * t.ppf((1 + confidence) / 2, examples - 1)
    tail = float(norm.cdf(-spread))
    low, high = np.quantile(draws, [tail, 1 - tail])
    return float(low), float(high)


def too_few(metric: Metric, tested: Sequence[Predictions], *, classes: bool) -> str:
    """Why the examples do not suffice for an interval; empty if they do."""
    known = {int(i): y for t in tested for i, y in zip(t.examples, t.targets)}
    if len(known) < LEAST_EXAMPLES:
        return f"fewer than {LEAST_EXAMPLES} test examples"
    if classes and metric.both:
        least = int(np.unique(list(known.values()), return_counts=True)[1].min())
        if least < LEAST_OF_CLASS or len(set(map(int, known.values()))) < 2:
            return f"fewer than {LEAST_OF_CLASS} test examples of one class"
    return ""
