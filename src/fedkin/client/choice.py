"""Which of several models fits a client best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fedkin.client.evaluate import evaluate
from fedkin.protocol import Client, Data, Message


class Choice(NamedTuple):
    position: int
    """Its position among the models offered."""
    loss: float
    """Mean loss of the model on the client's training examples."""
    model: Tensor


# `local`, `received` and `personal` of one task ask the same question about the same message. The client's data object
# lives as long as the task, so the answer is forgotten with it.
_chosen: WeakKeyDictionary[Data, tuple[Message, Choice]] = WeakKeyDictionary()


def best_model(client: Client, message: Message, offered: Callable[[], Sequence[Tensor] | Tensor]) -> Choice:
    """The model of a message with the lowest loss on the client's training examples; the first if several are equal.

    `offered` makes the models of the message. It is called, and the losses are computed, once for each message.
    """
    known = _chosen.get(client.data)
    if known is not None and _same(known[0], message):
        return known[1]
    models = offered()
    losses = [evaluate(client.net, model, client.data.train)[1] for model in models]
    best = losses.index(min(losses))
    choice = Choice(best, losses[best], models[best])
    _chosen[client.data] = (message, choice)
    return choice


def _same(one: Message, two: Message) -> bool:
    """The engine gives `local` a copy, because it may write into what it received: so the contents are compared."""
    if one is two:
        return True
    if (len(one.shared), len(one.own)) != (len(two.shared), len(two.own)):
        return False
    pairs = zip((*one.shared, *one.own), (*two.shared, *two.own))
    return all(isinstance(a, Tensor) and isinstance(b, Tensor) and torch.equal(a, b) for a, b in pairs)
