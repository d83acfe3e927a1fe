"""Nearest neighbors by brute force: exact, and ties go to the lower index."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def neighbor_probabilities(
    features: Tensor, stored: Tensor, labels: Tensor, *, k: int, classes: int, scale: float, squared: bool
) -> Tensor:
    """Class probabilities [examples, classes] from the k nearest stored examples, weighted by exp(−distance / scale).

    `squared`: exp(−distance² / (dimensions · scale)). With fewer than k stored examples all of them count.
    """
    # a Gram matrix would lose small distances
    distance = torch.cdist(features.double(), stored.double(), compute_mode="donot_use_mm_for_euclid_dist")
    distance = distance**2 / stored.shape[1] if squared else distance
    nearest = distance.sort(dim=1, stable=True).indices[:, : min(k, len(stored))]
    # softmax cancels the common factor, so that far neighbors do not underflow to 0 / 0
    weights = F.softmax(-distance.gather(1, nearest) / scale, dim=1)
    out = torch.zeros(len(features), classes, dtype=torch.double)
    return out.scatter_add_(1, labels[nearest], weights).float()
