"""FedPAC: Personalized Federated Learning with Feature Alignment and Classifier Collaboration.
Xu, Tong, Huang. ICLR 2023.

| symbol | here |
|---|---|
| θ, φ_i | state "body", state "heads" |
| c | state "centroids": mean feature of each class over all clients |
| (1) F_i + λ · mean over examples of ‖f_θ(x) − c_y‖² / d | local loss of the body; λ is lam |
| (2) c_k = Σ_i n_ik ĉ_ik / Σ_i n_ik | centroids, from the clients' ĉ_i after training |
| (3) h_ik = P_i(k) μ_ik, μ_ik the mean feature of class k | statistics on the received body, before training |
| (4) V_i = (Σ_k P_i(k) E‖z‖²_k − Σ_k ‖h_ik‖²) / n_i | variance term |
| (5) min over the simplex of Σ_j α_j² V_j + Σ_k ‖h_ik − Σ_j α_j h_jk‖² | head weights of client i |
| (6) φ_i = Σ_j α_ij φ_j | the head sent to client i |

The numbers are ours. (5) is solved exactly: with P = LᵀL its matrix, the non-negative least squares solution of
‖La‖² + (1ᵀa − 1)², divided by its sum. Deviations: a client that did not answer keeps its head, and one that never
answered gets the mean head; a class without a centroid has no pull (the authors' code pulls it to the client's own).
Weights below 1e-3 are dropped, as in their code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedkin.bounds import Bound, Count, NonNegative
from fedkin.client.parts import features, sgd_except
from fedkin.client.steps import joined
from fedkin.maths.collaboration import head_weights
from fedkin.maths.mixing import averaged, same_for_all
from fedkin.maths.prototypes import class_means
from fedkin.models.network import Network
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State, with_rows

CITATION = r"""@inproceedings{xu2023personalized,
  title = {Personalized Federated Learning with Feature Alignment and Classifier Collaboration},
  author = {Xu, Jian and Tong, Xinyi and Huang, Shao-Lun},
  booktitle = {International Conference on Learning Representations (ICLR)},
  year = {2023}
}"""


@dataclass(frozen=True)
class FedPAC(Method):
    paper = "Xu et al., ICLR 2023"
    citation = CITATION
    travels = "body, head and class means both ways; class counts and a variance up"
    stays = "nothing"
    quadratic = "the weights α."
    needs_classes = True

    lam: NonNegative = 1.0
    """λ: how strongly features are held near the global centroids; 0: no alignment."""
    collaborate: bool = True
    """Combine heads by (5). False: each client keeps its own; with lam = 0 that is FedRep."""
    head_epochs: Count = 1
    """Epochs of the head in a round, the body held; the body then takes the run's epochs."""
    head_lr: NonNegative = 0.0
    """Learning rate of the head; 0: the run's. The paper uses 0.1, with 0.01 for the body."""
    use: Literal["received", "trained"] = "received"
    """What a client uses: averaged body and combined head as received, or the model after its training in the round."""

    # ---- server
    def init(self, fed: Server) -> State:
        head = fed.initial(0)[fed.layout.head]
        return {
            "body": fed.initial(0)[fed.layout.body],
            "share": fed.equal_shares(),
            "heads": head.repeat(fed.size, 1),
            "head": head,
            "known": torch.zeros(fed.size, dtype=torch.bool),
            "alpha": torch.eye(fed.size),
        }

    def send(self, state: State, ids: Tensor) -> Message:
        heads = torch.where(state["known"][ids][:, None], state["heads"][ids], state["head"])
        centroids = (state["centroids"], state["has"]) if "has" in state else ()
        return Message(shared=(state["body"], *centroids), own=(heads,))

    def reply_bounds(self, fed: Server, client: int) -> Mapping[int, Bound]:
        return {3: Bound(least=0, most=int(fed.n[client])), 5: Bound(least=0)}

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        bodies, heads, means, counts, h, variance = replies.body
        total = counts.sum(0)
        centroids, has = torch.einsum("ic,icd->cd", counts, means) / total.clamp(min=1)[:, None], total > 0  # (2)
        if "has" in state:
            centroids, has = torch.where(has[:, None], centroids, state["centroids"]), has | state["has"]
        mixed = torch.eye(len(heads))
        if self.collaborate:
            mixed = torch.from_numpy(head_weights(h.flatten(1).double().numpy(), variance.double().numpy())).float()
        alpha = with_rows(state["alpha"], replies.ids, torch.zeros(len(heads), len(state["alpha"])))
        alpha[replies.ids[:, None], replies.ids] = mixed
        known = state["known"].clone()
        known[replies.ids] = True
        return {
            **averaged(len(state["share"]), replies.ids, replies.weights, body=bodies, head=heads),
            "heads": with_rows(state["heads"], replies.ids, mixed @ heads),  # (6)
            "known": known,
            "alpha": alpha,
            "centroids": centroids,
            "has": has,
        }

    # ---- client
    def local(self, client: Client, message: Message) -> Reply:
        data, layout = client.data, client.net.layout
        start = self.received(client, message)
        z = features(client, start, data.x)
        means, counts = class_means(z, data.y, data.classes)
        h = means * (counts / len(z))[:, None]  # (3)
        variance = (z.square().sum(1).mean() - h.square().sum()).clamp(min=0) / len(z)  # (4)
        with_head = sgd_except(client, start, layout.body, epochs=self.head_epochs, lr=self.head_lr or None)
        loss = self._aligned(message) if len(message.shared) > 1 and self.lam else None
        model = sgd_except(client, with_head, layout.head, loss=loss, first_epoch=self.head_epochs)
        means, counts = class_means(features(client, model, data.x), data.y, data.classes)
        return Reply({}, (model[layout.body], model[layout.head], means, counts, h, variance))

    def _aligned(self, message: Message) -> Callable[[Network, Tensor, Tensor], Tensor]:
        _, centroids, has = message.shared

        def loss(net: Network, x: Tensor, y: Tensor) -> Tensor:  # (1)
            z, logits = net.split(x)
            apart = (z.flatten(1) - centroids[y]).square().mean(1) * has[y]
            return net.task.loss(logits, y) + self.lam * apart.mean()

        return loss

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        if self.use == "received":
            return self.received(client, message)
        layout, body = client.net.layout, trained().body
        return joined(layout.size, (layout.body, body[0]), (layout.head, body[1]))

    def received(self, client: Client, message: Message) -> Tensor:
        layout, head = client.net.layout, message.own[0]
        assert isinstance(head, Tensor)
        return joined(layout.size, (layout.body, message.shared[0]), (layout.head, head))

    def mixing(self, state: State) -> dict[str, Tensor]:
        return {"body": same_for_all(state["share"]), "head": state["alpha"]}
