"""kin: our own method, in which nobody loses.

The server sends each client a mixture of this round's models in which kin count more. The client trains it, and a
model of its own beside it that never leaves. It predicts with a mixture of experts whose weights it learns on its own
validation examples, so that whatever does not help this client gets no weight.

| symbol | here |
|---|---|
| w_i | the reply of client i: the received mixture after its training; state "models" keeps the last of each client |
| A_ji = softmax_i(cos(w_j − w̄, w_i − w̄) / T + log n_i) | the weight of client i in what client j is sent |
| T | temperature |
| p_e(y|x) | an expert: "own", "received", "tuned", or "neighbors" (k nearest on the tuned model's features) |
| π | weights of the experts: EM on the validation examples from a Dirichlet prior, `prior` counts in all |

Reductions: experts=("received",), similarity=False is FedAvg; experts=("own",) is Local.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedkin.bounds import Count, NonNegative, Positive
from fedkin.client.training import sgd
from fedkin.maths.neighbors import neighbor_probabilities
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State, with_rows

Expert = Literal["own", "received", "tuned", "neighbors"]
EXPERTS: tuple[Expert, ...] = ("own", "received", "tuned", "neighbors")
STEPS = 100  # of EM


@dataclass(frozen=True)
class Kin(Method):
    travels = "model both ways"
    stays = "a model of its own"
    needs_classes = True

    experts: tuple[Expert, ...] = EXPERTS
    """Which experts predict."""
    similarity: bool = True
    """Kin count more in the mixture that is sent. False: everybody is sent FedAvg's mean."""
    temperature: Positive = 0.3
    """T: the larger, the more even the mixture."""
    prior: NonNegative = 4.0
    """Dirichlet counts of all experts together: how many validation examples it takes to move their weights."""
    k: Count = 10
    """Neighbors that vote; all training examples where there are fewer."""
    scale: Positive = 1.0
    """Neighbors weigh exp(−distance / scale)."""

    matters = {"experts": {"experts": ("received",)}}

    # ---- server
    def init(self, fed: Server) -> State:
        start = fed.initial(0)
        return {
            "start": start, "models": start.repeat(fed.size, 1), "known": torch.zeros(fed.size, dtype=torch.bool),
            "answers": start[None], "answered": torch.tensor([-1]), "n": fed.n,
        }  # fmt: skip

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(own=(self._rows(state, ids) @ state["answers"],))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        answers = replies.body[0]
        known = state["known"].clone()
        known[replies.ids] = True
        models = with_rows(state["models"], replies.ids, answers)
        return {**state, "models": models, "known": known, "answers": answers, "answered": replies.ids}

    def _rows(self, state: State, ids: Tensor) -> Tensor:
        """A: the weight of each of this round's answers in what these clients are sent."""
        answered, answers = state["answered"], state["answers"]
        if int(answered[0]) < 0:
            return torch.ones(len(ids), 1)
        n = state["n"][answered].double()
        share = (n / n.sum()).log().expand(len(ids), -1)
        if not self.similarity:
            rows: Tensor = share.softmax(1).float()
            return rows
        mean = (n / n.sum()).float() @ answers
        there = F.normalize((answers - mean).double(), dim=1)
        here = F.normalize((state["models"][ids] - mean).double(), dim=1)
        near = (here @ there.T) * state["known"][ids, None]
        mixed: Tensor = (near / self.temperature + share).softmax(1).float()
        return mixed

    # ---- client
    def local(self, client: Client, message: Message) -> Reply:
        received = message.own[0]
        assert isinstance(received, Tensor)
        state: State = {}
        if "own" in self.experts:
            state = {"own": sgd(client, client.state.get("own", client.net.initial))}
        return Reply(state, (sgd(client, received),))

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        reply = trained()
        received = message.own[0]
        assert isinstance(received, Tensor)
        model: dict[str, Tensor] = {"received": received, "tuned": reply.body[0]}
        if "own" in self.experts:
            model["own"] = client.state["own"] if "own" in client.state else reply.state["own"]
        if "neighbors" in self.experts:
            client.net.load(model["tuned"])
            client.net.eval()
            with torch.no_grad():
                model["features"] = torch.cat([client.net.split(x)[0].flatten(1) for x in client.data.x.split(128)])
            model["labels"] = client.data.y
        model["weights"] = self._weights(client, model)
        return model

    def predict(self, client: Client, personal: Model, x: Tensor) -> Tensor:
        if isinstance(personal, Tensor):
            client.net.load(personal)
            return client.net(x)
        return (personal["weights"] @ self._experts(client, personal, x).flatten(1)).view(len(x), -1).clamp(1e-12).log()

    def _experts(self, client: Client, model: dict[str, Tensor], x: Tensor) -> Tensor:
        out: dict[str, Tensor] = {}
        features: Tensor | None = None
        for name in ("own", "received", "tuned"):
            if name in self.experts or (name == "tuned" and "neighbors" in self.experts):
                client.net.load(model[name])
                client.net.eval()
                with torch.no_grad():
                    features, logits = client.net.split(x)
                out[name] = F.softmax(logits, 1)
        if "neighbors" in self.experts:
            assert features is not None
            out["neighbors"] = neighbor_probabilities(
                features.flatten(1), model["features"], model["labels"],
                k=self.k, classes=client.data.classes, scale=self.scale, squared=False,
            )  # fmt: skip
        return torch.stack([out[name] for name in self.experts])

    def _weights(self, client: Client, model: dict[str, Tensor]) -> Tensor:
        x, y = client.data.validation
        count = len(self.experts)
        weights = torch.full((count,), 1 / count)
        if not len(y):
            return weights
        chances = self._experts(client, model, x)[:, torch.arange(len(y)), y].clamp(min=1e-6)
        for _ in range(STEPS):
            share = weights[:, None] * chances
            share = share / share.sum(0)
            weights = (share.sum(1) + self.prior / count) / (len(y) + self.prior)
        return weights

    def mixing(self, state: State) -> Tensor | None:
        size = len(state["n"])
        if int(state["answered"][0]) < 0:
            return torch.full((size, size), 1 / size)
        rows = self._rows(state, torch.arange(size))
        return torch.zeros(size, size).index_add_(1, state["answered"], rows)

    def describe(self, state: State) -> dict[str, Any]:
        return {}
