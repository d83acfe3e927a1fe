"""kin: our own method, in which nobody loses.

The server offers each client two models: the mean of this round's models, and a mixture in which its kin count more.
The client takes the one that fits its validation examples better, trains it and sends it back. It also trains a
model of its own that never leaves. It predicts with a mixture of experts whose weights it learns on its validation
examples, so that whatever does not help this client gets no weight.

| symbol | here |
|---|---|
| w_i, w̄ | the reply of client i and the mean of this round's; state "models" keeps the last reply of each client |
| A_ji = softmax_i(s_ji / T + log n_i) | the weight of client i in what client j is offered |
| s_ji | cos(w_j − w̄, w_i − w̄); for i = j the largest of the others: a client is not its own kin |
| T | temperature |
| p_e(y given x) | an expert: see `EXPERTS` |
| π | weights of the experts: EM on the validation examples from a Dirichlet prior of `prior` counts in all |

Reductions: relation="mean", experts=("received",) is FedAvg; experts=("own",) is Local.
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
from fedkin.maths.mixing import averaged, same_for_all
from fedkin.maths.neighbors import neighbor_probabilities
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State, with_rows

Expert = Literal["own", "received", "adjusted", "tuned", "neighbors"]
EXPERTS: tuple[Expert, ...] = ("own", "received", "adjusted", "tuned", "neighbors")
"""own: the private model. received: the model that came from the server. adjusted: the same, with its probabilities
multiplied by the client's class shares. tuned: the received model after training here. neighbors: the nearest training
examples in the tuned model's features."""
STEPS = 100  # of EM


