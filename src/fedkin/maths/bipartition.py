"""Cutting a set in two where it hangs together least."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


def bipartition(similarity: Floats) -> tuple[Flags, float]:
    """The two parts whose largest similarity across is smallest, and that similarity.

    Pairs are joined in order of decreasing similarity until two parts are left (single linkage), which attains the
    min-max exactly. True marks the part without the first row.
    """
    count = len(similarity)
    if count < 2:
        raise ValueError(f"{count} rows cannot be cut in two.")
    part = np.arange(count)
    first, second = np.triu_indices(count, 1)
    for pair in np.argsort(-similarity[first, second], kind="stable"):
        if len(np.unique(part)) == 2:
            break
        part[part == part[second[pair]]] = part[first[pair]]
    other: Flags = part != part[0]
    return other, float(similarity[~other][:, other].max())
