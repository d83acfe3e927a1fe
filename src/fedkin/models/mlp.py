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
    def gradients(self, x: Tensor, y: Tensor, out: list[Tensor] | None = None) -> list[Tensor]:
        """Gradient of the mean cross entropy by the chain rule, written to `out` if given. In such a small network,
        autograd's bookkeeping and the memory for a gradient in every step cost more than the arithmetic."""
        layers: list[nn.Linear] = list(self.children())  # type: ignore[arg-type]
        out = [torch.empty_like(parameter) for parameter in self.parameters()] if out is None else out
        inputs = [x.flatten(1).float()]
        for layer in layers[:-1]:
            inputs.append(F.relu_(F.linear(inputs[-1], layer.weight, layer.bias)))
        delta = F.softmax(F.linear(inputs[-1], layers[-1].weight, layers[-1].bias), 1)
        delta.scatter_add_(1, y[:, None], delta.new_full((len(y), 1), -1.0)).div_(len(y))
        for i in reversed(range(len(layers))):
            torch.mm(delta.t(), inputs[i], out=out[2 * i])
            torch.sum(delta, 0, out=out[2 * i + 1])
            if i:
                delta = (delta @ layers[i].weight).mul_(inputs[i] > 0)
        return out


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
        raise ValueError(f"width={width} multiplies the units of each layer: it must be above 0 and finite.")
    return max(1, round(units * width))
