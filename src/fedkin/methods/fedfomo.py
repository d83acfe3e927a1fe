"""FedFomo: Personalized Federated Learning with First Order Model Optimization.
Zhang, Sapra, Fidler, Yeung, Alvarez. ICLR 2021.

| symbol | here |
|---|---|
| θ_i | the client's own state "model" |
| w_{i,n} | `weights`: max(0, (L(θ_i) − L(θ_n)) / ‖θ_n − θ_i‖), divided by their sum |
| P, ε | state "affinity", explore: they decide which models a client downloads |
| M | downloads |

Losses are on the client's validation examples; a client without any keeps its own model. ε decreases linearly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.bounds import Bound, Count, Fraction
from fedkin.client.evaluate import evaluate
from fedkin.client.training import sgd
from fedkin.maths.table import ClientTable
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State, ragged, require, with_rows

CITATION = r"""@inproceedings{zhang2021personalized,
  title = {Personalized Federated Learning with First Order Model Optimization},
  author = {Zhang, Michael and Sapra, Karan and Fidler, Sanja and Yeung, Serena and Alvarez, Jose M.},
  booktitle = {International Conference on Learning Representations (ICLR)},
  year = {2021}
}"""


@dataclass(frozen=True)
class FedFomo(Method):
    paper = "Zhang et al., ICLR 2021"
    citation = CITATION
    travels = "down: a few clients' models; up: model, weights"
    stays = "model"
    quadratic = "the affinities P and the weights w."
    needs_validation = "clients weigh models by these losses, so each keeps its own model: this is local training."

    downloads: Count = 5
    """M: number of other clients' models that a client downloads in a round."""
    explore: Fraction = 0.3
    """ε: probability that they are drawn at random instead of by greatest affinity."""
    explore_decay: Fraction = 0.05
    """Decrease of ε per round."""

    matters = {
        "downloads": {"downloads": 1},
        "explore": {"downloads": 1, "explore": 1.0},
        "explore_decay": {"downloads": 1, "explore": 0.7, "explore_decay": 0.5},
    }

    # ---- server
    def init(self, fed: Server) -> State:
        return {
            "models": ClientTable(fed.initial(0), fed.size),
            "known": torch.zeros(fed.size, dtype=torch.bool),
            "affinity": torch.zeros(fed.size, fed.size),
            "weights": torch.eye(fed.size),
            "round": 0,
            "seed": fed.seed,
        }

    def _offered(self, state: State, client: int) -> Tensor:
        """Whose models this client downloads now: a function of the state alone."""
        others = state["known"].clone()
        others[client] = False
        ids = others.nonzero().flatten().numpy()
        rng = np.random.default_rng([state["seed"], state["round"], client, 0xF0])
        chance = max(0.0, self.explore - self.explore_decay * state["round"])
        luck = rng.random(len(ids))  # breaks ties between equal affinities too
        liking = luck if rng.random() < chance else state["affinity"][client, ids].double().numpy()
        return torch.from_numpy(ids[np.lexsort((luck, -liking))][: self.downloads])

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(own=([state["models"][self._offered(state, client)] for client in ids.tolist()],))

    def reply_bounds(self, fed: Server, client: int) -> Mapping[int, Bound]:
        return {1: Bound(least=0, most=1 + 1e-6)}

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        trained, found = replies.body
        counts = [len(self._offered(state, client)) for client in replies.ids.tolist()]
        fits = (
            len(share) == count and len(own) == state["models"].shape[1]
            for share, count, own in zip(found, counts, trained)
        )
        require(replies, fits, "replied with other than a model and a weight for each model that it was sent")
        affinity, weights = state["affinity"].clone(), state["weights"].clone()
        for r, client in enumerate(replies.ids.tolist()):
            offered = self._offered(state, client)
            affinity[client, offered] += found[r]  # P ← P + w
            weights[client] = 0
            weights[client, offered] = found[r]
            weights[client, client] = 1 - found[r].sum()
        known = state["known"].clone()
        known[replies.ids] = True
        return {
            **state, "models": with_rows(state["models"], replies.ids, trained), "known": known, "affinity": affinity,
            "weights": weights, "round": state["round"] + 1,
        }  # fmt: skip

    # ---- client
    @ragged
    def local(self, client: Client, message: Message) -> Reply:
        own: Tensor = client.state.get("model", client.net.initial)
        models = message.own[0]
        assert isinstance(models, Tensor)
        share = weights(client, own, models)
        start = own + share @ (models - own) if len(share) else own  # θ_i + Σ w (θ_n − θ_i)
        trained = sgd(client, start)
        return Reply({"model": trained}, (trained, share))

    def received(self, client: Client, message: Message) -> None:
        return None  # several models are sent, none of them the client's

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        model: Tensor = (client.state if "model" in client.state else trained().state)["model"]
        return model

    # ---- to look at
    def mixing(self, state: State) -> Tensor:
        """Shares in the model that each client last started from."""
        used: Tensor = state["weights"]
        return used

    def describe(self, state: State) -> dict[str, Any]:
        return {"kept": int((state["weights"].diagonal()[state["known"]] == 1).sum())}


def weights(client: Client, own: Tensor, models: Tensor) -> Tensor:
    """First-order gain of moving toward each model, scaled to sum to 1; models that are no better get 0."""
    out = torch.zeros(len(models))
    if not len(client.data.validation.y):
        return out
    count = client.net.layout.parameters
    mine = evaluate(client.net, own, client.data.validation)[1]
    for index, model in enumerate(models):
        apart = float((model - own)[:count].norm())
        if apart > 0:
            out[index] = max(0.0, (mine - evaluate(client.net, model, client.data.validation)[1]) / apart)
    total = out.sum()
    return out / total if total > 0 else out
