"""The two steps of clustering around centers: distances to centers, and means of members."""

from __future__ import annotations

import torch
from torch import Tensor


def squared_to(vectors: Tensor, centers: Tensor) -> Tensor:
    """Squared distances [vectors, centers], summed in float64."""
    return torch.stack([(vectors - center).square().sum(1, dtype=torch.float64) for center in centers], 1)


def means(vectors: Tensor, labels: Tensor, weights: Tensor, old: Tensor) -> Tensor:
    """The weighted mean of each center's vectors; a center without vectors keeps its `old` value."""
    out = old.clone()
    for k in labels.unique().tolist():
        inside = labels == k
        share = weights[inside].double() / weights[inside].double().sum()
        out[k] = share.to(vectors.dtype) @ vectors[inside]
    return out
