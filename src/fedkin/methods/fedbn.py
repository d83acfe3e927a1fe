"""FedBN: Federated Learning on Non-IID Features via Local Batch Normalization.
Li, Jiang, Zhang, Kamp, Dou. ICLR 2021.

| symbol | here |
|---|---|
| w | state "model": the whole initial model; after round 1 what is shared |
| BN layers (γ, β, running mean and variance) | state "norms" of client i |

Clients find their batch norm layers by module type; the server never needs to know them. The first message is the
common initial model with batch norm, later ones are without. For a model without batch norm this is FedAvg.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedkin.client.training import sgd
from fedkin.maths.mixing import averaged, same_for_all
from fedkin.models.network import Network
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State


def _small(shape: tuple[int, ...], classes: int) -> nn.Module:
    size = math.prod(shape)
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(size), nn.Linear(size, classes))


CITATION = r"""@inproceedings{li2021fedbn,
  title = {{FedBN}: Federated Learning on Non-{IID} Features via Local Batch Normalization},
  author = {Li, Xiaoxiao and Jiang, Meirui and Zhang, Xiaofei and Kamp, Michael and Dou, Qi},
  booktitle = {International Conference on Learning Representations (ICLR)},
  year = {2021}
}"""


@dataclass(frozen=True)
class FedBN(Method):
    paper = "Li et al., ICLR 2021"
    citation = CITATION
    travels = "all but batch norm both ways"
    stays = "batch norm"

    newcomers: Literal["initial", "average"] = "initial"
    """Batch norm of a client that has not taken part. initial: that of the common initial model. average: the mean of
    the last replies; then the whole model travels both ways."""
    weighting: Literal["size", "equal"] = "size"
    """Weights in the mean. size: by n_k, so that a model without batch norm gives FedAvg. equal: all alike, as in the
    paper, whose clients have equally many examples."""

    # the field matters only for a model with batch norm
    matters = {"newcomers": {"settings": {"participation": 0.3, "model": _small, "model_options": {}}}}

    @property
    def averages(self) -> str:
        return self.weighting

    def init(self, fed: Server) -> State:
        return {"model": fed.initial(0), "share": fed.equal_shares()}

    def warnings(self, fed: Server, rounds: int) -> list[str]:
        if any(piece.name.endswith("running_mean") for piece in fed.layout.pieces):
            return []
        return ["This model has no batch norm with running statistics, so FedBN is FedAvg. Use cnn_bn, for example."]

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(shared=(state["model"],))

    def local(self, client: Client, message: Message) -> Reply:
        trained = sgd(client, assembled(client, message))
        norms = batch_norms(client.net)
        return Reply({"norms": trained[norms]}, (trained if self.newcomers == "average" else trained[~norms],))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        weights = replies.weights_by(self.weighting)
        return averaged(len(state["share"]), replies.ids, weights, model=replies.body[0])

    def received(self, client: Client, message: Message) -> Model:
        return assembled(client, message)

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        return assembled(client, message)

    def mixing(self, state: State) -> Tensor:
        return same_for_all(state["share"])


def assembled(client: Client, message: Message) -> Tensor:
    """The received model with the client's own batch norm, or, if it has none yet, the received or initial one."""
    sent, norms = message.shared[0], batch_norms(client.net)
    vector = client.net.initial.clone()
    vector[torch.ones_like(norms) if len(sent) == len(vector) else ~norms] = sent
    if "norms" in client.state:
        vector[norms] = client.state["norms"]
    return vector


def batch_norms(net: Network) -> Tensor:
    """Which numbers of a vector belong to batch norm layers, whatever their names."""
    names = {name for name, module in net.module.named_modules() if isinstance(module, _BatchNorm)}
    inside = torch.zeros(net.layout.size, dtype=torch.bool)
    for piece in net.layout.pieces:
        if piece.name.rpartition(".")[0] in names:
            inside[piece.start : piece.stop] = True
    return inside
