"""Weights of each client for each other client, from distances or similarities of models; rows sum to 1."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


def attentive(apart: Floats, known: Flags, alpha: float, sigma: float) -> Floats:
    """FedAMP's ξ: α·exp(-d/σ)/σ of the squared distance d to each known other client, and the rest for the client
    itself. If α is so large that the rest would be negative, the others' weights are scaled down to sum to 1."""
    weights = alpha * np.exp(-apart / sigma) / sigma * known
    np.fill_diagonal(weights, 0)
    weights /= np.maximum(weights.sum(1, keepdims=True), 1)
    np.fill_diagonal(weights, 1 - weights.sum(1))
    return weights


def heuristic(cosines: Floats, known: Flags, sigma: float, own: float) -> Floats:
    """HeurFedAMP's ξ: `own` for the client itself (0: an equal share), the rest as softmax of σ·cosine over others."""
    weights = np.exp(sigma * (cosines - 1)) * known  # minus 1: the softmax is the same, and nothing overflows
    np.fill_diagonal(weights, 0)
    total = weights.sum(1)
    others = (known.sum() - known).astype(float)
    self_weight = np.where(others > 0, own or 1 / (others + 1), 1.0)
    weights *= ((1 - self_weight) / np.where(total > 0, total, 1))[:, None]
    np.fill_diagonal(weights, 1 - weights.sum(1))
    return weights


def on_simplex(rows: Floats) -> Floats:
    """The projection of each row onto the simplex: the nearest point that is non-negative and sums to 1."""
    ordered = -np.sort(-rows, axis=1)
    excess = np.cumsum(ordered, axis=1) - 1
    count = np.arange(1, rows.shape[1] + 1)
    last = (ordered - excess / count > 0).sum(1, keepdims=True) - 1
    out: Floats = np.maximum(rows - np.take_along_axis(excess, last, 1) / (last + 1), 0)
    return out
