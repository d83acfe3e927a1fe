"""Means within clusters, and who of a cluster is chosen (PFLIC)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedkin.maths.mixing import average


def portions(n: Tensor) -> Tensor:
    """Shares of a whole, in single precision."""
    return (n.double() / n.sum()).float()


def cluster_means(models: Tensor, rows: Tensor, labels: Tensor, n: Tensor) -> Tensor:
    """Models [k, d], each now the mean of its members' rows [C, d], weighted by n; without members: as it was."""
    out = models.clone()
    for cluster in labels.unique().tolist():
        members = labels == cluster
        out[cluster] = average(rows[members], portions(n[members]))
    return out


def chosen(utilities: Tensor, turns: Tensor, members: Tensor, share: float, threshold: int) -> Tensor:
    """Of a cluster's members the `share` with the largest utilities (at least one; equal ones: the lowest id), among
    those that had fewer than `threshold` turns. Where nobody is below it, all may be chosen again."""
    count = max(1, math.floor(share * len(members) + 0.5))
    waiting = members[turns[members] < threshold]
    pool = waiting if len(waiting) else members
    order = torch.argsort(utilities[pool], descending=True, stable=True)
    return pool[order[:count]].sort().values


def turns_after(turns: Tensor, labels: Tensor, asked: Tensor, threshold: int) -> Tensor:
    """Everybody's turns after `asked` had one more. In a cluster where somebody at the threshold was asked, nobody was
    below it: its counters start again."""
    out = turns.clone()
    for cluster in labels[asked[turns[asked] >= threshold]].unique().tolist():
        out[labels == cluster] = 0
    out[asked] += 1
    return out
