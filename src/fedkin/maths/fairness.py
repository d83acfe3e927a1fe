"""How evenly a result is distributed over clients."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike


def tenth(clients: int) -> int:
    """Number of clients in the worst tenth: at least one."""
    return max(1, math.ceil(clients / 10))


def fairness(values: ArrayLike, *, higher_is_better: bool = True) -> dict[str, float]:
    """Standard deviation, mean of the worst tenth of clients (at least one client), and Jain's index (1: all equal)."""
    v = np.sort(np.asarray(values, float))
    v = v if higher_is_better else v[::-1]
    worst = v[: tenth(len(v))]
    square = float((v**2).sum())
    jain = float(v.sum()) ** 2 / (len(v) * square) if square > 0 else 1.0
    return {"std": float(v.std()), "worst_decile": float(worst.mean()), "jain": jain}
