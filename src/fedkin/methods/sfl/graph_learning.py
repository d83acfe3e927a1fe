"""The graph between clients: its strongest edges, and a graph that is learned."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
SATURATION = 3.0  # a of MTGNN's tanh(a·x)


def strongest(weights: Floats, count: int, sources: Flags | None = None) -> Floats:
    """Each row's largest weights, divided by their sum: at most `count` of them, its own always included.

    With `sources`, only these columns count, and a row that is not a source has no weight on itself. A row without any
    weight keeps to itself if it is a source, and gives all sources equal weight otherwise.
    """
    size = len(weights)
    from_ = np.ones(size, bool) if sources is None else sources
    order = np.where(from_, weights + np.where(np.eye(size) > 0, np.inf, 0.0), -np.inf)
    keep = np.argsort(np.argsort(-order, axis=1, kind="stable"), axis=1) < count
    kept = np.where(keep & from_, np.maximum(weights, 0), 0)
    alone = kept.sum(1) == 0
    kept[alone] = np.where(from_[:, None], np.eye(size), from_.astype(float))[alone]
    out: Floats = kept / kept.sum(1, keepdims=True)
    return out


def constructed(target: Floats, *, steps: int, lr: float, seed: int, one_way: bool, width: int = 40) -> Floats:
    """Non-negative edges between nodes from two embeddings per node (MTGNN's graph constructor), fitted to `target`.

    The error compares rows scaled to length 1. `one_way`: the constructor's antisymmetric form, in which at most one of
    i→j and j→i exists, fitted by SGD. Otherwise a plain product, fitted by Adam.
    """
    generator = torch.Generator().manual_seed(seed)
    count = len(target)
    nodes = [torch.randn(count, width, generator=generator) for _ in range(2)]
    edge = 1 / math.sqrt(width)
    maps = [(torch.rand(width, width, generator=generator) * 2 - 1) * edge for _ in range(2)]
    learned = [part.requires_grad_() for part in (*nodes, *maps)]

    def edges() -> Tensor:
        one, two = (torch.tanh(SATURATION * (node @ linear)) for node, linear in zip(learned[:2], learned[2:]))
        product = one @ two.T - two @ one.T if one_way else one @ two.T / width
        return torch.relu(torch.tanh(SATURATION * product))

    def lengths(rows: Tensor) -> Tensor:
        return torch.nn.functional.normalize(rows, dim=1)

    goal = lengths(torch.from_numpy(target).float())
    optimizer: torch.optim.Optimizer = (torch.optim.SGD if one_way else torch.optim.Adam)(learned, lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        (lengths(edges()) - goal).square().mean().backward()
        optimizer.step()
    out: Floats = edges().detach().double().numpy()
    return out
