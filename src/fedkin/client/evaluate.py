"""Scores and gradients of a model on a set of examples."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from fedkin.models.network import Network
from fedkin.protocol import Examples

EVALUATION_BATCH = 128  # about the fastest on a CPU: larger batches leave the cache


@torch.no_grad()
def evaluate(net: Network, row: Tensor, rows: Examples) -> tuple[float, float]:
    """Accuracy and mean cross entropy of a flat row on these rows."""
    net.load(row)
    return score(lambda x: net(x), net, rows)


@torch.no_grad()
def score(predict: Callable[[Tensor], Tensor], net: Network, rows: Examples) -> tuple[float, float]:
    """Accuracy and mean cross entropy of any predictor."""
    net.eval()
    right, total = 0, 0.0
    for x, y in zip(rows.x.split(EVALUATION_BATCH), rows.y.split(EVALUATION_BATCH)):
        scores = predict(x)
        right += int((scores.argmax(1) == y).sum())
        total += float(F.cross_entropy(scores, y, reduction="sum"))
    return right / len(rows.y), total / len(rows.y)


def gradient(net: Network, row: Tensor, rows: Examples) -> tuple[Tensor, float]:
    """Gradient of the mean cross entropy over all these rows with respect to the flat parameters, and the loss."""
    net.load(row)
    net.eval()
    total = torch.zeros_like(net.trainable)
    parameters = [p for p in net.parameters if p.requires_grad]
    parts = [part for part, p in zip(net.pieces(total), net.parameters) if p.requires_grad]
    loss = 0.0
    for x, y in zip(rows.x.split(EVALUATION_BATCH), rows.y.split(EVALUATION_BATCH)):
        value = F.cross_entropy(net(x), y, reduction="sum")
        for part, slope in zip(parts, torch.autograd.grad(value, parameters, allow_unused=True)):
            if slope is not None:
                part += slope
        loss += float(value.detach())
    return total / len(rows.y), loss / len(rows.y)
