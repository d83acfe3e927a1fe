"""Nearest neighbors by brute force: exact, and ties go to the lower row number."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def neighbor_probabilities(
    features: Tensor, stored: Tensor, labels: Tensor, *, k: int, classes: int, scale: float, squared: bool
) -> Tensor:
    """Class probabilities [rows, classes] from the k nearest stored rows, weighted by exp(−distance / scale).

    `squared`: exp(−distance² / (dimensions · scale)). Fewer than k stored rows: all of them.
    """
    # not by a Gram matrix, which loses small distances
    distance = torch.cdist(features.double(), stored.double(), compute_mode="donot_use_mm_for_euclid_dist")
    distance = distance**2 / stored.shape[1] if squared else distance
    nearest = distance.sort(dim=1, stable=True).indices[:, : min(k, len(stored))]
    # softmax: the weights' common factor cancels, and far neighbors do not underflow to 0 / 0
    weights = F.softmax(-distance.gather(1, nearest) / scale, dim=1)
    out = torch.zeros(len(features), classes, dtype=torch.double)
    return out.scatter_add_(1, labels[nearest], weights).float()
