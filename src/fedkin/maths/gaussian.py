"""Classes as Gaussians with one covariance, and the linear classifier that follows from them (pFedFDA)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedkin.maths.prototypes import class_means

EPSILON = 1e-4


class Gaussian(NamedTuple):
    """Class means [classes, D] and their common covariance [D, D], in double precision."""

    means: Tensor
    covariance: Tensor

    def mixed(self, other: Gaussian, beta: Tensor) -> Gaussian:
        """β[0] of these means and β[-1] of this covariance, the rest of the other's."""
        return Gaussian(
            beta[0] * self.means + (1 - beta[0]) * other.means,
            beta[-1] * self.covariance + (1 - beta[-1]) * other.covariance,
        )

    def classifier(self, prior: Tensor) -> tuple[Tensor, Tensor]:
        """Weight Σ⁻¹μ_c and bias −½ μ_cᵀΣ⁻¹μ_c + log π_c, the covariance shrunk by EPSILON toward a multiple of I."""
        size = len(self.covariance)
        scale = self.covariance.diagonal().mean()
        shrunk = (1 - EPSILON) * self.covariance + EPSILON * scale * torch.eye(size, dtype=self.covariance.dtype)
        weight = torch.linalg.solve(shrunk, self.means.t()).t()
        return weight, prior.log() - (weight * self.means).sum(1) / 2


def fitted(z: Tensor, y: Tensor, fallback: Gaussian, least: int, ridge: float) -> Gaussian:
    """Class means and pooled covariance of features, the ridge added to its diagonal. A class with fewer than `least`
    examples takes the mean of `fallback`."""
    means, counts = class_means(z, y, len(fallback.means))
    means = torch.where((counts >= least)[:, None], means, fallback.means)
    centered = z - means[y]
    covariance = centered.t() @ centered / max(1, len(y) - 1)
    return Gaussian(means, covariance + ridge * torch.eye(z.shape[1], dtype=z.dtype))


def stratified(y: Tensor, folds: int, generator: torch.Generator) -> Tensor:
    """A fold for each label, every class spread evenly; -1 for a class with fewer examples than folds."""
    order = torch.randperm(len(y), generator=generator)
    fold = torch.full_like(y, -1)
    for c in y.unique():
        inside = order[y[order] == c]
        if len(inside) >= folds:
            fold[inside] = torch.arange(len(inside)) % folds
    return fold
