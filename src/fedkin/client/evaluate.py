"""Scores and gradients of a model on a set of examples."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedkin.models.network import Network
from fedkin.protocol import Examples

EVALUATION_BATCH = 128  # about the fastest on a CPU: larger batches leave the cache


@torch.no_grad()
def evaluate(net: Network, vector: Tensor, examples: Examples) -> tuple[float, float]:
    """The task's headline metric and mean loss of a parameter vector on these examples."""
    net.load(vector)
    found = scores(lambda x: net(x), net, examples)
    return found[net.task.headline], found["loss"]


def scores(predict: Callable[[Tensor], Tensor], net: Network, examples: Examples) -> dict[str, float]:
    """The task's metrics, and its mean loss as "loss", of any predictor."""
    return scores_and_outputs(predict, net, examples)[0]


@torch.no_grad()
def scores_and_outputs(
    predict: Callable[[Tensor], Tensor], net: Network, examples: Examples
) -> tuple[dict[str, float], Tensor]:
    """The scores, and the outputs [examples, outputs] behind them."""
    net.eval()
    task, total, outputs = net.task, 0.0, []
    for x, y in zip(examples.x.split(EVALUATION_BATCH), examples.y.split(EVALUATION_BATCH)):
        outputs.append(predict(x))
        total += float(task.loss(outputs[-1], y, reduction="sum"))
    every = torch.cat(outputs)
    return {**task.scores(every, examples.y), "loss": total / len(examples.y)}, every


def gradient(net: Network, vector: Tensor, examples: Examples) -> tuple[Tensor, float]:
    """Gradient of the task's mean loss over these examples with respect to the flat parameters, and the loss."""
    net.load(vector)
    net.eval()
    total = torch.zeros_like(net.trainable)
    parameters = [p for p in net.parameters if p.requires_grad]
    parts = [part for part, p in zip(net.pieces(total), net.parameters) if p.requires_grad]
    loss = 0.0
    for x, y in zip(examples.x.split(EVALUATION_BATCH), examples.y.split(EVALUATION_BATCH)):
        value = net.task.loss(net(x), y, reduction="sum")
        for part, slope in zip(parts, torch.autograd.grad(value, parameters, allow_unused=True)):
            if slope is not None:
                part += slope
        loss += float(value.detach())
    return total / len(examples.y), loss / len(examples.y)
