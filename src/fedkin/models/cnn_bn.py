"""`cnn_bn`: `cnn3` with batch norm after each convolution, for methods that treat batch norm separately."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedkin.models.mlp import scaled


class NormalizedCNN(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int, width: float) -> None:
        super().__init__()
        if len(shape) != 3 or min(shape[1:]) < 8:
            raise ValueError(
                f"cnn_bn needs images [channels, height, width] of at least 8x8; this data has shape {list(shape)}. "
                "Use --model mlp."
            )
        channels = shape[0]
        for i, units in enumerate((32, 64, 64), start=1):
            # the norm that follows has a bias of its own
            self.add_module(f"conv{i}", nn.Conv2d(channels, scaled(units, width), 3, padding=1, bias=False))
            channels = scaled(units, width)
            self.add_module(f"norm{i}", nn.BatchNorm2d(channels))
        self.fc1 = nn.Linear(channels * (shape[1] // 8) * (shape[2] // 8), scaled(128, width))
        self.fc2 = nn.Linear(scaled(128, width), classes)

    def forward(self, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        for i in (1, 2, 3):
            x = F.relu_(F.max_pool2d(self.get_submodule(f"norm{i}")(self.get_submodule(f"conv{i}")(x)), 2))
        return self.fc2(F.relu_(self.fc1(x.flatten(1))))  # type: ignore[no-any-return]


def cnn_bn(shape: tuple[int, ...], classes: int, *, width: float = 1.0) -> nn.Module:
    return NormalizedCNN(shape, classes, width)
