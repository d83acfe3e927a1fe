"""pFedHN: Personalized Federated Learning using Hypernetworks.
Shamsian, Navon, Fetaya, Chechik. ICML 2021.

| symbol | here |
|---|---|
| h(·; φ), v_i | state "net", row i of state "embeddings" |
| θ_i = h(v_i; φ) | what is sent to client i |
| Δθ_i = θ̃_i − θ_i, here with the opposite sign | replies.body[0] |
| K, η | inner_steps (0: the run's epochs), the run's lr |
| α | server_lr, server_momentum, server_decay |

The paper asks one client per round. When several reply, the server takes one step along the mean of their gradients.
`step="sum"` sums them; `step="each"` takes one step per reply, which diverges with many clients: their θ_i are those
of the round's start, so the later steps are stale. Batch norm's buffers and frozen parameters are not made by the
hypernetwork: they stay at the client.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedkin.bounds import Count, FractionBelow1, NonNegative, Positive, Whole
from fedkin.client.steps import descent
from fedkin.client.training import stream
from fedkin.methods.pfedhn.hypernetwork import Tensors, clipped, hypernetwork, produced, pulled_back, sgd_step
from fedkin.models.network import Layout
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State

JOIN_STEPS = 20  # of a newcomer's embedding

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
    """pFedHN-PC: the hypernetwork makes the body alone; each client trains and keeps its own head."""
    inner_steps: Whole = 0
    """K: batches of local training; 50 in the paper. 0: the run's epochs."""
    server_lr: Positive = 0.1
    """α: learning rate of the hypernetwork and the embeddings. The authors use 0.01 for one client per round and 5000
    rounds; the mean over many replies bears a larger step."""
    server_momentum: FractionBelow1 = 0.9
    """Momentum of the server."""
    server_decay: NonNegative = 1e-3
    """Weight decay of the server."""
    server_clip: Positive = 50.0
    """Largest norm of the gradient of hypernetwork and embeddings together."""
    inner_clip: Positive = 50.0
    """Largest norm of a client's gradient in one step of local training."""
    embedding: Whole = 0
    """Size of v_i; 0: 1 + N/4, as in the authors' code."""
    hidden: Count = 100
    """Width of the hypernetwork. It has about this many times as many parameters as the model."""
    depth: Whole = 3
    """Number of hidden-to-hidden layers of the hypernetwork."""
    step: Literal["mean", "sum", "each"] = "mean"
    """Server step of a round with several replies: one along the mean of their gradients, one along the sum, or one
    per reply in order of client ids."""

    matters = {
        "server_clip": {"server_clip": 0.01},
        "inner_clip": {"inner_clip": 0.1},
        "inner_steps": {"inner_steps": 3},
        "embedding": {"embedding": 5},
    }

    from_zero = (0,)

    # ---- server
    def init(self, fed: Server) -> State:
        made = _made(fed.layout, self.personal_head)
        if not len(made):
            raise ValueError("pfedhn-pc makes the body of the model, and the body is frozen: use pfedhn or fedper.")
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
        deltas: Tensor = replies.body[0]
        if self.step == "mean":
            deltas = deltas / len(deltas)
        parts = [replies.ids.argsort()] if self.step != "each" else replies.ids.argsort().split(1)
        for part in parts:
            net = {name: value for name, value in values.items() if name != "embeddings"}
            gradient = pulled_back(net, values["embeddings"], replies.ids[part], deltas[part])
            short = dict(zip(gradient, clipped(list(gradient.values()), self.server_clip)))
            values, velocity = sgd_step(
                values, velocity, short,
                lr=self.server_lr, momentum=self.server_momentum, weight_decay=self.server_decay,
            )  # fmt: skip
        embeddings = values.pop("embeddings")
        return {"net": values, "embeddings": embeddings, "velocity": velocity}

    # ---- client
    def local(self, client: Client, message: Message) -> Reply:
        start = self._assembled(client, message)
        net, step = client.net, descent(client)
        net.load(start)
        net.train()
        for x, y in stream(client, steps=self.inner_steps or None):
            step(net.views, clipped(net.gradients(x, y, None, net.parameters), self.inner_clip))
        trained = net.vector()
        made = _made(net.layout, self.personal_head)
        kept = _others(made, len(trained))
        state = {"kept": trained[kept]} if len(kept) else {}
        return Reply(state, (start[made] - trained[made],))  # not divided by the inner learning rate

    def _assembled(self, client: Client, message: Message) -> Tensor:
        """The received parameters with what the client keeps: buffers, and its head with personal_head."""
        vector = client.net.initial.clone()
        made = _made(client.net.layout, self.personal_head)
        if "kept" in client.state:
            vector[_others(made, len(vector))] = client.state["kept"]
        vector[made] = message.own[0]  # type: ignore[assignment]
        return vector

    def received(self, client: Client, message: Message) -> Model:
        return self._assembled(client, message)

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        return self._assembled(client, message)  # no fine-tuning

    # ---- newcomers
    def join(self, state: State, client: Client, id: int) -> Message:
        """Only the newcomer's embedding is learned, from the mean of all embeddings; the hypernetwork stays."""
        others = state["embeddings"][torch.arange(len(state["embeddings"])) != id]
        values, velocity = {"v": others.mean(0, keepdim=True)}, {"v": torch.zeros(1, others.shape[1])}
        for step in range(JOIN_STEPS):
            message = Message(own=(produced(state["net"], values["v"])[0],))
            reply = self.local(client._replace(seed=client.seed + step), message)
            client = client._replace(state=reply.state)
            slope = pulled_back(state["net"], values["v"], torch.tensor([0]), reply.body[0][None])["embeddings"]
            (short,) = clipped([slope], self.server_clip)
            values, velocity = sgd_step(
                values, velocity, {"v": short}, lr=self.server_lr, momentum=self.server_momentum, weight_decay=0.0
            )
        return Message(own=(produced(state["net"], values["v"])[0],))

    def describe(self, state: State) -> dict[str, Any]:
        return {"embeddings": state["embeddings"]} if state["embeddings"].numel() <= 1000 else {}


def _made(layout: Layout, personal_head: bool) -> Tensor:
    """Positions of what the hypernetwork makes."""
    positions = layout.body if personal_head else torch.arange(layout.parameters)
    return positions[positions < layout.parameters]


def _others(positions: Tensor, size: int) -> Tensor:
    """All other positions of a vector."""
    other = torch.ones(size, dtype=torch.bool)
    other[positions] = False
    return other.nonzero().flatten()
