"""Weighted means of vectors, and each client's weight in them."""

from __future__ import annotations

import torch
from torch import Tensor


def average(vectors: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean of vectors [C, d]; weights sum to 1."""
    return weights.to(vectors.dtype) @ vectors


def shares(size: int, ids: Tensor, weights: Tensor) -> Tensor:
    """Each client's weight in a mean, for all clients of the federation; an id that occurs twice counts twice."""
    return torch.zeros(size).index_add_(0, ids, weights.float())
