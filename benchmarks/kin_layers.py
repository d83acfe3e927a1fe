"""A variant of `kin` for the ablation: the relation between clients is found layer by layer.

An idea that was tried and left out: early layers could come from everybody and late ones from kin. It is a file of its
own so that a saved run can find the class again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedkin.methods.kin import Kin
from fedkin.protocol import Message, Replies, Server, State


@dataclass(frozen=True)
class LayerKin(Kin):
    """kin whose mixture has weights A of its own in each layer, by the cosine of that layer alone."""

    def init(self, fed: Server) -> State:
        owner = torch.zeros(fed.layout.size, dtype=torch.int64)
        for index, layer in enumerate(fed.layout.layers):
            owner[layer.positions] = index
        return {**super().init(fed), "owner": owner}

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        return {**super().merge(state, sent, replies), "owner": state["owner"]}

    def send(self, state: State, ids: Tensor) -> Message:
        kin = torch.empty(len(ids), len(state["mean"]))
        for index in state["owner"].unique().tolist():
            columns = (state["owner"] == index).nonzero().flatten()
            models, mean = state["models"][:, columns], state["mean"][columns]
            kin[:, columns] = self._weights_of({**state, "models": models, "mean": mean}, ids) @ models
        return Message(shared=(state["mean"],), own=(kin,))
