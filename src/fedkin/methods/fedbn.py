"""FedBN: Federated Learning on Non-IID Features via Local Batch Normalization.
Li, Jiang, Zhang, Kamp, Dou. ICLR 2021.

| symbol | here |
|---|---|
| w | state "model": the whole initial row, after round 1 what is shared |
| BN layers (γ, β, running mean and variance) | state "norms" of client i |

What stays is told by the type of a module, at the client, which has the module: the server never needs to know. The
first message is the common initial model, batch norm included; later ones are without. Where there is no batch norm,
this is FedAvg.
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
from fedkin.maths.mixing import average, shares
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
    those who answered last; then the whole model travels both ways."""
    weighting: Literal["size", "equal"] = "size"
    """size: by n_k, so that a model without batch norm gives FedAvg. equal: all alike, as in the paper, whose clients
    have the same number of rows."""

    # without batch norm there is nothing to be a newcomer to
    matters = {"newcomers": {"settings": {"participation": 0.3, "model": _small, "model_options": {}}}}

    def init(self, fed: Server) -> State:
        return {"model": fed.initial(0), "share": fed.equal_shares()}

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(shared=(state["model"],))

    def local(self, client: Client, message: Message) -> Reply:
        trained = sgd(client, assembled(client, message))
        norms = batch_norms(client.net)
        return Reply({"norms": trained[norms]}, (trained if self.newcomers == "average" else trained[~norms],))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        weights = replies.weights_by(self.weighting)
        return {
            "model": average(replies.body[0], weights),
            "share": shares(len(state["share"]), replies.ids, weights),
        }

    def received(self, client: Client, message: Message) -> Model:
        return assembled(client, message)

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        return assembled(client, message)

    def mixing(self, state: State) -> Tensor:
        share: Tensor = state["share"]
        return share.expand(len(share), -1)


def assembled(client: Client, message: Message) -> Tensor:
    """What was sent, with the client's own batch norm; a client that has none takes what was sent, or the initial."""
    sent, norms = message.shared[0], batch_norms(client.net)
    row = client.net.initial.clone()
    row[torch.ones_like(norms) if len(sent) == len(row) else ~norms] = sent
    if "norms" in client.state:
        row[norms] = client.state["norms"]
    return row


def batch_norms(net: Network) -> Tensor:
    """Which numbers of a row belong to batch norm layers, whatever they are called."""
    names = {name for name, module in net.module.named_modules() if isinstance(module, _BatchNorm)}
    inside = torch.zeros(net.layout.size, dtype=torch.bool)
    for piece in net.layout.pieces:
        if piece.name.rpartition(".")[0] in names:
            inside[piece.start : piece.stop] = True
    return inside
