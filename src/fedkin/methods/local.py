"""Local (standalone): each client trains alone, from the common initial model.

| symbol | here |
|---|---|
| w_i | state "model" of client i |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedkin.client.training import sgd
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State


@dataclass(frozen=True)
class Local(Method):
    paper = ""
    travels = "nothing"
    stays = "model"

    everyone: bool = True
    """Train all clients in every round, whatever the participation: as much work as a client that is always selected.
    False: only selected clients train, so that Local takes as many local steps in total as the other methods."""

    def init(self, fed: Server) -> State:
        return {"clients": fed.size}

    def select(self, state: State, fed: Server, round: int) -> Tensor:
        return fed.ids if self.everyone else fed.sample(round)

    def send(self, state: State, ids: Tensor) -> Message:
        return Message()

    def local(self, client: Client, message: Message) -> Reply:
        return Reply({"model": sgd(client, client.state.get("model", client.net.initial))}, ())

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        return state

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        model: Tensor = client.state.get("model", client.net.initial)
        return model

    def mixing(self, state: State) -> Tensor:
        return torch.eye(state["clients"])
