"""How unlike models are (DC-PFL, eq. 3 and 5), and the tree of groups that follows from it (sec. II-C, III-B)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from torch import Tensor

Scale = Literal["common", "model", "layer"]
BLOCK = 2048  # columns at a time: 100 clients' block stays in the cache


def pairwise_discrepancy(rows: Tensor, scale: Scale = "common", layers: Sequence[Tensor] = ()) -> Tensor:
    """D [n, n] of models [n, d]: eq. (3), ‖S(w_i) − S(w_j)‖₁ / d, where S maps linearly to [0, 1].

    `scale` says whose smallest and largest value S takes: "common" those of all models together, "model" each model's
    own (as printed), "layer" those of all models together in each layer (`layers`: the columns of each), and D is then
    the mean over layers. Never makes more than one block of columns at a time.
    """
    if scale == "layer":
        parts = [pairwise_discrepancy(_columns(rows, at)) for at in layers]
        return torch.stack(parts).mean(0)
    low, high = _bounds(rows) if scale == "model" else _extremes(rows)
    span = (high - low).double()
    if scale == "common":  # S is the same map for all: it can wait until after the sum
        total = _manhattan(rows, None, None)
        factor = 1 / float(span) if float(span) > 0 else 0.0
    else:
        total = _manhattan(rows, low[:, None], torch.where(span > 0, span, 1.0).float()[:, None])
        factor = 1.0
    return total * (factor / rows.shape[1])


def layer_discrepancy(rows: Tensor, center: Tensor, layers: Sequence[Tensor], scale: Scale = "common") -> Tensor:
    """D_{g,l} [layers] of a group's models [m, d] and their mean [d]: eq. (5).

    S works inside a layer: with the smallest and largest value of all members there, or ("model", as printed) with
    each model's own.
    """
    out = []
    for at in layers:
        own, middle = _columns(rows, at), _columns(center[None], at)
        if scale == "model":
            own, middle = _unit(own), _unit(middle)
            span = 1.0
        else:
            low, high = _extremes(own)
            span = float(high - low)
        distance = sum(float((row - middle[0]).abs_().sum(dtype=torch.double)) for row in own)
        out.append(distance / (len(own) * own.shape[1] * span) if span > 0 else 0.0)
    return torch.tensor(out, dtype=torch.double)


def filled(total: Tensor, count: Tensor) -> Tensor:
    """Mean discrepancy of pairs from sums and counts. A pair never seen together gets what is usual for its two
    members: the mean of their own means."""
    known = (count > 0) & ~torch.eye(len(count), dtype=torch.bool)
    mean = torch.where(known, total / count.clamp(min=1), 0.0)
    overall = mean.sum() / known.sum().clamp(min=1)
    usual = torch.where(known.any(1), mean.sum(1) / known.sum(1).clamp(min=1), overall)
    out = torch.where(known, mean, (usual[:, None] + usual[None]) / 2)
    return out.fill_diagonal_(0.0)


def group_tree(distance: Tensor) -> Tensor:
    """Average-linkage merges [n-1, 4] in scipy's form; γ_global is the height of the last one."""
    if len(distance) < 2:
        return torch.empty(0, 4, dtype=torch.double)
    square = distance.double().numpy()
    return torch.from_numpy(linkage(squareform((square + square.T) / 2, checks=False), "average"))


def cut(tree: Tensor, gamma: float) -> Tensor:
    """Group of each leaf at the normalized threshold: 1 one group, 0 everybody alone, nested in between. Groups are
    numbered by their first leaf."""
    leaves = len(tree) + 1
    if gamma <= 0:
        return torch.arange(leaves)
    if leaves == 1 or gamma >= 1:
        return torch.zeros(leaves, dtype=torch.long)
    merges: NDArray[np.float64] = tree.numpy()
    return first_seen(torch.from_numpy(fcluster(merges, gamma * merges[-1, 2], "distance").astype(np.int64)))


def labels_at(tree: Tensor, leaves: Tensor, leader: Tensor, gamma: float) -> Tensor:
    """Group of every client at γ̃: leaf k of the tree is client `leaves[k]`, and client i goes where `leader[i]` does (a
    leaf leads itself); -1 without a leader. At γ̃ = 1 all are together, at 0 all are alone, leader or not."""
    if gamma >= 1:
        return torch.zeros_like(leader)
    group = torch.full_like(leader, -1)
    group[leaves] = cut(tree, gamma)
    placed = leader >= 0
    labels = group[leader.clamp(min=0)] if gamma > 0 else torch.arange(len(leader))
    out = torch.full_like(leader, -1)
    out[placed] = first_seen(labels[placed])
    return out


def first_seen(labels: Tensor) -> Tensor:
    """The same groups, numbered 0, 1, … in order of first appearance."""
    _, first, inverse = np.unique(labels.numpy(), return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return torch.from_numpy(rank[inverse.reshape(-1)])


def _manhattan(rows: Tensor, low: Tensor | None, span: Tensor | None) -> Tensor:
    """L1 distance of every pair [n, n], in double, of (rows − low) / span."""
    n = len(rows)
    upper = torch.zeros(n * (n - 1) // 2, dtype=torch.double)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a block is too little to share: on a busy machine two threads were 4 to 16 times slower
    try:
        for block in rows.split(BLOCK, dim=1):
            scaled = block.contiguous() if low is None or span is None else (block - low) / span
            upper += torch.pdist(scaled, p=1).double()
    finally:
        torch.set_num_threads(threads)
    out = torch.zeros(n, n, dtype=torch.double)
    i, j = torch.triu_indices(n, n, 1)
    out[i, j] = upper
    return out + out.T


def _extremes(rows: Tensor) -> tuple[Tensor, Tensor]:
    return rows.min(), rows.max()


def _bounds(rows: Tensor) -> tuple[Tensor, Tensor]:
    return rows.amin(1), rows.amax(1)


def _unit(rows: Tensor) -> Tensor:
    low, high = _bounds(rows)
    span = high - low
    return (rows - low[:, None]) / torch.where(span > 0, span, 1.0)[:, None]


def _columns(rows: Tensor, at: Tensor) -> Tensor:
    """These columns, as a view where they are neighbors (as a layer's mostly are)."""
    if len(at) and int(at[-1] - at[0]) == len(at) - 1 and bool((at.diff() == 1).all()):
        return rows[:, int(at[0]) : int(at[-1]) + 1]
    return rows[:, at]
