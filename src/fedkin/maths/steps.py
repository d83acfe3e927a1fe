"""How much local training there was: the number of steps, and how they add up under momentum and a proximal term."""

from __future__ import annotations

from torch import Tensor


def local_steps(rows: int, batch_size: int, epochs: int) -> int:
    """Steps of so many epochs; the last, smaller batch of an epoch is a step too."""
    return epochs * -(-rows // batch_size)


def accumulation(steps: int, *, lr: float, momentum: float = 0.0, mu: float = 0.0) -> float:
    """The sum of a: local SGD moves by -lr * sum_k a_k g_k, where g_k is the loss gradient of step k.

    The update is linear in the gradients, so the sum is the way that gradients of 1 would go. Plain SGD: the number
    of steps. Momentum: sum_k (1 - momentum^k) / (1 - momentum). Proximal term: a <- (1 - lr mu) a + 1.
    """
    velocity = way = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1 - lr * mu * way
        way += velocity
    return way


def normalized_weights(shares: Tensor, ways: Tensor, effective: Tensor) -> Tensor:
    """What each client's change counts when all changes are brought to the length of `effective` steps."""
    return effective * shares.double() / ways.double()


def step_towards(model: Tensor, mean: Tensor, rate: float, parameters: int) -> Tensor:
    """model + rate * (mean - model) for the parameters; buffers (variances!) take the mean. Rate 1: `mean`, exactly."""
    out = mean.clone()
    out[:parameters] += (rate - 1) * (mean - model)[:parameters]
    return out
