"""Clustered Sampling: Low-Variance and Improved Representativity for Clients Selection in Federated Learning.
Fraboni, Vidal, Kameni, Lorenzi. ICML 2021.

| symbol | here |
|---|---|
| m, W_k, r_{k,i} | number of clients drawn; the urns; their rows |
| p_i | fed.n of the clients present, divided by their sum |
| θ^{t+1} = (1/m) Σ_k θ_{l_k} | merge: the plain mean; a client drawn twice counts twice |
| G_i | state "updates": θ_i − θ of the client's last round, 0 before |

`clustered-sampling` is algorithm 1 (urns by size), `clustered-sampling-2` algorithm 2 (urns by similarity).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedkin.bounds import NonNegative
from fedkin.client.training import sgd
from fedkin.maths.mixing import averaged, same_for_all
from fedkin.methods.clustered_sampling.urns import by_similarity, by_size, distances
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State, round_half_up

CITATION = r"""@inproceedings{fraboni2021clustered,
  title = {Clustered Sampling: Low-Variance and Improved Representativity for Clients Selection in Federated Learning},
  author = {Fraboni, Yann and Vidal, Richard and Kameni, Laetitia and Lorenzi, Marco},
  booktitle = {International Conference on Machine Learning (ICML)},
  year = {2021}
}"""


@dataclass(frozen=True)
class ClusteredSampling(Method):
    paper = "Fraboni et al., ICML 2021"
    citation = CITATION
    travels = "model both ways"
    stays = "nothing"

    urns: Literal["size", "similarity"] = "size"
    """How clients are put into urns. size: by number of examples (algorithm 1). similarity: clients with similar
    updates together (algorithm 2)."""
    distance: Literal["arccos", "L1", "L2"] = "arccos"
    """Distance between updates in algorithm 2."""
    mu: NonNegative = 0.0
    """Strength of FedProx's proximal term; 0: FedAvg."""

    matters = {"distance": {"urns": "similarity"}}

    # ---- server
    def init(self, fed: Server) -> State:
        state: State = {"model": fed.initial(0), "share": fed.equal_shares()}
        if self.urns == "similarity":
            state["updates"] = torch.zeros(fed.size, fed.layout.parameters)
        return state

    def select(self, state: State, fed: Server, round: int) -> Tensor:
        count = max(1, round_half_up(fed.participation * len(fed.ids)))
        n = fed.n[fed.ids].double().numpy()
        weights = n / n.sum()
        if self.urns == "size":
            urns = by_size(weights, count)
        else:
            urns = by_similarity(weights, count, distances(state["updates"][fed.ids], self.distance))
        rng = fed.rng(round, 0xC5)
        drawn = sorted(int(rng.choice(len(weights), p=urn)) for urn in urns)
        return fed.ids[torch.tensor(drawn)]

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(shared=(state["model"],))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        trained: Tensor = replies.body[0]
        new: State = averaged(len(state["share"]), replies.ids, replies.weights_by("equal"), model=trained)
        if self.urns == "similarity":
            updates = state["updates"].clone()
            updates[replies.ids] = (trained - sent.shared[0])[:, : updates.shape[1]]
            new["updates"] = updates
        return new

    # ---- client
    def local(self, client: Client, message: Message) -> Reply:
        start = message.shared[0]
        anchor = start[: client.net.layout.parameters]
        proximal = (lambda w: self.mu * (w - anchor)) if self.mu else None
        return Reply({}, (sgd(client, start, regularizer_gradient=proximal),))

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        return message.shared[0]

    # ---- to look at
    def mixing(self, state: State) -> Tensor:
        return same_for_all(state["share"])

    def describe(self, state: State) -> dict[str, Any]:
        return {"distinct": int((state["share"] > 0).sum())}
