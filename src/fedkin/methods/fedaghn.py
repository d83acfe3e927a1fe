"""FedAGHN: Personalized Federated Learning with Attentive Graph HyperNetworks.
Song, Shen, Hou, Wang, Wang, Tang, Lv. arXiv 2501.16379, 2025.

| symbol | here |
|---|---|
| p, q of client i and a layer | state "p", "q" [layers, clients] |
| Δ_i | state "updates": the change of client i in its last round |
| weights of layer l | state "mix" [layers, clients, clients], see `weights_of` |

The server mixes models layer by layer, with weights from the cosines of the clients' updates in that layer. Two scalars
per client and layer are learned by back-propagating the client's change through the mixing, as in pFedHN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedkin.bounds import NonNegative
from fedkin.client.newcomer import after_one_round
from fedkin.client.training import sgd
from fedkin.maths.graph import cosine
from fedkin.maths.kmeans import gram
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State, with_rows

CITATION = r"""@misc{song2025fedaghn,
  title = {{FedAGHN}: Personalized Federated Learning with Attentive Graph {HyperNetworks}},
  author = {Song, Jiarui and Shen, Yunheng and Hou, Chengbin and Wang, Pengyu and Wang, Jinbao and Tang, Ke
            and Lv, Hairong},
  year = {2025},
  eprint = {2501.16379},
  archivePrefix = {arXiv}
}"""


@dataclass(frozen=True)
class FedAGHN(Method):
    paper = "Song et al., arXiv 2501.16379, 2025"
    citation = CITATION
    travels = "model both ways"
    stays = "nothing"
    quadratic = "weights for each layer, and two vectors for each client in memory."

    q: float = 1.0
    """Initial sharpness of the attention to other clients."""
    p: NonNegative = 0.05
    """Initial weight of the client's own model, relative to 1 for all others together."""
    server_lr: NonNegative = 5e-3
    """Learning rate of p and q; 0: both are fixed."""

    matters = {"q": {"q": 10.0}, "server_lr": {"server_lr": 0.5}}

    # ---- server
    def init(self, fed: Server) -> State:
        layers = fed.layout.layers
        return {
            "models": fed.initial(0).repeat(fed.size, 1),
            "updates": torch.zeros(fed.size, fed.layout.parameters),
            "known": torch.zeros(fed.size, dtype=torch.bool),
            "p": torch.full((len(layers), fed.size), self.p),
            "q": torch.full((len(layers), fed.size), self.q),
            "mix": torch.eye(fed.size).repeat(len(layers), 1, 1),
            "names": [layer.name for layer in layers],
            "positions": [layer.positions for layer in layers],
            "learned": [layer.parameters for layer in layers],
        }

    def send(self, state: State, ids: Tensor) -> Message:
        models = state["models"]
        out = state["mix"].mean(0)[ids] @ models  # buffers of modules without parameters belong to no layer
        for mix, positions in zip(state["mix"], state["positions"]):
            out[:, positions] = mix[ids] @ models[:, positions]
        return Message(own=(out,))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        started = sent.own[0]
        assert isinstance(started, Tensor)
        trained: Tensor = replies.body[0]
        changes = (trained - started[replies.position])[:, : state["updates"].shape[1]]
        p, q = self._stepped(state, replies.ids, changes)
        models = with_rows(state["models"], replies.ids, trained)
        updates = with_rows(state["updates"], replies.ids, changes)
        known = state["known"].clone()
        known[replies.ids] = True
        ids = known.nonzero().flatten()
        mix = torch.zeros_like(state["mix"])
        mix[:, :, ids] = 1 / len(ids)  # a client never heard gets the mean of those heard
        for layer, positions in enumerate(state["learned"]):
            cosines = _cosines(updates[ids][:, positions])
            for own, client in enumerate(ids.tolist()):
                mix[layer, client, ids] = weights_of(cosines[own], own, p[layer, client], q[layer, client])
        return {**state, "models": models, "updates": updates, "known": known, "p": p, "q": q, "mix": mix}

    def _stepped(self, state: State, clients: Tensor, changes: Tensor) -> tuple[Tensor, Tensor]:
        """p and q after one step for each reply: its change, back-propagated through the mixing that was sent."""
        p, q = state["p"].clone(), state["q"].clone()
        ids = state["known"].nonzero().flatten()
        for layer, positions in enumerate(state["learned"]):
            cosines = _cosines(state["updates"][ids][:, positions]) if len(ids) else torch.zeros(0, 0)
            for client, change in zip(clients.tolist(), changes):
                if not state["known"][client]:
                    continue  # it was sent the plain mean, which depends on neither
                own = int((ids == client).nonzero())
                pulled = state["models"][ids][:, positions] @ -change[positions]
                down = slopes(cosines[own], own, p[layer, client], q[layer, client], pulled)
                p[layer, client] = (p[layer, client] - self.server_lr * down[0]).clamp(min=0)
                q[layer, client] -= self.server_lr * down[1]
        return p, q

    # ---- client
    def local(self, client: Client, message: Message) -> Reply:
        start = message.own[0]
        assert isinstance(start, Tensor)
        return Reply({}, (sgd(client, start),))

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        return trained().body[0]

    # ---- newcomers
    def join(self, state: State, client: Client, id: int) -> Message:
        """The mean of all models with the weights that its update would get in its first round."""
        return after_one_round(self, state, client, id)

    # ---- to look at
    def mixing(self, state: State) -> dict[str, Tensor]:
        return dict(zip(state["names"], state["mix"]))

    def describe(self, state: State) -> dict[str, Any]:
        return {"p": state["p"].mean(1), "q": state["q"].mean(1)}


def _cosines(updates: Tensor) -> Tensor:
    return torch.from_numpy(cosine(gram(updates))).float()


def weights_of(cosines: Tensor, own: int, p: Tensor, q: Tensor) -> Tensor:
    """One client's weights over all clients: softmax of q·cosine over the others, p (at least 0) for itself, divided by
    their sum. A single client has weight 1."""
    if len(cosines) == 1:
        return torch.ones(1)
    others = torch.arange(len(cosines)) != own
    attention = torch.zeros(len(cosines)).masked_scatter(others, torch.softmax(q * cosines[others], 0))
    weights = attention + p.clamp(min=0) * (~others).float()
    return weights / weights.sum()


def slopes(cosines: Tensor, own: int, p: Tensor, q: Tensor, pulled: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of p and q, where `pulled` is the gradient of the weights."""
    p, q = p.clone().requires_grad_(), q.clone().requires_grad_()
    if len(cosines) == 1:
        return torch.zeros(()), torch.zeros(())
    down = torch.autograd.grad(weights_of(cosines, own, p, q) @ pulled, (p, q))
    return down[0], down[1]
