"""Class means of features."""

from __future__ import annotations

import torch
from torch import Tensor


def class_means(z: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Mean feature of each class [classes, dimensions], zero for a class without examples; and the class counts."""
    counts = torch.bincount(y, minlength=classes).to(z.dtype)
    sums = torch.zeros(classes, z.shape[1], dtype=z.dtype).index_add_(0, y, z)
    return sums / counts.clamp(min=1)[:, None], counts
