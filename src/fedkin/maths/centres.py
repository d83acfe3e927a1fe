"""Centres of models and who belongs to which: the two steps of expectation maximisation."""

from __future__ import annotations

import torch
from torch import Tensor


def squared_to(rows: Tensor, centres: Tensor) -> Tensor:
    """Squared distances [rows, centres], summed in float64."""
    return torch.stack([(rows - centre).square().sum(1, dtype=torch.float64) for centre in centres], 1)


def means(rows: Tensor, labels: Tensor, weights: Tensor, old: Tensor) -> Tensor:
    """The weighted mean of each centre's rows; a centre without rows stays where it was."""
    out = old.clone()
    for k in labels.unique().tolist():
        inside = labels == k
        share = weights[inside].double() / weights[inside].double().sum()
        out[k] = share.to(rows.dtype) @ rows[inside]
    return out
