"""The optimizers of local training, with the arithmetic of `torch.optim`, on lists of tensors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedkin.protocol import Training

Step = Callable[[list[Tensor], list[Tensor]], None]
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # torch.optim's defaults


def optimizer(training: Training, lr: float | None = None) -> Step:
    """Return `step(values, gradient)`, which moves values in place by one step of the run's optimizer.

    Momentum and moments are kept in the function, so they start at zero with each new one. `lr` replaces the rate of
    `training`. The gradient itself is not written to: autograd may give two parameters the same gradient tensor.
    """
    rate = training.lr if lr is None else lr
    moves = _sgd(training, rate) if training.optimizer == "sgd" else _adam(training, rate)
    if not training.clip:
        return moves

    def step(values: list[Tensor], gradient: list[Tensor]) -> None:
        moves(values, clipped(gradient, training.clip))

    return step


def clipped(gradient: list[Tensor], most: float) -> list[Tensor]:
    """The gradient, scaled down if its L2 norm is above `most`: the arithmetic of `clip_grad_norm_`."""
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradient)))
    return list(torch._foreach_mul(gradient, torch.clamp(most / (norm + 1e-6), max=1.0)))


def _sgd(training: Training, rate: float) -> Step:
    momentum, decay = training.momentum, training.weight_decay
    velocity: list[Tensor] = []

    def step(values: list[Tensor], gradient: list[Tensor]) -> None:
        if decay:
            gradient = list(torch._foreach_add(gradient, values, alpha=decay))
        if momentum:
            if not velocity:
                velocity.extend(torch.zeros_like(value) for value in values)
            torch._foreach_mul_(velocity, momentum)
            torch._foreach_add_(velocity, gradient)
            gradient = velocity
        torch._foreach_add_(values, gradient, alpha=-rate)

    return step


def _adam(training: Training, rate: float) -> Step:
    """Adam, and AdamW, which shrinks the parameters instead of adding the L2 penalty to the gradient."""
    decay, apart = training.weight_decay, training.optimizer == "adamw"
    mean: list[Tensor] = []
    square: list[Tensor] = []
    count = 0

    def step(values: list[Tensor], gradient: list[Tensor]) -> None:
        nonlocal count
        if not mean:
            mean.extend(torch.zeros_like(value) for value in values)
            square.extend(torch.zeros_like(value) for value in values)
        count += 1
        if decay and apart:
            torch._foreach_mul_(values, 1 - rate * decay)
        elif decay:
            gradient = list(torch._foreach_add(gradient, values, alpha=decay))
        torch._foreach_lerp_(mean, gradient, 1 - BETA1)
        torch._foreach_mul_(square, BETA2)
        torch._foreach_addcmul_(square, gradient, gradient, value=1 - BETA2)
        below = torch._foreach_sqrt(square)
        torch._foreach_div_(below, (1 - BETA2**count) ** 0.5)
        torch._foreach_add_(below, EPSILON)
        torch._foreach_addcdiv_(values, mean, below, value=-rate / (1 - BETA1**count))

    return step
