"""Rows seen from a few directions that they share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedkin.maths.graph import cosine
from fedkin.maths.kmeans import gram

Floats = NDArray[np.float64]


def decomposed(rows: Tensor, directions: int) -> Floats:
    """Cosines [rows, directions] of each row with the leading right singular vectors of the rows, all scaled to length
    1 before. The matrix of the rows' cosines is enough: its eigenvectors times the roots of its eigenvalues."""
    value, vector = np.linalg.eigh(cosine(gram(rows)))
    order = np.argsort(-value)[:directions]
    out: Floats = vector[:, order] * np.sqrt(np.maximum(value[order], 0))
    return out
