"""The two steps of clustering around centers: distances to centers, and means of members."""

from __future__ import annotations

import torch
from torch import Tensor

from fedkin.maths.table import Table, weighted_sum


def squared_to(vectors: Tensor, centers: Tensor) -> Tensor:
    """Squared distances [vectors, centers], summed in float64."""
    return torch.stack([(vectors - center).square().sum(1, dtype=torch.float64) for center in centers], 1)


def means(vectors: Table, labels: Tensor, weights: Tensor, old: Tensor, ids: Tensor | None = None) -> Tensor:
    """The weighted mean of each center's vectors, all or those in `ids`; a center without any keeps its `old` value."""
    ids = torch.arange(len(vectors)) if ids is None else ids
    out = old.clone()
    for k in labels.unique().tolist():
        inside = labels == k
        share = weights[inside].double() / weights[inside].double().sum()
        out[k] = weighted_sum(vectors, ids[inside], share.float())
    return out
