"""The end of the rapid decrease of a loss curve, found by its radius of curvature (DC-PFL, sec. III-C)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def smoothed(losses: Sequence[float], window: int) -> Floats:
    """l_w(t): the mean of the last min(t, window) values."""
    values = np.asarray(losses, float)
    return np.array([values[max(0, t + 1 - window) : t + 1].mean() for t in range(len(values))])


def radius(losses: Sequence[float], window: int) -> Floats:
    """r(t) for t = 1, 2, …: eq. (4) on the smoothed curve.

    It is +inf, so that the round is never the minimum, up to round `window` (the smoothing window still grows), before
    two differences exist, and where the curve is not convex (l'' ≤ 0).
    """
    curve = smoothed(losses, window)
    out = np.full(len(curve), np.inf)
    for t in range(max(2, window), len(curve)):  # t counts from 0: the first is round `window` + 1
        slope = curve[t] - curve[t - 1]  # l'(t)
        bend = slope - (curve[t - 1] - curve[t - 2])  # l''(t)
        if bend > 0:
            out[t] = (1 + slope**2) ** 1.5 / bend  # eq. (4)
    return out


def rapid_decrease_end(losses: Sequence[float], window: int, patience: int) -> int | None:
    """The round t (from 1) with the smallest r, once no smaller r came for `patience` rounds; None before that."""
    r = radius(losses, window)
    if not len(r) or not np.isfinite(r.min()):
        return None
    least = int(r.argmin())
    return least + 1 if len(r) - 1 - least >= patience else None
