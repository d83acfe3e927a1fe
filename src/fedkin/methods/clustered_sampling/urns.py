"""Urns of clustered sampling: a matrix [urns, clients] of probabilities. One client is drawn from each urn, and the
expected share of every client in the mean is its weight: rows sum to 1, columns to (number of urns) · weight."""

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
ENOUGH = 1e-12  # an urn with less room than this is full


def by_size(weights: Floats, urns: int) -> Floats:
    """Algorithm 1: clients fill one urn after the other, in order of decreasing weight."""
    return _poured(np.zeros((urns, len(weights))), urns * weights, np.argsort(-weights, kind="stable"))


def by_similarity(weights: Floats, urns: int, apart: Floats) -> Floats:
    """Algorithm 2: urns of similar clients, from Ward's tree of their distances.

    A client whose weight fills whole urns gets these first; otherwise its expected share would be too small.
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
    """The coarsest cut of the tree with at least `free` groups, none of them more than an urn; heaviest group first."""
    if len(left) == 1:
        return [np.array([0])]
    # in condensed form: scipy takes a square matrix for observations
    cuts = cut_tree(linkage(squareform(apart, checks=False), "ward"))
    for count in range(min(free, len(left)), len(left) + 1):
        label = cuts[:, len(left) - count]
        total = np.bincount(label, left)
        if total.max() <= 1 + ENOUGH or count == len(left):
            return [np.flatnonzero(label == k) for k in np.argsort(-total, kind="stable")]
    raise AssertionError("single clients weigh less than an urn")


def _poured(urns: Floats, amounts: Floats, order: NDArray[np.intp]) -> Floats:
    """The amounts of the clients in `order`, poured into the free room, urn after urn."""
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
    out: Floats = urns / urns.sum(1, keepdims=True)  # correct for rounding
    return out


def distances(updates: Tensor, how: Distance) -> Floats:
    """Distances between all pairs of float32 updates; an update of zero is at a right angle to all others."""
    if how == "L1":
        return np.stack([(updates - one).abs().sum(1, dtype=torch.float64).numpy() for one in updates])
    products = gram(updates)
    out: Floats = np.arccos(cosine(products)) if how == "arccos" else np.sqrt(squared_distances(products))
    return out
