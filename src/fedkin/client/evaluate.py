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
def evaluate(net: Network, vector: Tensor, examples: Examples) -> tuple[float, float]:
    """Accuracy and mean cross entropy of a parameter vector on these examples."""
    net.load(vector)
    return score(lambda x: net(x), net, examples)


@torch.no_grad()
def score(predict: Callable[[Tensor], Tensor], net: Network, examples: Examples) -> tuple[float, float]:
    """Accuracy and mean cross entropy of any predictor."""
    net.eval()
    right, total = 0, 0.0
    for x, y in zip(examples.x.split(EVALUATION_BATCH), examples.y.split(EVALUATION_BATCH)):
        scores = predict(x)
        right += int((scores.argmax(1) == y).sum())
        total += float(F.cross_entropy(scores, y, reduction="sum"))
    return right / len(examples.y), total / len(examples.y)


def gradient(net: Network, vector: Tensor, examples: Examples) -> tuple[Tensor, float]:
    """Gradient of the mean cross entropy over these examples with respect to the flat parameters, and the loss."""
    net.load(vector)
    net.eval()
    total = torch.zeros_like(net.trainable)
    parameters = [p for p in net.parameters if p.requires_grad]
    parts = [part for part, p in zip(net.pieces(total), net.parameters) if p.requires_grad]
    loss = 0.0
    for x, y in zip(examples.x.split(EVALUATION_BATCH), examples.y.split(EVALUATION_BATCH)):
        value = F.cross_entropy(net(x), y, reduction="sum")
        for part, slope in zip(parts, torch.autograd.grad(value, parameters, allow_unused=True)):
            if slope is not None:
                part += slope
        loss += float(value.detach())
    return total / len(examples.y), loss / len(examples.y)
