"""Weighted graphs between models: similarities, edge weights, propagation, and recovery of known edges."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedkin.maths.kmeans import ROUNDING

Floats = NDArray[np.float64]


def centered(products: Floats) -> Floats:
    """Inner products of vectors minus their mean, from the inner products of the vectors. A vector no farther from the
    mean than float32 rounding counts as equal to it."""
    out: Floats = products - products.mean(0) - products.mean(1, keepdims=True) + products.mean()
    here = np.diag(out) <= ROUNDING * np.diag(products).max()
    out[here] = 0
    out[:, here] = 0
    return out


def cosine(products: Floats) -> Floats:
    """Cosine similarity of all pairs, from inner products. A zero vector has similarity 1 to itself and 0 to others."""
    length = np.sqrt(np.maximum(np.diag(products), 0))
    length[length == 0] = 1
    out = np.clip(products / length / length[:, None], -1, 1)
    np.fill_diagonal(out, 1)
    return out


def normalized(similarity: Floats, how: Literal["sum", "softmax"], temperature: float = 1.0) -> Floats:
    """Edge weights whose rows sum to 1. sum: negative similarities count as 0, and each row is divided by its sum; a
    row of zeros gets only its self edge. softmax: of similarity / temperature."""
    if how == "softmax":
        weight = np.exp((similarity - similarity.max(1, keepdims=True)) / temperature)
    else:
        weight = np.maximum(similarity, 0)
        alone = weight.sum(1) == 0
        weight[alone] = np.eye(len(weight))[alone]
    out: Floats = weight / weight.sum(1, keepdims=True)
    return out


def propagation(graph: Floats, times: int) -> Floats:
    """How much each node received from each other node after `times` steps along the edges; the identity for 0."""
    return np.linalg.matrix_power(graph, times)


def evenness(graph: Floats) -> float:
    """Mean entropy of the rows, relative to its maximum. 0: each node has one edge; 1: all edges are equal."""
    if len(graph) < 2:
        return 0.0
    logarithm = np.log(np.where(graph > 0, graph, 1))
    return float(np.abs((graph * logarithm).sum(1).mean()) / np.log(len(graph)))


def edge_auc(weights: ArrayLike, edges: ArrayLike, nodes: ArrayLike | None = None) -> float | None:
    """Probability that a true edge has a larger weight than a pair without an edge (ties count half).

    `weights` [K, K] are between centers, `edges` between true nodes. `nodes` is the true node of each center (default:
    center k is node k). Pairs of centers of the same node are left out. None if there are no edges or only edges.
    """
    weight, truth = np.asarray(weights, float), np.asarray(edges, bool)
    node = np.arange(len(weight)) if nodes is None else np.asarray(nodes)
    between = node[:, None] != node
    joined = truth[node[:, None], node]
    with_edge, without = weight[between & joined], weight[between & ~joined]
    if not len(with_edge) or not len(without):
        return None
    difference = with_edge[:, None] - without
    return float(((difference > 0) + (difference == 0) / 2).mean())


def majority(labels: ArrayLike, truth: ArrayLike) -> NDArray[np.int64]:
    """The true node of most members of each cluster; label -1 means no cluster."""
    found, true = np.asarray(labels), np.asarray(truth)
    return np.array([np.bincount(true[found == k]).argmax() for k in range(int(found.max()) + 1)], dtype=np.int64)
