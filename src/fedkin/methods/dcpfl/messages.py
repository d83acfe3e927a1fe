"""What travels in a round of DC-PFL: plans that say which layers are sent and due, and the parts of models."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedkin.methods.dcpfl.layerwise import overall, pick, put
from fedkin.models.network import Layout
from fedkin.protocol import Client, Replies, State, require

SENT, DUE, LOSS = 1, 2, 4  # this message contains the layer; upload it; report the loss


def owner_of(layout: Layout) -> Tensor:
    """The layer of each column. Buffers of a module without parameters belong to the last layer."""
    owner = torch.full((layout.size,), len(layout.layers) - 1, dtype=torch.int32)
    for index, layer in enumerate(layout.layers):
        owner[layer.positions] = index
    return owner


def plan_of(sent: Tensor, due: Tensor, report_loss: bool) -> Tensor:
    """One byte per layer: the sum of `SENT`, `DUE` and `LOSS` as they apply. Empty if all bytes are 0."""
    plan = SENT * sent.to(torch.uint8) + DUE * due.to(torch.uint8) + LOSS * report_loss
    return plan if bool(plan.any()) else plan[:0]


def planned(client: Client, plan: Any, bit: int) -> Tensor:
    """The layers for which this bit of a plan is set."""
    return (plan & bit) > 0 if len(plan) else torch.zeros(len(client.net.layout.layers), dtype=torch.bool)


def loss_wanted(client: Client, plan: Any) -> bool:
    return bool(planned(client, plan, LOSS).any())


def upload(client: Client, model: Tensor, plan: Any) -> Tensor:
    """The layers of a model that are due."""
    return pick(model, planned(client, plan, DUE), owner_of(client.net.layout))


def model_of(client: Client, part: Any, plan: Any) -> Tensor:
    """The model a client trains: the layers it was sent, and its own for the others."""
    own = part if len(part) == client.net.layout.size else client.state["models"][0]
    return put(own, part, planned(client, plan, SENT), owner_of(client.net.layout))


def check_lengths(replies: Replies, part: int, lengths: list[int]) -> None:
    """Check the lengths of replies. The engine cannot, because they differ."""
    fits = (len(array) == length for array, length in zip(replies.body[part], lengths))
    require(replies, fits, "replied with fewer or more numbers than requested")


def missing_parts(state: State, labels: Tensor, models: Tensor, ids: Tensor, asks: Tensor) -> list[Tensor]:
    """Of each client's group model, the layers it lacks."""
    own = labels[ids]
    if bool((own < 0).any()):
        models = torch.cat([models, overall(models, labels, state["n"])[None]])
    parts: dict[tuple[int, ...], Tensor] = {}  # clients that receive the same layers share the array
    keys = [(label, *lacks) for label, lacks in zip(own.tolist(), asks.tolist())]
    for key, lacks in zip(keys, asks):
        if key not in parts:
            parts[key] = pick(models[key[0]], lacks, state["owner"])
    return [parts[key] for key in keys]
