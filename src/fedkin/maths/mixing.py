"""Means of rows, and who contributed to them."""

from __future__ import annotations

import torch
from torch import Tensor


def average(rows: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean of rows [C, d]; weights sum to 1."""
    return weights.to(rows.dtype) @ rows


def shares(size: int, ids: Tensor, weights: Tensor) -> Tensor:
    """Each client's share in a mean, over the whole federation; an id that was drawn twice counts twice."""
    return torch.zeros(size).index_add_(0, ids, weights.float())
