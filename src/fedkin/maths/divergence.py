"""Divergence between the clients' label distributions (DC-PFL, eq. 1 and 2)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

SMOOTHING = 1e-6  # added to every probability, so that a class missing at a client gives a finite divergence


def pairwise_kld(counts: ArrayLike) -> NDArray[np.float64]:
    """Symmetrized Kullback-Leibler divergence of every pair of label histograms [clients, classes]."""
    p = np.asarray(counts, float)
    p = p / np.maximum(p.sum(1, keepdims=True), 1) + SMOOTHING
    p /= p.sum(1, keepdims=True)
    log = np.log(p)
    one_way = (p * log).sum(1)[:, None] - p @ log.T  # eq. (1)
    out: NDArray[np.float64] = np.maximum((one_way + one_way.T) / 2, 0)
    np.fill_diagonal(out, 0)
    return out


def mean_kld(counts: ArrayLike, most: int = 2000) -> float:
    """Mean over all pairs; the paper prints the factor 2/n where 2/(n(n-1)) is meant. With more than `most` clients,
    over an evenly spaced subset."""
    table = np.asarray(counts)
    if len(table) > most:
        table = table[np.linspace(0, len(table) - 1, most).astype(int)]
    if len(table) < 2:
        return 0.0
    d = pairwise_kld(table)
    return float(d.sum() / (len(d) * (len(d) - 1)))
