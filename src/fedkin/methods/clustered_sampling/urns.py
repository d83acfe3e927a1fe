"""Clustered sampling: urns [urns, clients] to draw one client from each, so that every client's expected share in the
mean of those drawn is its weight. Rows sum to 1, columns to (number of urns) · weight."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import squareform
from torch import Tensor

from fedkin.maths.graph import cosine
from fedkin.maths.kmeans import gram, squared_distances

Floats = NDArray[np.float64]
Distance = Literal["arccos", "L1", "L2"]
ENOUGH = 1e-12  # less room than this in an urn is none


def by_size(weights: Floats, urns: int) -> Floats:
    """Algorithm 1: clients in order of decreasing weight poured into one urn after the other."""
    return _poured(np.zeros((urns, len(weights))), urns * weights, np.argsort(-weights, kind="stable"))


def by_similarity(weights: Floats, urns: int, apart: Floats) -> Floats:
    """Algorithm 2: urns of clients that are alike, from Ward's tree of their distances.

    A client whose weight fills urns by itself gets those first; without that its expected share would be too small.
    """
    left = urns * weights
    whole = np.floor(left + ENOUGH).astype(int)
    left = np.maximum(left - whole, 0)
    left[left < ENOUGH] = 0
    out = np.zeros((urns, len(weights)))
    out[np.arange(whole.sum()), np.repeat(np.arange(len(weights)), whole)] = 1
    free, some = urns - int(whole.sum()), np.flatnonzero(left)
    if not free:
        return out
    part = np.zeros((free, len(weights)))
    groups = _groups(left[some], free, apart[np.ix_(some, some)])
    for urn, group in enumerate(groups[:free]):
        part[urn, some[group]] = left[some[group]]
    rest = np.concatenate([some[group] for group in groups[free:]] or [np.array([], int)])
    spread = np.zeros(len(weights))
    spread[rest] = left[rest]
    out[urns - free :] = _poured(part, spread, rest)
    return out


def _groups(left: Floats, free: int, apart: Floats) -> list[NDArray[np.int64]]:
    """The coarsest cut of the tree in which no group is more than an urn, at least `free` groups, heaviest first."""
    if len(left) == 1:
        return [np.array([0])]
    # the condensed form: scipy takes a square matrix for observations
    cuts = cut_tree(linkage(squareform(apart, checks=False), "ward"))
    for count in range(min(free, len(left)), len(left) + 1):
        label = cuts[:, len(left) - count]
        total = np.bincount(label, left)
        if total.max() <= 1 + ENOUGH or count == len(left):
            return [np.flatnonzero(label == k) for k in np.argsort(-total, kind="stable")]
    raise AssertionError("single clients weigh less than an urn")


def _poured(urns: Floats, amounts: Floats, order: NDArray[np.intp]) -> Floats:
    """The amounts of the clients in `order`, filled into what room there is, urn after urn."""
    room = 1 - urns.sum(1)
    urn = 0
    for client in order:
        left = float(amounts[client])
        while left > 0 and urn < len(urns):
            taken = min(room[urn], left)
            urns[urn, client] += max(taken, 0)
            room[urn] -= taken
            left -= taken
            if room[urn] <= ENOUGH:
                urn += 1
    out: Floats = urns / urns.sum(1, keepdims=True)  # of rounding
    return out


def distances(rows: Tensor, how: Distance) -> Floats:
    """Between all pairs of float32 rows; the angle to a row of zeros is a right one."""
    if how == "L1":
        return np.stack([(rows - row).abs().sum(1, dtype=torch.float64).numpy() for row in rows])
    products = gram(rows)
    out: Floats = np.arccos(cosine(products)) if how == "arccos" else np.sqrt(squared_distances(products))
    return out
