"""pFedHN: Personalized Federated Learning using Hypernetworks.
Shamsian, Navon, Fetaya, Chechik. ICML 2021.

| symbol | here |
|---|---|
| h(·; φ), v_i | state "net", row i of state "embeddings" |
| θ_i = h(v_i; φ) | what is sent to client i |
| Δθ_i = θ̃_i − θ_i, here with the other sign | replies.body[0] |
| K, η | inner_steps (0: the run's epochs), the run's lr |
| α | server_lr, server_momentum, server_decay |

The paper asks one client in each round. Where several answer, the server does one step for each in turn (`step="each"`;
their θ_i are those of the round's start), or one for the sum of their gradients. Inner gradients are not clipped. Batch
norm's buffers are not made by the hypernetwork: they stay at the client.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedkin.bounds import Count, FractionBelow1, NonNegative, Positive, Whole
from fedkin.client.training import sgd
from fedkin.methods.pfedhn.hypernetwork import Tensors, clipped, hypernetwork, produced, pulled_back, sgd_step
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State

CITATION = r"""@inproceedings{shamsian2021personalized,
  title = {Personalized Federated Learning using Hypernetworks},
  author = {Shamsian, Aviv and Navon, Aviv and Fetaya, Ethan and Chechik, Gal},
  booktitle = {International Conference on Machine Learning (ICML)},
  year = {2021}
}"""


@dataclass(frozen=True)
class PFedHN(Method):
    paper = "Shamsian et al., ICML 2021"
    citation = CITATION
    travels = "parameters down, their change up; with personal_head only those of the body"
    stays = "batch norm's buffers; with personal_head the head"

    personal_head: bool = False
    """pFedHN-PC: the hypernetwork makes the body alone; each client trains and keeps a head of its own."""
    inner_steps: Whole = 0
    """K: batches of a client's local training; the paper takes 50. 0: as many epochs as the run says."""
    server_lr: Positive = 0.01
    """α: learning rate of the hypernetwork and the embeddings."""
    server_momentum: FractionBelow1 = 0.9
    """Its momentum."""
    server_decay: NonNegative = 1e-3
    """Its weight decay."""
    clip: Positive = 50.0
    """Longest gradient of the hypernetwork and the embeddings together."""
    embedding: Whole = 0
    """Size of v_i; 0: 1 + N/4, as in the authors' code."""
    hidden: Count = 100
    """Width of the hypernetwork, whose size is about so many times the model's."""
    depth: Whole = 3
    """Its hidden-to-hidden layers."""
    step: Literal["each", "sum"] = "each"
    """Server steps of a round with several answers: one for each, or one for all."""

    matters = {"clip": {"clip": 0.01}, "inner_steps": {"inner_steps": 3}, "embedding": {"embedding": 5}}

    # ---- server
    def init(self, fed: Server) -> State:
        made = _made(fed.layout, self.personal_head)
        size = self.embedding or 1 + fed.size // 4
        generator = torch.Generator().manual_seed(int(fed.rng(0, 0x481).integers(1 << 62)))
        embeddings = torch.randn(fed.size, size, generator=generator)
        net = hypernetwork(
            embedding=size, hidden=self.hidden, depth=self.depth, outputs=len(made), seed=fed.seed + (1 << 40)
        )
        velocity = {name: torch.zeros_like(part) for name, part in {**net, "embeddings": embeddings}.items()}
        return {"net": net, "embeddings": embeddings, "velocity": velocity}

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(own=(produced(state["net"], state["embeddings"][ids]),))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        values: Tensors = {**state["net"], "embeddings": state["embeddings"]}
        velocity: Tensors = state["velocity"]
        total: Tensors = {}
        for client, delta in zip(replies.ids.tolist(), replies.body[0]):
            slopes, table = pulled_back(_without(values), values["embeddings"], client, delta)
            gradient = {**slopes, "embeddings": table}
            if self.step == "each":
                values, velocity = self._stepped(values, velocity, gradient)
            else:
                total = {name: part + total[name] for name, part in gradient.items()} if total else gradient
        if self.step == "sum":
            values, velocity = self._stepped(values, velocity, total)
        return {"net": _without(values), "embeddings": values["embeddings"], "velocity": velocity}

    def _stepped(self, values: Tensors, velocity: Tensors, gradient: Tensors) -> tuple[Tensors, Tensors]:
        return sgd_step(
            values, velocity, clipped(gradient, self.clip),
            lr=self.server_lr, momentum=self.server_momentum, weight_decay=self.server_decay,
        )  # fmt: skip

    # ---- client
    def local(self, client: Client, message: Message) -> Reply:
        start = self._assembled(client, message)
        trained = sgd(client, start, steps=self.inner_steps or None)
        made = _made(client.net.layout, self.personal_head)
        kept = torch.ones(len(trained), dtype=torch.bool)
        kept[made] = False
        state = {"kept": trained[kept]} if bool(kept.any()) else {}
        return Reply(state, (start[made] - trained[made],))  # no division by the inner learning rate

    def _assembled(self, client: Client, message: Message) -> Tensor:
        """The received parameters, with what the client keeps: buffers, and with personal_head its head."""
        row = client.net.initial.clone()
        made = _made(client.net.layout, self.personal_head)
        kept = torch.ones(len(row), dtype=torch.bool)
        kept[made] = False
        if "kept" in client.state:
            row[kept] = client.state["kept"]
        row[made] = message.own[0]  # type: ignore[assignment]
        return row

    def received(self, client: Client, message: Message) -> Model:
        return self._assembled(client, message)

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        return self._assembled(client, message)  # no fine-tuning

    def describe(self, state: State) -> dict[str, Any]:
        return {"embeddings": state["embeddings"]} if state["embeddings"].numel() <= 1000 else {}


def _made(layout: Any, personal_head: bool) -> Tensor:
    """Positions of what the hypernetwork makes."""
    positions: Tensor = layout.body if personal_head else torch.arange(layout.parameters)
    return positions[positions < layout.parameters]


def _without(values: Tensors) -> Tensors:
    return {name: part for name, part in values.items() if name != "embeddings"}
