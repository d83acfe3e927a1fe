"""Means within clusters, and the selection of clients from a cluster (PFLIC)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedkin.maths.mixing import average


def portions(n: Tensor) -> Tensor:
    """Each number's fraction of the sum, in single precision."""
    return (n.double() / n.sum()).float()


def cluster_means(models: Tensor, trained: Tensor, labels: Tensor, n: Tensor) -> Tensor:
    """Models [k, d], each replaced by the mean of its members' vectors [C, d], weighted by n, if it has members."""
    out = models.clone()
    for cluster in labels.unique().tolist():
        members = labels == cluster
        out[cluster] = average(trained[members], portions(n[members]))
    return out


def chosen(utilities: Tensor, turns: Tensor, members: Tensor, share: float, threshold: int) -> Tensor:
    """The fraction `share` of a cluster's members with the largest utilities; at least one, ties go to the lower id.
    Only members with fewer than `threshold` turns count, unless all have reached it."""
    count = max(1, math.floor(share * len(members) + 0.5))
    waiting = members[turns[members] < threshold]
    pool = waiting if len(waiting) else members
    order = torch.argsort(utilities[pool], descending=True, stable=True)
    return pool[order[:count]].sort().values


def turns_after(turns: Tensor, labels: Tensor, asked: Tensor, threshold: int) -> Tensor:
    """All clients' turns after `asked` had one more. If a client at the threshold was asked, its whole cluster had
    reached the threshold, so the cluster's counters start again."""
    out = turns.clone()
    for cluster in labels[asked[turns[asked] >= threshold]].unique().tolist():
        out[labels == cluster] = 0
    out[asked] += 1
    return out
