"""Single gradient steps at a client, and parts of a vector, for methods whose local work is not plain SGD."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedkin.client.optimizer import Step, optimizer
from fedkin.models.network import Layout, Loss, Network
from fedkin.protocol import Client, Examples

OTHER_EPOCHS = 1 << 20  # epochs counted from here have batches that are independent of those used for training


def slope(net: Network, parameters: Tensor, examples: Examples, loss: Loss | None = None) -> Tensor:
    """Flat gradient of the loss on a batch at these flat parameters, which stay loaded."""
    net.trainable.copy_(parameters)
    return net.gradient_vector(examples.x, examples.y, loss)


def descent(client: Client, lr: float | None = None) -> Step:
    """Return `step(values, gradient)`, which moves values in place by the run's optimizer, bit for bit as `sgd` does.
    Momentum is kept in the function."""
    return optimizer(client.training, lr)


def without_extras(client: Client) -> Client:
    """The same client with plain SGD: no momentum, weight decay, clipping or other optimizer."""
    plain = replace(client.training, optimizer="sgd", momentum=0.0, weight_decay=0.0, clip=0.0, stop_after=0)
    return client._replace(training=plain)


def last_layers(layout: Layout, count: int) -> tuple[Tensor, Tensor]:
    """Positions of everything else, and of the `count` layers that end with the head."""
    if not 0 <= count <= layout.head_layer + 1:
        raise ValueError(
            f"{count} layers were requested; this network has {layout.head_layer + 1} up to its head: "
            f"{', '.join(layer.name for layer in layout.layers[: layout.head_layer + 1])}."
        )
    inside = torch.zeros(layout.size, dtype=torch.bool)
    for layer in layout.layers[layout.head_layer + 1 - count : layout.head_layer + 1]:
        inside[layer.positions] = True
    return (~inside).nonzero().flatten(), inside.nonzero().flatten()


def joined(size: int, *parts: tuple[Tensor, Tensor]) -> Tensor:
    """A vector put together from (positions, values)."""
    vector = torch.empty(size)
    for positions, values in parts:
        vector[positions] = values
    return vector
