"""Agreement of two clusterings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def rand_index(truth: Sequence[int], found: Sequence[int]) -> float:
    """Fraction of pairs that are together in both clusterings or apart in both."""
    n = len(truth)
    if n != len(found):
        raise ValueError(f"Two clusterings of the same things are needed; one has {n}, the other {len(found)} labels.")
    if n < 2:
        return 1.0
    a, b = np.unique(truth, return_inverse=True)[1], np.unique(found, return_inverse=True)[1]
    table = np.zeros((a.max() + 1, b.max() + 1))
    np.add.at(table, (a, b), 1)
    pairs = n * (n - 1) / 2
    both = (table * (table - 1)).sum() / 2
    in_a = (table.sum(1) * (table.sum(1) - 1)).sum() / 2
    in_b = (table.sum(0) * (table.sum(0) - 1)).sum() / 2
    return float((pairs + 2 * both - in_a - in_b) / pairs)
