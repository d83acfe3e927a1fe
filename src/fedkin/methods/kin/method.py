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
| p_e(y given x) | an expert: see `EXPERTS` in experts.py |
| π | weights of the experts: EM on the validation examples from a Dirichlet prior of `prior` counts in all |

Reductions: relation="mean", experts=("received",) is FedAvg; experts=("own",) is Local.

Beside this file: relation.py (A), experts.py (p_e and π).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedkin.bounds import Bound, Count, NonNegative, Positive
from fedkin.client.training import sgd
from fedkin.maths.mixing import averaged, same_for_all
from fedkin.maths.table import ClientTable, mixed
from fedkin.methods.kin.experts import EXPERTS, Expert, expert_probabilities, mixture_weights, outputs
from fedkin.methods.kin.relation import kin_weights
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State, with_rows


@dataclass(frozen=True)
class Kin(Method):
    travels = "two models down; one up, and which of the two it came from"
    stays = "a private model"
    needs_classes = True
    needs_validation = "experts are weighed on them, so all have the same weight."

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

    @property
    def model_holds(self) -> str:
        return "features and labels of training examples" if "neighbors" in self.experts else ""

    # ---- server
    def init(self, fed: Server) -> State:
        start = fed.initial(0)
        return {
            "mean": start, "share": fed.equal_shares(), "models": ClientTable(start, fed.size),
            "known": torch.zeros(fed.size, dtype=torch.bool), "took_kin": torch.zeros(fed.size, dtype=torch.bool),
        }  # fmt: skip

    def send(self, state: State, ids: Tensor) -> Message:
        mean, kin = (state["mean"],), (mixed(self._weights_of(state, ids), state["models"]),)
        return Message(shared=mean if self.relation != "kin" else (), own=kin if self.relation != "mean" else ())

    def reply_bounds(self, fed: Server, client: int) -> Mapping[int, Bound]:
        return {1: Bound(least=0, most=1)}

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        known, took_kin = state["known"].clone(), state["took_kin"].clone()
        known[replies.ids], took_kin[replies.ids] = True, replies.body[1].flatten() > 0.5
        return {
            **averaged(len(known), replies.ids, replies.weights, mean=replies.body[0]),
            "models": with_rows(state["models"], replies.ids, replies.body[0]), "known": known, "took_kin": took_kin,
        }  # fmt: skip

    def _weights_of(self, state: State, ids: Tensor) -> Tensor:
        """Rows of A: the weight of each client's last reply in what these clients are offered."""
        return kin_weights(state, ids, self.temperature)

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
        losses = [float(F.cross_entropy(outputs(client, model, x)[1], y)) for model in offered]
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
            model["features"], model["labels"] = outputs(client, model["tuned"], client.data.x)[0], client.data.y
        model["weights"] = self._expert_weights(client, model)
        return model

    def predict(self, client: Client, personal: Model, x: Tensor) -> Tensor:
        if isinstance(personal, Tensor):
            client.net.load(personal)
            return client.net(x)
        return torch.einsum("e,enc->nc", personal["weights"], self._experts(client, personal, x)).clamp(1e-12).log()

    def _experts(self, client: Client, model: dict[str, Tensor], x: Tensor) -> Tensor:
        """Probabilities [experts, examples, classes]."""
        return expert_probabilities(client, model, x, self.experts, k=self.k, scale=self.scale)

    def _expert_weights(self, client: Client, model: dict[str, Tensor]) -> Tensor:
        """π: learned on the validation examples; equal where there are none."""
        x, y = client.data.validation
        if not len(y):
            return torch.full((len(self.experts),), 1 / len(self.experts))
        return mixture_weights(self._experts(client, model, x)[:, torch.arange(len(y)), y], self.prior)

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
