"""Means of vectors, and who contributed to them."""

from __future__ import annotations

import torch
from torch import Tensor


def average(vectors: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean of vectors [C, d]; weights sum to 1."""
    return weights.to(vectors.dtype) @ vectors


def shares(size: int, ids: Tensor, weights: Tensor) -> Tensor:
    """Each client's share in a mean, over all `size` clients; an id that was drawn twice counts twice."""
    return torch.zeros(size).index_add_(0, ids, weights.float())


def averaged(size: int, ids: Tensor, weights: Tensor, **parts: Tensor) -> dict[str, Tensor]:
    """The weighted mean of each named part and, as "share", each client's share in these means."""
    means = {name: average(vectors, weights) for name, vectors in parts.items()}
    return {**means, "share": shares(size, ids, weights)}


def same_for_all(share: Tensor) -> Tensor:
    """The mixing matrix [clients, clients] where every client receives the same mean."""
    return share.expand(len(share), -1)
