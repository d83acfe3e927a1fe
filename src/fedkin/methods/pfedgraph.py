"""pFedGraph: Personalized Federated Learning with Inferred Collaboration Graphs.
Ye, Ni, Wu, Chen, Wang. ICML 2023.

| symbol | here |
|---|---|
| A, row i | state "graph": min over the simplex of λ_g ‖a − p‖² − Σ_j a_j cos(Δ_i, Δ_j) |
| p_j, Δ_j | client j's share of all examples; w_j minus the initial model |
| θ̃_i = Σ_j a_ij w_j | what is sent to client i |
| λ_g (alpha in the code), λ | graph_lam, lam |

Row i is the projection of p + cos/(2λ_g) onto the simplex. Clients minimize F_i(w) − λ cos(w, θ̃_i); the authors' code
adds + λ cos, which pushes away from θ̃_i: `official_sign`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedkin.bounds import NonNegative, Positive
from fedkin.client.newcomer import after_one_round
from fedkin.client.training import sgd
from fedkin.maths.graph import cosine
from fedkin.maths.kmeans import gram_of
from fedkin.maths.peers import on_simplex
from fedkin.maths.table import ClientTable, mixed
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State, with_rows

ALIKE = 0.9  # from the authors' code: cosines above this count as 1


CITATION = r"""@inproceedings{ye2023personalized,
  title = {Personalized Federated Learning with Inferred Collaboration Graphs},
  author = {Ye, Rui and Ni, Zhenyang and Wu, Fangzhao and Chen, Siheng and Wang, Yanfeng},
  booktitle = {International Conference on Machine Learning (ICML)},
  year = {2023}
}"""


@dataclass(frozen=True)
class PFedGraph(Method):
    paper = "Ye et al., ICML 2023"
    citation = CITATION
    travels = "model both ways"
    stays = "nothing"
    quadratic = "the graph, and compares all clients that have answered in every round."

    graph_lam: Positive = 0.8
    """λ_g: how close the rows of the graph stay to p. A large value gives FedAvg, a small one Local."""
    lam: NonNegative = 0.01
    """λ: weight of the cosine to the received model in local training."""
    official_sign: bool = False
    """Use the sign of the cosine in the authors' code."""

    matters = {"official_sign": {"lam": 1.0}, "lam": {"lam": 1.0}}

    # ---- server
    def init(self, fed: Server) -> State:
        return {
            "models": ClientTable(fed.initial(0), fed.size),
            "initial": fed.initial(0),
            "known": torch.zeros(fed.size, dtype=torch.bool),
            "graph": torch.eye(fed.size),
            "n": fed.n,
            "parameters": fed.layout.parameters,
        }

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(own=(mixed(state["graph"][ids], state["models"]),))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        models = with_rows(state["models"], replies.ids, replies.body[0])
        known = state["known"].clone()
        known[replies.ids] = True
        ids = known.nonzero().flatten()
        count = state["parameters"]
        similarity = cosine(gram_of(models, ids, count, minus=state["initial"]))
        similarity[similarity > ALIKE] = 1
        share = state["n"][ids].double().numpy()
        share = share / share.sum()
        rows = on_simplex(share + similarity / (2 * self.graph_lam))  # row i of the graph
        graph = torch.zeros_like(state["graph"])
        graph[:, ids] = torch.from_numpy(share).float()  # a client never heard gets the mean of those heard
        graph[ids[:, None], ids] = torch.from_numpy(np.ascontiguousarray(rows)).float()
        return {**state, "models": models, "known": known, "graph": graph}

    # ---- client
    def local(self, client: Client, message: Message) -> Reply:
        start = message.own[0]
        assert isinstance(start, Tensor)
        center = start[: client.net.layout.parameters]
        strength = self.lam if self.official_sign else -self.lam

        def regularizer_gradient(w: Tensor) -> Tensor:
            lengths = (w.norm() * center.norm()).clamp(min=1e-12)
            along = (w @ center) / lengths
            slope: Tensor = center / lengths - along * w / w.square().sum().clamp(min=1e-12)
            return strength * slope

        return Reply({}, (sgd(client, start, regularizer_gradient=regularizer_gradient if self.lam else None),))

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        return trained().body[0]

    # ---- newcomers
    def join(self, state: State, client: Client, id: int) -> Message:
        """The mean of all models with the row of the graph that its model would get in its first round."""
        return after_one_round(self, state, client, id)

    # ---- to look at
    def mixing(self, state: State) -> Tensor:
        graph: Tensor = state["graph"]
        return graph
