"""MOON: Model-Contrastive Federated Learning.
Li, He, Song. CVPR 2021.

| symbol | here |
|---|---|
| w^t | state "model" |
| w_i^{t-1}, ... | state "previous" of client i, newest first |
| z, z_glob, z_prev | features (the input of the last layer) of the local, received and previous models |
| l_con | contrast |
| μ | mu |
| τ | temperature |

The paper's network has a projection head before its last layer; z is what enters that layer. Here z is what enters the
last layer of the model that was given: a model with a projection head has it there too. The received and the previous
models do not change in a round, so their features are computed once, in evaluation mode and without gradient. A client
without a previous model takes the common initial one, and does not keep it; in round 1 that is the received model,
l_con = log 2 and its gradient is zero (the authors' code has no l_con in round 1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedkin.bounds import Count, NonNegative, Positive
from fedkin.client.evaluate import EVALUATION_BATCH
from fedkin.client.training import sgd
from fedkin.maths.mixing import average, shares
from fedkin.models.network import Network
from fedkin.protocol import Client, Data, Examples, Message, Method, Model, Replies, Reply, Server, State

CITATION = r"""@inproceedings{li2021model,
  title = {Model-Contrastive Federated Learning},
  author = {Li, Qinbin and He, Bingsheng and Song, Dawn},
  booktitle = {IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR)},
  year = {2021}
}"""


@dataclass(frozen=True)
class MOON(Method):
    paper = "Li et al., CVPR 2021"
    citation = CITATION
    travels = "model both ways"
    stays = "previous models"
    needs_classes = True

    mu: NonNegative = 1.0
    """Weight of the contrastive loss; 0 is FedAvg. The paper tunes it in {0.1, 1, 5, 10}."""
    temperature: Positive = 0.5
    """Divides the cosines; lower: a sharper contrast."""
    buffer: Count = 1
    """How many of its previous models a client holds its features away from."""

    matters = {"buffer": {"mu": 5.0, "settings": {"participation": 1.0}}}

    def init(self, fed: Server) -> State:
        return {"model": fed.initial(0), "share": fed.equal_shares()}

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(shared=(state["model"],))

    def local(self, client: Client, message: Message) -> Reply:
        received, rows = message.shared[0], client.data.train
        kept: Tensor = client.state.get("previous", received[None][:0])
        previous = kept if len(kept) else client.net.initial[None]
        others = torch.stack([features(client.net, model, rows.x) for model in (received, *previous)])

        def loss(net: Network, x: Tensor, places: Tensor) -> Tensor:
            z, logits = net.split(x)
            away = contrast(z.flatten(1), others[:, places], self.temperature)
            return F.cross_entropy(logits, rows.y[places]) + self.mu * away  # eq. (4)

        # Batches name places instead of labels, so that each row finds its features again.
        numbered = Data(
            lambda: Examples(rows.x, torch.arange(len(rows.y))), lambda: client.data.validation, client.data.classes
        )
        trained = sgd(client._replace(data=numbered), received, loss=loss)
        return Reply({"previous": torch.cat([trained[None], kept])[: self.buffer]}, (trained,))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        return {
            "model": average(replies.body[0], replies.weights),
            "share": shares(len(state["share"]), replies.ids, replies.weights),
        }

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        return message.shared[0]

    def mixing(self, state: State) -> Tensor:
        share: Tensor = state["share"]
        return share.expand(len(share), -1)


def contrast(z: Tensor, others: Tensor, temperature: float) -> Tensor:
    """l_con: z [rows, d] should be near others[0] (received) and away from others[1:] (previous). eq. (3)"""
    cosines = F.cosine_similarity(z[None], others, dim=2).T / temperature
    return F.cross_entropy(cosines, torch.zeros(len(z), dtype=torch.long))


@torch.no_grad()
def features(net: Network, model: Tensor, x: Tensor) -> Tensor:
    net.load(model)
    net.eval()
    return torch.cat([net.features(part).flatten(1) for part in x.split(EVALUATION_BATCH)])
