"""A network that makes other networks' parameters, as named tensors: its output, its gradient and a step of SGD."""

from __future__ import annotations

import math

import torch
from torch import Tensor

Tensors = dict[str, Tensor]


def hypernetwork(*, embedding: int, hidden: int, depth: int, outputs: int, seed: int) -> Tensors:
    """An MLP with `depth` hidden-to-hidden layers and torch's usual initialization. One output layer for each target
    tensor, as in pFedHN, is the same as one for all of them."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [(embedding, hidden), *[(hidden, hidden)] * depth, (hidden, outputs)]
    net: Tensors = {}
    for layer, (wide, high) in enumerate(sizes):
        bound = 1 / math.sqrt(wide)
        net[f"weight{layer}"] = (torch.rand(high, wide, generator=generator) * 2 - 1) * bound
        net[f"bias{layer}"] = (torch.rand(high, generator=generator) * 2 - 1) * bound
    return net


def produced(net: Tensors, embedding: Tensor) -> Tensor:
    """h(v; φ): rows of parameters from rows of embeddings."""
    last = len(net) // 2 - 1
    x = embedding
    for layer in range(last + 1):
        x = x @ net[f"weight{layer}"].T + net[f"bias{layer}"]
        x = torch.relu(x) if layer < last else x
    return x


def pulled_back(net: Tensors, embeddings: Tensor, row: int, delta: Tensor) -> tuple[Tensors, Tensor]:
    """(∂θ/∂φ)ᵀΔ and (∂θ/∂v)ᵀΔ for θ = h(v_row; φ); of the embeddings only that row has a gradient."""
    parts = {name: value.detach().requires_grad_() for name, value in net.items()}
    table = embeddings.detach().requires_grad_()
    made = produced(parts, table[row])
    slopes = torch.autograd.grad(made, [*parts.values(), table], delta)
    # contiguous: a transposed gradient would lend its layout to the weights, and a restart would then round otherwise
    return {name: slope.contiguous() for name, slope in zip(parts, slopes)}, slopes[-1].contiguous()


def clipped(gradient: Tensors, longest: float) -> Tensors:
    """Shortened together to a length of at most `longest`."""
    length = math.sqrt(sum(float(part.double().square().sum()) for part in gradient.values()))
    scale = min(1.0, longest / (length + 1e-6))
    return {name: part * scale for name, part in gradient.items()}


def sgd_step(
    values: Tensors, velocity: Tensors, gradient: Tensors, *, lr: float, momentum: float, weight_decay: float
) -> tuple[Tensors, Tensors]:
    """torch.optim.SGD, with its state in the open."""
    moved = {k: momentum * velocity[k] + gradient[k] + weight_decay * values[k] for k in values}
    return {k: values[k] - lr * moved[k] for k in values}, moved
