"""When a run has converged."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np


def convergence_round(
    accuracy: Sequence[float],
    rounds: Sequence[int] | None = None,
    *,
    gain: float = 0.001,
    patience: int = 20,
    window: int = 5,
) -> int | None:
    """The first round after which `patience` more rounds raise the best smoothed mean accuracy by less than `gain`
    (0.001: a tenth of a point); None if the run ends before that can be said.

    `rounds` says in which round each value was measured (default: 1, 2, …). A smoothed value is the mean of the last
    `window` measurements, or of fewer at the start.
    """
    at = list(range(1, len(accuracy) + 1)) if rounds is None else list(rounds)
    if len(at) != len(accuracy) or any(b <= a for a, b in pairwise(at)):
        raise ValueError(f"rounds must increase, with one for each of the {len(accuracy)} values; given: {at}.")
    values = np.asarray(accuracy, float)
    smooth = [values[max(0, i + 1 - window) : i + 1].mean() for i in range(len(values))]
    best = np.maximum.accumulate(smooth) if smooth else np.empty(0)
    for i, start in enumerate(at):
        later = next((j for j in range(i + 1, len(at)) if at[j] >= start + patience), None)
        if later is None:
            return None
        if best[later] - best[i] < gain:
            return start
    return None
