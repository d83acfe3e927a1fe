"""Discrepancy between models (DC-PFL, eq. 3) and between a group's layers (eq. 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from fedkin.maths.threads import one_thread

Scale = Literal["common", "model", "layer"]
LayerScale = Literal["model", "own", "layer", "layer_own"]
BLOCK = 2048  # columns at a time: a block of 100 clients fits into the cache


def pairwise_discrepancy(vectors: Tensor, scale: Scale = "common", layers: Sequence[Tensor] = ()) -> Tensor:
    """D [n, n] of models [n, d]: eq. (3), ‖S(w_i) − S(w_j)‖₁ / d, where S maps linearly to [0, 1].

    `scale` says which smallest and largest value S uses: "common" those of all models together, "model" each model's
    own (as printed), "layer" those of all models together within each layer (`layers`: the columns of each); D is then
    the mean over layers. Only one block of columns is copied at a time.
    """
    if scale == "layer":
        parts = [pairwise_discrepancy(_columns(vectors, columns)) for columns in layers]
        return torch.stack(parts).mean(0)
    if scale == "common":  # S is the same map for all, so it can be applied after the sum
        total = _manhattan(vectors, None, None)
        span = float((vectors.max() - vectors.min()).double())
        factor = 1 / span if span > 0 else 0.0
    else:
        low, high = vectors.amin(1), vectors.amax(1)
        total = _manhattan(vectors, low[:, None], _span(low, high)[:, None])
        factor = 1.0
    return total * (factor / vectors.shape[1])


def layer_discrepancy(vectors: Tensor, center: Tensor, layers: Sequence[Tensor], scale: LayerScale = "model") -> Tensor:
    """D_{g,l} [layers] of a group's models [m, d] and their mean [d]: eq. (5).

    `scale` says which smallest and largest value S uses. "model": those of all members together, over all `layers`.
    "own": each model's own, over all `layers`. "layer" and "layer_own": the same two, within each layer.
    """
    if scale in ("layer", "layer_own"):
        inside: LayerScale = "model" if scale == "layer" else "own"
        return torch.cat([layer_discrepancy(vectors, center, [columns], inside) for columns in layers])
    parts = [(_columns(vectors, columns), _columns(center[None], columns)[0]) for columns in layers]
    low = torch.stack([part.amin(1) for part, _ in parts]).amin(0)
    high = torch.stack([part.amax(1) for part, _ in parts]).amax(0)
    center_low, center_high = (min(m.min() for _, m in parts), max(m.max() for _, m in parts))
    if scale == "model":
        low, high = torch.full_like(low, float(low.min())), torch.full_like(high, float(high.max()))
        center_low, center_high = low[0], high[0]
    span, center_span = _span(low, high), _span(center_low, center_high)
    out = []
    for part, middle in parts:
        target = (middle - center_low) / center_span
        sums = [((v - low[i]) / span[i] - target).abs_().sum(dtype=torch.double) for i, v in enumerate(part)]
        out.append(float(torch.stack(sums).mean()) / part.shape[1])
    return torch.tensor(out, dtype=torch.double)


def _manhattan(vectors: Tensor, low: Tensor | None, span: Tensor | None) -> Tensor:
    """L1 distance of every pair [n, n] of (vectors − low) / span, summed in double."""
    n = len(vectors)
    upper = torch.zeros(n * (n - 1) // 2, dtype=torch.double)
    with one_thread():  # a block is too small to share: two threads were 4 to 16 times slower on a busy machine
        for block in vectors.split(BLOCK, dim=1):
            scaled = block.contiguous() if low is None or span is None else (block - low) / span
            upper += torch.pdist(scaled, p=1).double()
    out = torch.zeros(n, n, dtype=torch.double)
    i, j = torch.triu_indices(n, n, 1)
    out[i, j] = upper
    return out + out.T


def _span(low: Tensor, high: Tensor) -> Tensor:
    """The range that S divides by; 1 where all values are equal."""
    return torch.where(high > low, high - low, 1.0)


def _columns(vectors: Tensor, columns: Tensor) -> Tensor:
    """These columns, as a view where they are contiguous (a layer's usually are)."""
    if len(columns) and int(columns[-1] - columns[0]) == len(columns) - 1 and bool((columns.diff() == 1).all()):
        return vectors[:, int(columns[0]) : int(columns[-1]) + 1]
    return vectors[:, columns]
