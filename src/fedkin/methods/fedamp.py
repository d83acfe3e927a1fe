"""FedAMP and HeurFedAMP: Personalized Cross-Silo Federated Learning on Non-IID Data.
Huang, Chu, Zhou, Wang, Liu, Pei, Zhang. AAAI 2021.

| symbol | here |
|---|---|
| w_i | state "models" at the server, state "model" at client i |
| u_i, ξ_ij | what is sent; state "weights" |
| A(x) = 1 − exp(−x/σ) | `peers.attentive` |
| λ, α_k, σ, ξ_ii | lam, alpha, sigma, self_weight |

Deviations: α is constant. If a client's own weight in ξ would be negative, the weights of the others are scaled down
(`clipped` in the history counts these clients). A client never heard gives nothing to others; the last model of an
absent client continues to count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedkin.bounds import Fraction, NonNegative, Positive
from fedkin.client.newcomer import after_one_round
from fedkin.client.training import sgd
from fedkin.maths.graph import cosine
from fedkin.maths.kmeans import gram_of, squared_distances
from fedkin.maths.peers import attentive, heuristic
from fedkin.maths.table import ClientTable, mixed, needed
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State, with_rows

CITATION = r"""@inproceedings{huang2021personalized,
  title = {Personalized Cross-Silo Federated Learning on Non-{IID} Data},
  author = {Huang, Yutao and Chu, Lingyang and Zhou, Zirui and Wang, Lanjun and Liu, Jiangchuan
            and Pei, Jian and Zhang, Yong},
  booktitle = {AAAI Conference on Artificial Intelligence},
  year = {2021}
}"""


@dataclass(frozen=True)
class FedAMP(Method):
    paper = "Huang et al., AAAI 2021"
    citation = CITATION
    travels = "model both ways"
    stays = "model"
    quadratic = "the weights ξ, and compares all clients that have answered in every round."

    heuristic: bool = False
    """HeurFedAMP: weights from the cosines of the models and a fixed own weight, instead of from distances."""
    lam: NonNegative = 1.0
    """λ: how strongly a client is pulled to the received model; the local term is λ/(2α)·‖w − u_i‖²."""
    alpha: Positive = 1.0
    """α: step of the server. A larger value takes more from others and weakens the pull."""
    sigma: NonNegative = 25.0
    """σ. FedAMP: squared distance at which attention decays. It must grow with the size of the model, or every client
    is left alone. HeurFedAMP: sharpness of the softmax of cosines."""
    self_weight: Fraction = 0.0
    """ξ_ii of HeurFedAMP; 0: an equal share, 1/N."""
    start: Literal["cloud", "local"] = "cloud"
    """Start of local training: the received model u_i (cloud), or the client's own w_i (local)."""

    matters = {
        "sigma": {"heuristic": False},
        "self_weight": {"heuristic": True},
        "alpha": {"heuristic": False},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sigma == 0 and not self.heuristic:
            raise ValueError(
                "sigma=0 must be above 0; 0 is allowed only with heuristic=True, where all others count equally."
            )

    # ---- server
    def init(self, fed: Server) -> State:
        return {
            "models": ClientTable(fed.initial(0), fed.size),
            "known": torch.zeros(fed.size, dtype=torch.bool),
            "weights": torch.eye(fed.size),
            "parameters": fed.layout.parameters,
        }

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(own=(mixed(state["weights"][ids], state["models"]),))  # u_i = Σ_j ξ_ij w_j

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        models = with_rows(state["models"], replies.ids, replies.body[0])
        known = state["known"].clone()
        known[replies.ids] = True
        silent = (~known).nonzero().flatten()
        compared = known.index_fill(0, silent[:1], True)  # clients never heard have the same model: one stands for all
        ids = needed(models, compared)
        products, heard = gram_of(models, ids, state["parameters"]), known[ids].numpy()
        if self.heuristic:  # ξ_ij ∝ exp(σ cos(w_i, w_j))
            rows = heuristic(cosine(products), heard, self.sigma, self.self_weight)
        else:  # ξ_ij = α A'(‖w_i − w_j‖²)
            rows = attentive(squared_distances(products), heard, self.alpha, self.sigma)
        weights = _placed(torch.from_numpy(rows).float(), ids, silent, len(known))
        return {**state, "models": models, "known": known, "weights": weights}

    # ---- client
    def local(self, client: Client, message: Message) -> Reply:
        cloud = message.own[0]
        assert isinstance(cloud, Tensor)
        center = cloud[: client.net.layout.parameters]
        start = cloud if self.start == "cloud" else client.state.get("model", client.net.initial)
        strength = self.lam / self.alpha
        proximal = (lambda w: strength * (w - center)) if strength else None
        trained = sgd(client, start, regularizer_gradient=proximal)  # min F_i + λ/(2α)‖w − u_i‖²
        return Reply({"model": trained}, (trained,))

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        model: Tensor = client.state["model"] if "model" in client.state else trained().body[0]
        return model  # w_i

    # ---- newcomers
    def join(self, state: State, client: Client, id: int) -> Message:
        """The mean of all models with the weights that its model would get in its first round."""
        return after_one_round(self, state, client, id)

    # ---- to look at
    def mixing(self, state: State) -> Tensor:
        weights: Tensor = state["weights"]
        return weights

    def describe(self, state: State) -> dict[str, Any]:
        own = state["weights"].diagonal()[state["known"]]
        return {"self_weight": own.mean(), "clipped": int((own < 1e-6).sum())}


def _placed(rows: Tensor, ids: Tensor, silent: Tensor, size: int) -> Tensor:
    """Weights [clients, clients] from those among `ids`; the first of the `silent` clients stands for all of them."""
    if len(ids) == size:
        return rows
    first = ids == silent[0]
    row = torch.zeros(size).index_copy_(0, ids, rows[first][0])
    row[silent[0]] = 0
    out = row.repeat(size, 1)
    out[ids[:, None], ids] = rows
    out[silent, silent] = rows[first, first]
    return out
