"""A method whose clients are asked, or whose replies arrive, in another order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import numpy as np
import torch
from torch import Tensor

from fedkin.protocol import Clients, Message, Method, Replies, Reply, Server, State


class _Shuffled:
    """The clients of a round, with their replies in another order."""

    def __init__(self, clients: Clients) -> None:
        self.ids, self._clients = clients.ids, clients

    def run(self, function: Callable[..., Reply], message: Message) -> Replies:
        replies = self._clients.run(function, message)
        order = another_order(len(replies.ids), replies.seed)
        body = tuple(
            part[order] if isinstance(part, Tensor) else [part[r] for r in order.tolist()] for part in replies.body
        )
        return Replies(replies.ids[order], replies.n[order], body, replies.position[order], replies.seed)


def another_order(count: int, seed: int) -> Tensor:
    """A permutation that is not the identity if `count` is at least 2."""
    order = np.random.default_rng([seed, 0x0DE2]).permutation(count)
    return torch.from_numpy(order if count < 2 or (order != np.arange(count)).any() else order[::-1].copy())


def in_another_order(method: Method, *, replies: bool = False, asked: bool = False) -> Method:
    """The same method, whose clients are asked or whose replies are delivered in another order."""
    kind = type(method)

    def round(self: Method, state: State, clients: Clients) -> State:
        return kind.round(self, state, _Shuffled(clients) if replies else clients)

    def select(self: Method, state: State, fed: Server, round: int) -> Tensor:
        ids = kind.select(self, state, fed, round)
        return ids[another_order(len(ids), round)] if asked else ids

    other = type(kind.__name__, (kind,), {"round": round, "select": select, "__module__": kind.__module__})
    return other(**{f.name: getattr(method, f.name) for f in fields(method) if f.init})  # type: ignore[arg-type,no-any-return]
