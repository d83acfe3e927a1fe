"""The amount of local training: the number of steps, and how they add up with momentum and a proximal term."""

from __future__ import annotations

from torch import Tensor


def local_steps(examples: int, batch_size: int, epochs: int) -> int:
    """Number of steps in `epochs` epochs; the last, smaller batch of an epoch counts."""
    return epochs * -(-examples // batch_size)


def accumulation(steps: int, *, lr: float, momentum: float = 0.0, mu: float = 0.0) -> float:
    """The sum of a in the local update -lr * sum_k a_k g_k, where g_k is the loss gradient of step k.

    The update is linear in the gradients, so the sum is the update for gradients of 1. Plain SGD: the number of
    steps. Momentum: sum_k (1 - momentum^k) / (1 - momentum). Proximal term: a <- (1 - lr mu) a + 1.
    """
    velocity = way = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1 - lr * mu * way
        way += velocity
    return way


def normalized_weights(shares: Tensor, ways: Tensor, effective: Tensor) -> Tensor:
    """Weight of each client's change when all changes are scaled to `effective` steps."""
    return effective * shares.double() / ways.double()


def step_toward(model: Tensor, mean: Tensor, rate: float, parameters: int) -> Tensor:
    """model + rate * (mean - model) for the parameters; buffers take the mean, because a variance must not turn
    negative. With rate 1 exactly `mean`."""
    out = mean.clone()
    out[:parameters] += (rate - 1) * (mean - model)[:parameters]
    return out
