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

The paper's network has a projection head before its last layer; z is the input of that last layer. Here z is the input
of the given model's last layer, so a model with a projection head is treated as in the paper. The received and previous
models do not change in a round, so their features are computed once, in evaluation mode and without gradient. A client
without a previous model uses the common initial one and does not keep it. In round 1 that is the received model, so
l_con = log 2 and has no gradient (the authors' code has no l_con in round 1).
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
from fedkin.maths.mixing import averaged, same_for_all
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
    """μ: weight of the contrastive loss; 0 is FedAvg. The paper tunes it in {0.1, 1, 5, 10}."""
    temperature: Positive = 0.5
    """τ: divides the cosines; a lower value makes the contrast sharper."""
    buffer: Count = 1
    """Number of previous models that a client pushes its features away from."""

    matters = {"buffer": {"mu": 5.0, "settings": {"participation": 1.0}}}

    averages = "size"

    def init(self, fed: Server) -> State:
        return {"model": fed.initial(0), "share": fed.equal_shares()}

    def warnings(self, fed: Server, rounds: int) -> list[str]:
        return (
            ["MOON's contrast has a gradient only from a client's second round on. Use at least 2 rounds."]
            if rounds < 2
            else []
        )

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(shared=(state["model"],))

    def local(self, client: Client, message: Message) -> Reply:
        received, examples = message.shared[0], client.data.train
        kept: Tensor = client.state.get("previous", received[None][:0])
        previous = kept if len(kept) else client.net.initial[None]
        others = torch.stack([features(client.net, model, examples.x) for model in (received, *previous)])

        def loss(net: Network, x: Tensor, indices: Tensor) -> Tensor:
            z, logits = net.split(x)
            away = contrast(z.flatten(1), others[:, indices], self.temperature)
            return F.cross_entropy(logits, examples.y[indices]) + self.mu * away  # eq. (4)

        # Batches carry indices instead of labels, so that each example finds its features again.
        numbered = Data(
            lambda: Examples(examples.x, torch.arange(len(examples.y))),
            lambda: client.data.validation,
            client.data.classes,
        )
        trained = sgd(client._replace(data=numbered), received, loss=loss)
        return Reply({"previous": torch.cat([trained[None], kept])[: self.buffer]}, (trained,))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        return averaged(len(state["share"]), replies.ids, replies.weights, model=replies.body[0])

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        return message.shared[0]

    def mixing(self, state: State) -> Tensor:
        return same_for_all(state["share"])


def contrast(z: Tensor, others: Tensor, temperature: float) -> Tensor:
    """l_con: z [examples, d] should be near others[0] (received) and away from others[1:] (previous). eq. (3)"""
    cosines = F.cosine_similarity(z[None], others, dim=2).T / temperature
    return F.cross_entropy(cosines, torch.zeros(len(z), dtype=torch.long))


@torch.no_grad()
def features(net: Network, model: Tensor, x: Tensor) -> Tensor:
    net.load(model)
    net.eval()
    return torch.cat([net.features(part).flatten(1) for part in x.split(EVALUATION_BATCH)])
