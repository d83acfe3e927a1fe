"""How a newcomer finds the trained model that fits it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedkin.client.evaluate import evaluate
from fedkin.maths.table import mean_of
from fedkin.protocol import Client, Message, Method, Replies, State, with_rows


def best_fit(client: Client, models: Sequence[Tensor] | Tensor) -> int:
    """Index of the model with the lowest loss on the client's training examples; the first of equal ones."""
    losses = [evaluate(client.net, model, client.data.train)[1] for model in models]
    return losses.index(min(losses))


def after_one_round(method: Method, state: State, client: Client, id: int) -> Message:
    """What the server would send after a round in which this newcomer alone takes part.

    For methods that keep a model of each client in `models`, with `known` for those that have answered, and decide in
    `merge` who learns from whom. The newcomer starts from the mean of the known models.
    """
    mean = mean_of(state["models"], state["known"].nonzero().flatten())
    state = {**state, "models": with_rows(state["models"], [id], mean)}
    ids = torch.tensor([id])
    sent = method.send(state, ids)
    reply = method.local(client, sent.for_position(0))
    n = torch.tensor([len(client.data.y)])
    replies = Replies(ids, n, tuple(part[None] for part in reply.body), torch.zeros(1, dtype=torch.long), client.seed)
    return method.send(method.merge(state, sent, replies), ids).for_position(0)