@dataclass(frozen=True)
class Kin(Method):
    travels = "two models down; one up, and which of the two it came from"
    stays = "a private model"
    needs_classes = True

    experts: tuple[Expert, ...] = EXPERTS
    """Which experts predict."""
    relation: Literal["chosen", "kin", "mean"] = "chosen"
    """The model that a client trains. chosen: the one of the two with the lower validation loss. kin: always the
    mixture of its kin. mean: always FedAvg's mean. With kin or mean one model travels each way."""
    temperature: Positive = 0.3
    """T: the larger, the more even the mixture."""
    prior: NonNegative = 4.0
    """Dirichlet counts of all experts together: how many validation examples it takes to move their weights."""
    k: Count = 10
    """Neighbors that vote; all training examples where there are fewer."""
    scale: Positive = 1.0
    """Neighbors have the weight exp(−distance / scale)."""

    matters = {"experts": {"experts": ("received",)}, "temperature": {"relation": "kin"}}

    # ---- server
    def init(self, fed: Server) -> State:
        start = fed.initial(0)
        return {
            "mean": start, "share": fed.equal_shares(), "models": start.repeat(fed.size, 1),
            "known": torch.zeros(fed.size, dtype=torch.bool), "took_kin": torch.zeros(fed.size, dtype=torch.bool),
        }  # fmt: skip

    def send(self, state: State, ids: Tensor) -> Message:
        mean, kin = (state["mean"],), (self._weights_of(state, ids) @ state["models"],)
        return Message(shared=mean if self.relation != "kin" else (), own=kin if self.relation != "mean" else ())

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        known, took_kin = state["known"].clone(), state["took_kin"].clone()
        known[replies.ids], took_kin[replies.ids] = True, replies.body[1].flatten() > 0.5
        return {
            **averaged(len(known), replies.ids, replies.weights, mean=replies.body[0]),
            "models": with_rows(state["models"], replies.ids, replies.body[0]), "known": known, "took_kin": took_kin,
        }  # fmt: skip

    def _weights_of(self, state: State, ids: Tensor) -> Tensor:
        """Rows of A: the weight of each client's last reply in what these clients are offered. Only replies of the last
        round count, so that nothing stale is mixed in."""
        share = state["share"].double()
        directions = F.normalize((state["models"] - state["mean"]).double(), dim=1)
        near = directions[ids] @ directions.T
        itself = ids[:, None] == torch.arange(len(share))
        closest = near.masked_fill(itself | (share == 0), -1).max(1, keepdim=True).values
        near = torch.where(itself, closest, near)
        near = near * state["known"][ids, None]  # nobody knows the kin of a client that never replied
        rows: Tensor = (near / self.temperature + share.log()).softmax(1).float()
        return rows

    # ---- client
    def local(self, client: Client, message: Message) -> Reply:
        state = {"own": sgd(client, client.state.get("own", client.net.initial))} if "own" in self.experts else {}
        start = self.received(client, message)
        took_kin = not any(start is model for model in message.shared)
        return Reply(state, (sgd(client, start), torch.tensor([float(took_kin)])))

    def received(self, client: Client, message: Message) -> Tensor:
        """The offered model that fits better."""
        offered = [*message.shared, *(part for part in message.own if isinstance(part, Tensor))]
        if len(offered) == 1:
            return offered[0]
        x, y = client.data.validation if len(client.data.validation.y) else client.data.train
        losses = [float(F.cross_entropy(_outputs(client, model, x)[1], y)) for model in offered]
        return offered[losses.index(min(losses))]

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        reply = trained()
        model: dict[str, Tensor] = {"received": self.received(client, message), "tuned": reply.body[0]}
        if "own" in self.experts:
            model["own"] = client.state["own"] if "own" in client.state else reply.state["own"]
        if "adjusted" in self.experts:
            counts = torch.bincount(client.data.y, minlength=client.data.classes) + 0.5
            model["shares"] = counts / counts.sum()
        if "neighbors" in self.experts:
            model["features"], model["labels"] = _outputs(client, model["tuned"], client.data.x)[0], client.data.y
        model["weights"] = self._expert_weights(client, model)
        return model

    def predict(self, client: Client, personal: Model, x: Tensor) -> Tensor:
        if isinstance(personal, Tensor):
            client.net.load(personal)
            return client.net(x)
        return torch.einsum("e,enc->nc", personal["weights"], self._experts(client, personal, x)).clamp(1e-12).log()

    def _experts(self, client: Client, model: dict[str, Tensor], x: Tensor) -> Tensor:
        """Probabilities [experts, examples, classes]."""
        out: dict[str, Tensor] = {}
        for name in ("own", "received", "tuned"):
            if name in model:
                features, logits = _outputs(client, model[name], x)
                out[name] = logits.softmax(1)
        if "adjusted" in self.experts:
            weighted = out["received"] * model["shares"]
            out["adjusted"] = weighted / weighted.sum(1, keepdim=True)
        if "neighbors" in self.experts:  # features are the tuned model's, which came last
            out["neighbors"] = neighbor_probabilities(
                features, model["features"], model["labels"],
                k=self.k, classes=client.data.classes, scale=self.scale, squared=False,
            )  # fmt: skip
        return torch.stack([out[name] for name in self.experts])

    def _expert_weights(self, client: Client, model: dict[str, Tensor]) -> Tensor:
        """EM for the weights of a mixture: each validation example is divided among the experts, the prior is added."""
        x, y = client.data.validation
        count = len(self.experts)
        weights = torch.full((count,), 1 / count)
        if not len(y):
            return weights
        right = self._experts(client, model, x)[:, torch.arange(len(y)), y].clamp(min=1e-6)
        for _ in range(STEPS):
            parts = weights[:, None] * right
            weights = ((parts / parts.sum(0)).sum(1) + self.prior / count) / (len(y) + self.prior)
        return weights

    # ---- to look at
    def describe_personal(self, personal: Model) -> dict[str, float]:
        assert isinstance(personal, dict)
        return {f"weight_{name}": float(weight) for name, weight in zip(self.experts, personal["weights"])}

    def mixing(self, state: State) -> Tensor:
        """What each client would receive if it took the same of the two as last time."""
        rows = self._weights_of(state, torch.arange(len(state["share"])))
        return torch.where(state["took_kin"][:, None], rows, same_for_all(state["share"]))

    def describe(self, state: State) -> dict[str, Any]:
        return {"took_kin": state["took_kin"][state["known"]].float().mean().item()} if state["known"].any() else {}


@torch.no_grad()
def _outputs(client: Client, model: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Features and logits of a model."""
    client.net.load(model)
    client.net.eval()
    parts = [client.net.split(part) for part in x.split(256)]
    return torch.cat([part[0].flatten(1) for part in parts]), torch.cat([part[1] for part in parts])
