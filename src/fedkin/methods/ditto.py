"""Ditto: Fair and Robust Federated Learning Through Personalization.
Li, Hu, Beirami, Smith. ICML 2021.

| symbol | here |
|---|---|
| w^t | state "model", trained by FedAvg |
| v_k | client state "model", the personal model |
| h_k(v; w) = F_k(v) + λ/2 ‖v − w‖² | the personal objective, around the received w^t |
| λ | lam |
| s | personal_epochs |

The authors' code alternates a step of w and a step of v on the same batch. Here all steps of w come first, then all of
v on the same batches; the result is the same, because the center of v is the received w^t.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fedkin.bounds import NonNegative, Whole
from fedkin.client.training import sgd
from fedkin.maths.mixing import averaged, same_for_all
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State

CITATION = r"""@inproceedings{li2021ditto,
  title = {Ditto: Fair and Robust Federated Learning Through Personalization},
  author = {Li, Tian and Hu, Shengyuan and Beirami, Ahmad and Smith, Virginia},
  booktitle = {International Conference on Machine Learning (ICML)},
  year = {2021}
}"""


@dataclass(frozen=True)
class Ditto(Method):
    paper = "Li et al., ICML 2021"
    citation = CITATION
    travels = "model both ways"
    stays = "personal model"

    lam: NonNegative = 1.0
    """λ: how strongly personal models are pulled to the global one; 0 is Local. The paper uses 0.1, 1 and 2."""
    personal_epochs: Whole = 0
    """s: epochs per round for the personal model; 0: the run's epochs."""
    weighting: Literal["size", "equal"] = "size"
    """Weights in the global mean. size: by n_k, as in FedAvg. equal: all alike, as in the authors' code."""

    def init(self, fed: Server) -> State:
        return {"model": fed.initial(0), "share": fed.equal_shares()}

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(shared=(state["model"],))

    def local(self, client: Client, message: Message) -> Reply:
        received = message.shared[0]
        center = received[: client.net.layout.parameters]
        w = sgd(client, received)
        own = client.state.get("model", client.net.initial)
        epochs = self.personal_epochs or None
        v = sgd(client, own, epochs=epochs, regularizer_gradient=lambda v: self.lam * (v - center))  # ∇h_k(v; w^t)
        return Reply({"model": v}, (w,))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        weights = replies.weights_by(self.weighting)
        return averaged(len(state["share"]), replies.ids, weights, model=replies.body[0])

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        model: Tensor = client.state.get("model", client.net.initial)
        return model

    def mixing(self, state: State) -> Tensor:
        return same_for_all(state["share"])  # of the model that personal models are pulled to
