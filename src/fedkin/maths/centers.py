"""Centers of models and who belongs to which: the two steps of expectation maximization."""

from __future__ import annotations

import torch
from torch import Tensor


def squared_to(rows: Tensor, centers: Tensor) -> Tensor:
    """Squared distances [rows, centers], summed in float64."""
    return torch.stack([(rows - center).square().sum(1, dtype=torch.float64) for center in centers], 1)


def means(rows: Tensor, labels: Tensor, weights: Tensor, old: Tensor) -> Tensor:
    """The weighted mean of each center's rows; a center without rows stays where it was."""
    out = old.clone()
    for k in labels.unique().tolist():
        inside = labels == k
        share = weights[inside].double() / weights[inside].double().sum()
        out[k] = share.to(rows.dtype) @ rows[inside]
    return out
