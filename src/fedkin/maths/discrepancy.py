"""How different the distributions of two samples are."""

from __future__ import annotations

import torch
from torch import Tensor

WIDTHS = (10, 15, 20, 50)  # of the kernels exp(−‖·‖² / (2 width)), from FedCP's authors


def discrepancy(x: Tensor, y: Tensor) -> Tensor:
    """Maximum mean discrepancy (squared, biased estimate) of two batches, summed over the kernels."""
    pairs = [(x, x, 1), (y, y, 1), (x, y, -2)]
    apart = [(a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.t(), sign) for a, b, sign in pairs]
    terms = [sign * torch.exp(-d / (2 * width)).mean() for d, sign in apart for width in WIDTHS]
    return torch.stack(terms).sum()
