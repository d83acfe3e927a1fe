"""Fully connected networks: `logistic`, `mlp_small`, `mlp`, and PFLIC's `fcnn1` and `fcnn2`."""

from __future__ import annotations

from itertools import pairwise
from math import inf, prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Dense(nn.Module):
    def __init__(self, shape: tuple[int, ...], hidden: tuple[int, ...], classes: int) -> None:
        super().__init__()
        sizes = (prod(shape), *hidden, classes)
        for i, (fan_in, fan_out) in enumerate(pairwise(sizes), start=1):
            self.add_module(f"fc{i}", nn.Linear(fan_in, fan_out))

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1).float()
        *inner, last = self.children()
        for layer in inner:
            x = F.relu_(layer(x))
        return last(x)  # type: ignore[no-any-return]

    @torch.no_grad()
    def gradients(self, x: Tensor, y: Tensor) -> list[Tensor]:
        """Gradient of the mean cross entropy by the chain rule. In so small a network the bookkeeping of autograd costs
        more than the arithmetic."""
        layers: list[nn.Linear] = list(self.children())  # type: ignore[arg-type]
        inputs = [x.flatten(1).float()]
        for layer in layers[:-1]:
            inputs.append(F.relu_(layer(inputs[-1])))
        delta = F.softmax(layers[-1](inputs[-1]), 1)
        delta[torch.arange(len(y)), y] -= 1
        delta /= len(y)
        out: list[Tensor] = []
        for i in reversed(range(len(layers))):
            out += [delta.sum(0), delta.t() @ inputs[i]]
            if i:
                delta = (delta @ layers[i].weight).mul_(inputs[i] > 0)
        return out[::-1]


def logistic(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Dense(shape, (), classes)


def mlp_small(shape: tuple[int, ...], classes: int, *, width: float = 1.0) -> nn.Module:
    return Dense(shape, (scaled(16, width),), classes)


def mlp(shape: tuple[int, ...], classes: int, *, width: float = 1.0) -> nn.Module:
    return Dense(shape, (scaled(64, width),), classes)


def fcnn1(shape: tuple[int, ...], classes: int, *, width: float = 1.0) -> nn.Module:
    return Dense(shape, (scaled(200, width),), classes)


def fcnn2(shape: tuple[int, ...], classes: int, *, width: float = 1.0) -> nn.Module:
    return Dense(shape, (scaled(200, width), scaled(100, width)), classes)


def scaled(units: int, width: float) -> int:
    if not 0 < width < inf:
        raise ValueError(f"width={width} is a factor on the units of each layer: it must be above 0 and finite.")
    return max(1, round(units * width))
