"""k-means that needs only the matrix of inner products, so each model is read once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]
from torch import Tensor

from fedkin.maths.table import Table

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BLOCK = 1 << 19  # numbers converted to float64 at a time: 4 MiB for models of any size
FILE_BLOCK = 1 << 24  # numbers read from a table's file at a time: 64 MiB
ROUNDING = float(np.finfo(np.float32).eps) ** 2  # a squared distance below this fraction of the squared norm is noise
MOST_STEPS = 300  # as in scikit-learn; a few are usually enough
# BLAS runs on one thread: its threads wait for each other in a busy loop, which took 5 to 40 times as long on shared
# cores. The bits then also do not depend on the number of cores.
_BLAS = ThreadpoolController()


class Clustering(NamedTuple):
    labels: Ints
    """The cluster of each vector, numbered in order of first appearance."""
    inertia: float
    """Sum of squared distances to the centers."""


def gram(rows: Tensor, minus: Tensor | None = None, of: Tensor | None = None) -> Floats:
    """Inner products of all pairs of float32 vectors [B, d], or of `rows - minus[of]`, summed in float64.

    Works on a few columns at a time, so that neither a float64 copy nor the difference is ever whole in memory.
    """
    x = rows.detach().numpy()
    start = None if minus is None else minus.detach().numpy()
    index = slice(None) if of is None else of.numpy()
    count, width = x.shape
    out = np.zeros((count, count))
    step = max(1, BLOCK // count)
    with _BLAS.limit(limits=1, user_api="blas"):
        for at in range(0, width, step):
            block = x[:, at : at + step].astype(np.float64)
            if start is not None:
                block -= start[:, at : at + step][index]
            out += block @ block.T  # numpy uses the symmetry and does half the work
    return out


def gram_of(table: Table, ids: Tensor, count: int, minus: Tensor | None = None) -> Floats:
    """`gram` of the first `count` numbers of these clients' vectors, or of their differences from one vector. Rows in
    a file are never all in memory."""
    if isinstance(table, Tensor) or table.in_memory:
        start = None if minus is None else minus[None, :count]
        return gram(table[ids][:, :count], start, None if minus is None else ids * 0)
    out = np.zeros((len(ids), len(ids)))
    step = max(1, FILE_BLOCK // max(1, len(ids)))
    for at in range(0, count, step):
        to = min(at + step, count)
        out += gram(table.columns(ids, at, to), None if minus is None else minus[None, at:to], ids * 0)
    return out


def squared_distances(products: Floats) -> Floats:
    """Squared distances of all pairs of vectors, from their inner products. Vectors that differ by no more than float32
    rounding have distance 0: they are the same model."""
    square = np.diag(products)
    apart = square[:, None] + square - 2 * products
    apart[apart <= ROUNDING * np.maximum(square[:, None], square)] = 0
    np.fill_diagonal(apart, 0)
    return apart


def membership(labels: Ints) -> Floats:
    """The matrix [K, B] that averages vectors into the centers of their clusters, with equal weights."""
    inside = (np.arange(int(labels.max()) + 1)[:, None] == labels).astype(np.float64)
    out: Floats = inside / inside.sum(1, keepdims=True)
    return out


def kmeans(products: Floats, clusters: int, *, restarts: int, rng: np.random.Generator) -> Clustering:
    """k-means with Euclidean distance on vectors given by their inner products: k-means++ starts, Lloyd's steps, the
    best of `restarts` tries. With fewer distinct vectors than `clusters` there are that many clusters."""
    apart = squared_distances(products)
    with _BLAS.limit(limits=1, user_api="blas"):
        tries = [lloyd(apart, spread_out(apart, clusters, rng)) for _ in range(restarts)]
    return min(tries, key=lambda found: found.inertia)


def spread_out(apart: Floats, clusters: int, rng: np.random.Generator) -> list[int]:
    """k-means++: indices of start vectors, each drawn by its squared distance to the nearest one drawn before."""
    drawn = [int(rng.integers(len(apart)))]
    nearest = apart[drawn[0]].copy()
    while len(drawn) < clusters and (total := nearest.sum()) > 0:
        drawn.append(int(rng.choice(len(apart), p=nearest / total)))
        nearest = np.minimum(nearest, apart[drawn[-1]])
    return drawn


def lloyd(apart: Floats, start: list[int]) -> Clustering:
    """Lloyd's steps from centers at the vectors `start`, until no vector changes its cluster."""
    labels: Ints = apart[:, start].argmin(1)
    for _ in range(MOST_STEPS):
        mean = membership(labels)
        within = mean @ apart
        # |x - mean|² = mean of |x - member|² minus half the mean of |member - member|²
        to_center = (within - (within * mean).sum(1, keepdims=True) / 2).T
        new = _none_empty(to_center.argmin(1), to_center)
        if np.array_equal(new, labels):
            break
        labels = new
    mean = membership(labels)
    sizes = np.bincount(labels)
    inertia = float((((mean @ apart) * mean).sum(1) * sizes / 2).sum())
    first = np.unique(labels, return_index=True)[1]
    return Clustering(first.argsort().argsort()[labels], inertia)


def _none_empty(labels: Ints, to_center: Floats) -> Ints:
    """A cluster that lost its last vector takes the one farthest from its center, as in scikit-learn."""
    labels = labels.copy()
    far = np.take_along_axis(to_center, labels[:, None], 1)[:, 0]
    for cluster in range(to_center.shape[1]):
        sizes = np.bincount(labels, minlength=to_center.shape[1])
        if sizes[cluster] == 0:
            labels[int(np.where(sizes[labels] > 1, far, -1.0).argmax())] = cluster
    return labels
