"""FedAGHN's rows of aggregation weights, differentiable in their two scalars."""

from __future__ import annotations

import torch
from torch import Tensor


def row(cosines: Tensor, own: int, p: Tensor, q: Tensor) -> Tensor:
    """Weights of one client over those there: softmax of q·cosine over the others, p (not below 0) for itself, divided
    by their sum. Alone it keeps to itself."""
    if len(cosines) == 1:
        return torch.ones(1)
    others = torch.arange(len(cosines)) != own
    attention = torch.zeros(len(cosines)).masked_scatter(others, torch.softmax(q * cosines[others], 0))
    weights = attention + p.clamp(min=0) * (~others).float()
    return weights / weights.sum()


def slopes(cosines: Tensor, own: int, p: Tensor, q: Tensor, pulled: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of p and q, where `pulled` is the gradient of the row's weights."""
    p, q = p.clone().requires_grad_(), q.clone().requires_grad_()
    if len(cosines) == 1:
        return torch.zeros(()), torch.zeros(())
    down = torch.autograd.grad(row(cosines, own, p, q) @ pulled, (p, q))
    return down[0], down[1]
