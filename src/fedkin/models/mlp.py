"""Fully connected networks: `logistic`, `mlp_small`, `mlp`, and PFLIC's `fcnn1` and `fcnn2`."""

from __future__ import annotations

from itertools import pairwise
from math import inf, prod
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MOST_PLANS = 64  # batch sizes that are kept in mind; the last batches of clients differ in size


class Dense(nn.Module):
    flattens_inputs = True

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

    def gradients(self, x: Tensor, y: Tensor) -> list[Tensor]:
        """Gradient of the mean cross entropy by the chain rule."""
        return self.gradient_function([torch.empty_like(parameter) for parameter in self.parameters()])(x, y)

    def gradient_function(self, out: list[Tensor]) -> GradientFunction:
        """`gradients` as a function that writes to `out` in every call."""
        return GradientFunction(list(self.children()), out)  # type: ignore[arg-type]


class GradientFunction:
    """Gradient of the mean cross entropy of a `Dense` network, written to `out`.

    In so small a network the bookkeeping of autograd, memory for the results of a step and new views of the same memory
    cost more than the arithmetic. All of them are made once for each batch size.
    """

    def __init__(self, layers: list[nn.Linear], out: list[Tensor], *, inputs: bool = False) -> None:
        """`inputs`: each call also writes the gradient by the inputs, to `input_slope`."""
        self.input_slope = out[0].new_empty(0)
        self._inputs = inputs
        self._weights = [layer.weight.detach() for layer in layers]
        self._biases = [layer.bias.detach() for layer in layers]
        self._out = out
        self._room = 0
        self._memory: list[tuple[Tensor, Tensor]] = []
        self._plans: dict[int, _Plan] = {}

    def __call__(self, x: Tensor, y: Tensor) -> list[Tensor]:
        examples = y.shape[0]
        plan = self._plans.get(examples) or self._plan(examples)
        x = x.flatten(1).float()
        activation = x
        for bias, weight, z in plan.hidden:
            activation = torch.relu_(torch.addmm(bias, activation, weight, out=z))
        bias, weight, z = plan.last
        torch.softmax(torch.addmm(bias, activation, weight, out=z), 1, out=plan.delta)
        plan.delta.scatter_add_(1, y.unsqueeze(1), plan.minus_one).div_(plan.divisor)
        for delta, delta_t, weight, activation, below, weight_slope, bias_slope in plan.backward:
            torch.sum(delta, 0, out=bias_slope)
            torch.mm(delta_t, activation, out=weight_slope)
            torch.mm(delta, weight, out=below)
            below.mul_(activation.sign_())  # the slope of ReLU: its output is not needed any more
        delta, delta_t, weight_slope, bias_slope = plan.first
        torch.sum(delta, 0, out=bias_slope)
        torch.mm(delta_t, x, out=weight_slope)
        if self._inputs:
            self.input_slope = torch.mm(delta, self._weights[0])
        return self._out

    def _plan(self, examples: int) -> _Plan:
        if examples > self._room or len(self._plans) == MOST_PLANS:
            self._plans.clear()
        if examples > self._room:
            self._room = examples
            self._memory = [(b.new_empty(examples, len(b)), b.new_empty(examples, len(b))) for b in self._biases]
        weights, out = self._weights, self._out
        outputs = [z[:examples] for z, _ in self._memory]
        deltas = [delta[:examples] for _, delta in self._memory]
        forward = [(b, w.t(), z) for b, w, z in zip(self._biases, weights, outputs)]
        slopes = list(zip(out[::2], out[1::2]))
        backward = [
            (deltas[i], deltas[i].t(), weights[i], outputs[i - 1], deltas[i - 1], *slopes[i])
            for i in reversed(range(1, len(weights)))
        ]
        made = self._plans[examples] = _Plan(
            forward[:-1],
            forward[-1],
            deltas[-1],
            deltas[-1].new_full((examples, 1), -1.0),
            deltas[-1].new_full((), float(examples)),
            backward,
            (deltas[0], deltas[0].t(), *slopes[0]),
        )
        return made


class _Plan(NamedTuple):
    """What the steps with one batch size read and write."""

    hidden: list[tuple[Tensor, Tensor, Tensor]]
    last: tuple[Tensor, Tensor, Tensor]
    delta: Tensor
    """Gradient by the outputs of the last layer."""
    minus_one: Tensor
    divisor: Tensor
    """The number of examples, as a tensor: dividing by it takes half as long."""
    backward: list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]]
    first: tuple[Tensor, Tensor, Tensor, Tensor]


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
