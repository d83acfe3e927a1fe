"""FedAS: Bridging Inconsistency in Personalized Federated Learning.
Yang, Huang, Ye. CVPR 2024.

| symbol | here |
|---|---|
| shared parameters (feature extractor) | state "body" |
| personalized parameters (classifier) | the head, in client state "model" |
| (1) class prototypes of the client's previous model | targets of the alignment |
| (2) Σ_c MSE(features of class c under the received body, prototype c) | parameter alignment |
| (3) cross entropy of body and head together | local training |
| (4) tr(F_i) = Σ ‖∇ log p(y | x)‖² after training | the reply, with the body |
| (5) body = Σ_i tr(F_i) · body_i / Σ_j tr(F_j) | client synchronization |

The numbers are ours. Before a client trains, it moves the received body toward the features of its own previous model
(1, 2), so that its head fits again. The server weights bodies by the trace of the Fisher information (5), which is to
give clients that have trained little a small weight. Deviations: a client without a previous model skips the alignment
(the authors' code aligns with an untrained one). The trace sums squared gradients of batches, as their code does;
`fisher="examples"` is the definition, and one backward pass per example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedkin.bounds import Bound, NonNegative, Whole
from fedkin.client.parts import features, sgd_except
from fedkin.client.steps import OTHER_EPOCHS, joined, without_extras
from fedkin.client.training import sgd
from fedkin.maths.mixing import averaged, same_for_all
from fedkin.maths.prototypes import class_means
from fedkin.models.network import Network
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State

CITATION = r"""@inproceedings{yang2024fedas,
  title = {{FedAS}: Bridging Inconsistency in Personalized Federated Learning},
  author = {Yang, Xiyuan and Huang, Wenke and Ye, Mang},
  booktitle = {IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR)},
  year = {2024}
}"""


@dataclass(frozen=True)
class FedAS(Method):
    paper = "Yang et al., CVPR 2024"
    citation = CITATION
    travels = "body both ways, one number up"
    stays = "model"
    needs_classes = True

    align_epochs: Whole = 1
    """Epochs of the parameter alignment before local training; 0: none."""
    align_lr: NonNegative = 0.01
    """Learning rate of the alignment."""
    weighting: Literal["fisher", "size"] = "fisher"
    """fisher: client synchronization. size: n_k as in FedAvg; with align_epochs = 0 that is FedPer."""
    fisher: Literal["batches", "examples"] = "batches"
    """Whose squared gradients are summed: those of batches, or of single examples (exact, slower)."""
    use: Literal["trained", "received"] = "trained"
    """What a client uses: its model after alignment and training, or the received body with its own head."""

    # ---- server
    def init(self, fed: Server) -> State:
        return {"body": fed.initial(0)[fed.layout.body], "share": fed.equal_shares()}

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(shared=(state["body"],))

    def reply_bounds(self, fed: Server, client: int) -> Mapping[int, Bound]:
        return {1: Bound(least=0)}

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        weights, trace = replies.weights, replies.body[1].double().flatten()
        if self.weighting == "fisher" and trace.sum() > 0:
            weights = (trace / trace.sum()).float()  # (5)
        return averaged(len(state["share"]), replies.ids, weights, body=replies.body[0])

    # ---- client
    def local(self, client: Client, message: Message) -> Reply:
        start = self._aligned(client, message)
        model = sgd(client, start)  # (3)
        trace = self._trace(client, model) if self.weighting == "fisher" else torch.zeros(1)
        return Reply({"model": model}, (model[client.net.layout.body], trace))

    def _joined(self, client: Client, message: Message) -> Tensor:
        layout = client.net.layout
        own = client.state.get("model", client.net.initial)
        return joined(layout.size, (layout.body, message.shared[0]), (layout.head, own[layout.head]))

    def _aligned(self, client: Client, message: Message) -> Tensor:
        start = self._joined(client, message)
        if "model" not in client.state or not self.align_epochs:
            return start
        z = features(client, client.state["model"], client.data.x)
        prototypes, _ = class_means(z, client.data.y, client.data.classes)  # (1)

        def loss(net: Network, x: Tensor, y: Tensor) -> Tensor:
            z = net.features(x).flatten(1)
            apart = (z - prototypes[y]).square().mean(1)
            return (apart / torch.bincount(y, minlength=len(prototypes))[y]).sum()  # (2): mean in a class, then the sum

        options = {"epochs": self.align_epochs, "lr": self.align_lr, "first_epoch": OTHER_EPOCHS}
        return sgd_except(without_extras(client), start, client.net.layout.head, loss=loss, **options)

    def _trace(self, client: Client, model: Tensor) -> Tensor:
        """(4), in evaluation mode."""
        net = client.net
        net.load(model)
        net.eval()
        size = client.training.batch_size if self.fisher == "batches" else 1
        parameters = [parameter for parameter in net.parameters if parameter.requires_grad]
        total = torch.zeros(1)
        for x, y in zip(client.data.x.split(size), client.data.y.split(size)):
            slopes = torch.autograd.grad(net.task.loss(net(x), y), parameters, allow_unused=True)
            total += sum(slope.square().sum() for slope in slopes if slope is not None)
        return total

    # ---- use
    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        model: Tensor = trained().state["model"] if self.use == "trained" else self._joined(client, message)
        return model

    def received(self, client: Client, message: Message) -> Model:
        return self._joined(client, message)

    def mixing(self, state: State) -> dict[str, Tensor]:
        return {"body": same_for_all(state["share"]), "head": torch.eye(len(state["share"]))}
