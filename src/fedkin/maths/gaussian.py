"""Mean-field Gaussians by mean and rho, where the standard deviation is softplus(rho)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def kl(mean: Tensor, rho: Tensor, other_mean: Tensor, other_rho: Tensor) -> Tensor:
    """KL(N(mean, σ²) ‖ N(other_mean, σ'²)), summed."""
    s, t = F.softplus(rho), F.softplus(other_rho)
    return (t.log() - s.log() + (s**2 + (mean - other_mean) ** 2) / (2 * t**2) - 0.5).sum()


def kl_gradient(mean: Tensor, rho: Tensor, other_mean: Tensor, other_rho: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient of `kl` with respect to mean and rho; exactly zero where the two are the same."""
    s, t = F.softplus(rho), F.softplus(other_rho)
    return (mean - other_mean) / t**2, (s**2 - t**2) / (s * t**2) * torch.sigmoid(rho)


def kl_gradient_other(mean: Tensor, rho: Tensor, other_mean: Tensor, other_rho: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient of `kl` with respect to other_mean and other_rho; exactly zero where the two are the same."""
    s, t = F.softplus(rho), F.softplus(other_rho)
    spread = (t**2 - s**2) - (mean - other_mean) ** 2
    return (other_mean - mean) / t**2, spread / t**3 * torch.sigmoid(other_rho)
