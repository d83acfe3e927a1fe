"""FedAMP and HeurFedAMP: Personalized Cross-Silo Federated Learning on Non-IID Data.
Huang, Chu, Zhou, Wang, Liu, Pei, Zhang. AAAI 2021.

| symbol | here |
|---|---|
| w_i | state "models" at the server, state "model" at client i |
| u_i, ξ_ij | what is sent; state "weights", among the clients in "compared" |
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
from fedkin.maths.table import ClientTable, Table, mixed, needed
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
    quadratic = "the weights ξ between clients that have answered, and compares all of them in every round."

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
        models, known = ClientTable(fed.initial(0), fed.size), torch.zeros(fed.size, dtype=torch.bool)
        compared = _compared(models, known)
        return {
            "models": models,
            "known": known,
            "compared": compared,
            "weights": torch.eye(len(compared)),
            "parameters": fed.layout.parameters,
        }

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(own=(mixed(_weights_of(state, ids), state["models"]),))  # u_i = Σ_j ξ_ij w_j

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        models = with_rows(state["models"], replies.ids, replies.body[0])
        known = state["known"].clone()
        known[replies.ids] = True
        ids = _compared(models, known)
        products, heard = gram_of(models, ids, state["parameters"]), known[ids].numpy()
        if self.heuristic:  # ξ_ij ∝ exp(σ cos(w_i, w_j))
            weights = heuristic(cosine(products), heard, self.sigma, self.self_weight)
        else:  # ξ_ij = α A'(‖w_i − w_j‖²)
            weights = attentive(squared_distances(products), heard, self.alpha, self.sigma)
        new = {"models": models, "known": known, "compared": ids, "weights": torch.from_numpy(weights).float()}
        return {**state, **new}

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
        return _weights_of(state, torch.arange(len(state["known"])))

    def describe(self, state: State) -> dict[str, Any]:
        compared = state.get("compared", torch.arange(len(state["known"])))
        own = state["weights"].diagonal()[state["known"][compared]]
        return {"self_weight": own.mean(), "clipped": int((own < 1e-6).sum())}


def _compared(models: Table, known: Tensor) -> Tensor:
    """Clients between which weights are kept: all, or those heard and, since clients never heard have the same model,
    one that stands for all others."""
    return needed(models, known.index_fill(0, (~known).nonzero().flatten()[:1], True))


def _weights_of(state: State, ids: Tensor) -> Tensor:
    """ξ of these clients [ids, clients]."""
    known, rows = state["known"], state["weights"]
    compared = state.get("compared", torch.arange(len(known)))
    if len(compared) == len(known):
        return torch.as_tensor(rows[ids])
    silent, stand_in = ~known[ids], compared[~known[compared]][:1]
    at = torch.searchsorted(compared, torch.where(silent, stand_in if len(stand_in) else compared[:1], ids))
    out = torch.zeros(len(ids), len(known)).index_copy_(1, compared, rows[at])
    own = out[silent, stand_in] if len(stand_in) else 1.0  # 1: a newcomer where all others were heard
    out[silent] = torch.where(known, out[silent], 0) if len(stand_in) else 0.0
    out[silent, ids[silent]] = own
    return out
