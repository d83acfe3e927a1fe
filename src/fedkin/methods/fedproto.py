"""FedProto: Federated Prototype Learning across Heterogeneous Clients.
Tan, Long, Liu, Zhou, Lu, Jiang, Zhang. AAAI 2022.

| symbol | here |
|---|---|
| ω_i = (φ_i, ν_i) | client state "model": body and head, which never travel |
| C_i^(j) | mean feature of class j at client i: the reply, with the class counts |
| C̄^(j) | state "prototypes", sent to all |
| λ | lam |
| L_S + λ L_R, L_R = Σ_j d(C_i^(j), C̄^(j)) | the local loss; d is the mean squared difference |

Deviations. Eq. (6) as printed divides twice (by N_j and by the number of clients); here the weights |D_ij| / N_j sum
to 1, or all clients count the same as in the authors' code (`weighting`). L_R compares the class means of each batch
with C̄; their code compares every example with its prototype (`compare="examples"`). The paper calls d the L2 distance,
their code computes the mean squared difference, and so do we: the unsquared norm pulls with the same force however near
the prototypes are, and the features collapsed when we tried it. Eq. (4) predicts the nearest prototype among the
client's classes; `predict_by="head"` uses the client's own head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedkin.bounds import Bound, NonNegative
from fedkin.client.parts import features
from fedkin.client.training import sgd
from fedkin.maths.prototypes import class_means
from fedkin.models.network import Network
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State

CITATION = r"""@inproceedings{tan2022fedproto,
  title = {{FedProto}: Federated Prototype Learning across Heterogeneous Clients},
  author = {Tan, Yue and Long, Guodong and Liu, Lu and Zhou, Tianyi and Lu, Qinghua and Jiang, Jing and Zhang, Chengqi},
  booktitle = {AAAI Conference on Artificial Intelligence},
  year = {2022}
}"""


@dataclass(frozen=True)
class FedProto(Method):
    paper = "Tan et al., AAAI 2022"
    citation = CITATION
    travels = "class prototypes and counts up, prototypes down"
    stays = "model"
    needs_classes = True

    lam: NonNegative = 1.0
    """λ: how strongly local prototypes are held near the global ones; 0 with predict_by="head" is Local."""
    compare: Literal["prototypes", "examples"] = "prototypes"
    """What L_R holds at the prototypes: the class means of a batch (the paper), or every example (authors' code)."""
    predict_by: Literal["prototypes", "head"] = "prototypes"
    """prototypes: the nearest global prototype, eq. (4). head: the client's own head."""
    weighting: Literal["size", "equal"] = "size"
    """size: prototypes weighted by class counts. equal: the plain mean, as in the authors' code."""

    # ---- server
    def init(self, fed: Server) -> State:
        return {"clients": fed.size}  # no prototypes before anybody has answered

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(shared=(state["prototypes"], state["known"]) if "known" in state else ())

    def reply_bounds(self, fed: Server, client: int) -> Mapping[int, Bound]:
        return {1: Bound(least=0, most=int(fed.n[client]))}

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        means, counts = replies.body
        weights = counts if self.weighting == "size" else (counts > 0).float()
        total = weights.sum(0)
        new = torch.einsum("ic,icd->cd", weights, means) / total.clamp(min=1)[:, None]  # eq. (6)
        known = total > 0
        if "known" in state:  # a class of which nobody answered keeps its prototype
            new = torch.where(known[:, None], new, state["prototypes"])
            known = known | state["known"]
        return {**state, "prototypes": new, "known": known}

    # ---- client
    def local(self, client: Client, message: Message) -> Reply:
        start = client.state.get("model", client.net.initial)
        model = sgd(client, start, loss=self._loss(message) if message.shared and self.lam else None)
        z = features(client, model, client.data.x)
        return Reply({"model": model}, class_means(z, client.data.y, client.data.classes))  # eq. (3)

    def _loss(self, message: Message) -> Callable[[Network, Tensor, Tensor], Tensor]:
        prototypes, known = message.shared

        def loss(net: Network, x: Tensor, y: Tensor) -> Tensor:  # eq. (7)
            z, logits = net.split(x)
            z, there = z.flatten(1), known[y]
            if self.compare == "examples":
                apart = F.mse_loss(z[there], prototypes[y[there]], reduction="sum") / z.numel()
            else:
                means, counts = class_means(z, y, len(prototypes))
                inside = (counts > 0) & known
                apart = (means - prototypes)[inside].square().mean(1).sum()  # eq. (8)
            return net.task.loss(logits, y) + self.lam * apart

        return loss

    # ---- use
    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        model = client.state["model"] if "model" in client.state else trained().state["model"]
        if self.predict_by == "head" or not message.shared:
            return {"model": model}
        prototypes, known = message.shared
        mine = known & (torch.bincount(client.data.y, minlength=len(known)) > 0)
        return {"model": model, "prototypes": prototypes, "known": mine if mine.any() else known}

    def received(self, client: Client, message: Message) -> None:
        return None  # no model is sent

    def predict(self, client: Client, personal: Model, x: Tensor) -> Tensor:
        assert isinstance(personal, dict)
        client.net.load(personal["model"])
        if "prototypes" not in personal:
            return client.net(x)
        scores = -torch.cdist(client.net.features(x).flatten(1), personal["prototypes"]).square()  # eq. (4)
        return torch.where(personal["known"], scores, scores.amin(1, keepdim=True) - 10)  # unknown classes come last

    def mixing(self, state: State) -> Tensor:
        return torch.eye(state["clients"])  # models are not mixed
