"""Agreement of two clusterings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


def rand_index(truth: Sequence[int], found: Sequence[int]) -> float:
    """Fraction of pairs that are together in both clusterings or apart in both."""
    n = len(truth)
    if n != len(found):
        raise ValueError(f"Both clusterings must cover the same items; one has {n} labels, the other {len(found)}.")
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


def bipartition(similarity: Floats) -> tuple[Flags, float]:
    """The two parts whose largest similarity across is smallest, and that similarity.

    Pairs are joined in order of decreasing similarity until two parts are left (single linkage), which attains the
    min-max exactly. True marks the part without the first client.
    """
    count = len(similarity)
    if count < 2:
        raise ValueError(f"A cluster of {count} cannot be split.")
    part = np.arange(count)
    first, second = np.triu_indices(count, 1)
    for pair in np.argsort(-similarity[first, second], kind="stable"):
        if len(np.unique(part)) == 2:
            break
        part[part == part[second[pair]]] = part[first[pair]]
    other: Flags = part != part[0]
    return other, float(similarity[~other][:, other].max())
