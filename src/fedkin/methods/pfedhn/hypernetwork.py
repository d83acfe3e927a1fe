"""A network whose outputs are the parameters of other networks: its output, its gradient and a step of SGD."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

Tensors = dict[str, Tensor]


def hypernetwork(*, embedding: int, hidden: int, depth: int, outputs: int, seed: int) -> Tensors:
    """An MLP with `depth` hidden-to-hidden layers and torch's default initialization. pFedHN has one output layer per
    target tensor; one output layer for all of them is the same function."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [(embedding, hidden), *[(hidden, hidden)] * depth, (hidden, outputs)]
    net: Tensors = {}
    for layer, (wide, high) in enumerate(sizes):
        bound = 1 / math.sqrt(wide)
        net[f"weight{layer}"] = (torch.rand(high, wide, generator=generator) * 2 - 1) * bound
        net[f"bias{layer}"] = (torch.rand(high, generator=generator) * 2 - 1) * bound
    return net


def produced(net: Tensors, embedding: Tensor) -> Tensor:
    """h(v; φ): a vector of parameters for each embedding."""
    last = len(net) // 2 - 1
    x = embedding
    for layer in range(last + 1):
        x = x @ net[f"weight{layer}"].T + net[f"bias{layer}"]
        x = torch.relu(x) if layer < last else x
    return x


def pulled_back(net: Tensors, embeddings: Tensor, ids: Tensor, deltas: Tensor) -> Tensors:
    """Sum over clients of (∂θ_i/∂φ)ᵀΔ_i and (∂θ_i/∂v_i)ᵀΔ_i for θ_i = h(v_i; φ). Embeddings of other clients have a
    gradient of zero."""
    parts = {name: value.detach().requires_grad_() for name, value in net.items()}
    table = embeddings.detach().requires_grad_()
    slopes = torch.autograd.grad(produced(parts, table[ids]), [*parts.values(), table], deltas)
    # contiguous: the weights would take over a transposed layout, and a resumed run would round differently
    return {name: slope.contiguous() for name, slope in zip([*parts, "embeddings"], slopes)}


def clipped(gradient: Sequence[Tensor], longest: float) -> list[Tensor]:
    """Scaled down together to a norm of at most `longest`, as torch.nn.utils.clip_grad_norm_ does."""
    length = math.sqrt(sum(float(part.double().square().sum()) for part in gradient))
    scale = min(1.0, longest / (length + 1e-6))
    return [part * scale for part in gradient]


def sgd_step(
    values: Tensors, velocity: Tensors, gradient: Tensors, *, lr: float, momentum: float, weight_decay: float
) -> tuple[Tensors, Tensors]:
    """One step of torch.optim.SGD; returns the new values and the new velocity."""
    moved = {k: momentum * velocity[k] + gradient[k] + weight_decay * values[k] for k in values}
    return {k: values[k] - lr * moved[k] for k in values}, moved
