"""Training part of a network, or a network together with tensors outside it; features of examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedkin.client.evaluate import EVALUATION_BATCH
from fedkin.client.steps import descent
from fedkin.client.training import batches, sgd
from fedkin.models.network import Layout, Network, Piece
from fedkin.protocol import Client, Examples

JointLoss = Callable[[Network, list[Tensor], Tensor, Tensor], Tensor]


def sgd_except(client: Client, start: Tensor, held: Tensor, **options: Any) -> Tensor:
    """`sgd` that does not move the positions in `held`. Return `start` if that leaves nothing to train."""
    with client.net.frozen(held):
        if not any(parameter.requires_grad for parameter in client.net.parameters):
            return start.clone()
        return sgd(client, start, **options)


def sgd_with(
    client: Client,
    start: Tensor,
    extra: Sequence[Tensor],
    loss: JointLoss,
    *,
    epochs: int | None = None,
    labels: Tensor | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """Local SGD on a network and on tensors outside it, for `epochs` epochs (None: the run's).

    `loss(net, extra, x, y)` sees the current tensors. `labels` replaces y; pass indices of the examples to look up
    what belongs to them. Return the trained vector and tensors.
    """
    net = client.net
    net.load(start)
    net.train()
    moving = [i for i, parameter in enumerate(net.parameters) if parameter.requires_grad]
    parameters, views = [net.parameters[i] for i in moving], [net.views[i] for i in moving]
    own = [tensor.detach().clone().requires_grad_() for tensor in extra]
    examples = Examples(client.data.x, client.data.y if labels is None else labels)
    step = descent(client)
    for epoch in range(client.training.epochs if epochs is None else epochs):
        for x, y in batches(client, epoch=epoch, examples=examples):
            value = loss(net, own, x, y)
            slopes = torch.autograd.grad(value, [*parameters, *own], allow_unused=True)
            values = [*views, *(tensor.data for tensor in own)]
            step(values, [torch.zeros_like(v) if g is None else g for g, v in zip(slopes, values)])
    return net.vector(), [tensor.detach() for tensor in own]


@torch.no_grad()
def features(client: Client, vector: Tensor, x: Tensor) -> Tensor:
    """Features [examples, dimensions] of these inputs under a model, in evaluation mode."""
    client.net.load(vector)
    client.net.eval()
    return torch.cat([client.net.features(batch).flatten(1) for batch in x.split(EVALUATION_BATCH)])


def linear_head(layout: Layout, values: Tensor, method: str) -> tuple[Tensor, Tensor]:
    """Weight [classes, dimensions] and bias from the head's numbers, which are in the layout's order."""
    pieces = _head_pieces(layout)
    if [len(piece.shape) for piece in pieces] != [2, 1]:
        raise ValueError(
            f"{method} needs a linear head with a bias; layer '{layout.layers[layout.head_layer].name}' has "
            f"{[piece.name for piece in pieces]}. Name another layer with --head."
        )
    weight, bias = values.split([piece.stop - piece.start for piece in pieces])
    return weight.view(pieces[0].shape), bias


def check_head(layout: Layout, classes: int, method: str) -> None:
    """Raise if the head does not give the class scores: the method would train a different model than the user's. A
    regression has no classes; the head of its network is taken as it is."""
    scores = _head_pieces(layout)[0].shape[0]
    if classes and scores != classes:
        raise ValueError(
            f"{method} needs a head that gives the scores of the {classes} classes; layer "
            f"'{layout.layers[layout.head_layer].name}' gives {scores} numbers. "
            "Name the last layer with --head, and do not freeze it."
        )


def _head_pieces(layout: Layout) -> list[Piece]:
    name = layout.layers[layout.head_layer].name
    return [piece for piece in layout.pieces if piece.name.rpartition(".")[0] == name]
