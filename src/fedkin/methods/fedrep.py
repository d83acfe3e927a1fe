"""FedRep: Exploiting Shared Representations for Personalized Federated Learning.
Collins, Hassani, Mokhtari, Shakkottai. ICML 2021.

| symbol | here |
|---|---|
| φ | the representation: state "body" |
| h_i | client state "head" |
| τ | head_epochs |

In a round a client trains its head with the received body fixed, then the body with that head fixed, and sends the
body. Deviation: all heads start from the common initial model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedkin.bounds import Count, Whole
from fedkin.client.steps import joined
from fedkin.client.training import sgd
from fedkin.maths.mixing import averaged, same_for_all
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State

CITATION = r"""@inproceedings{collins2021exploiting,
  title = {Exploiting Shared Representations for Personalized Federated Learning},
  author = {Collins, Liam and Hassani, Hamed and Mokhtari, Aryan and Shakkottai, Sanjay},
  booktitle = {International Conference on Machine Learning (ICML)},
  year = {2021}
}"""


@dataclass(frozen=True)
class FedRep(Method):
    paper = "Collins et al., ICML 2021"
    citation = CITATION
    travels = "body both ways"
    stays = "head"

    head_epochs: Whole = 0
    """τ: epochs per round for the head, with the body fixed; 0: the run's epochs."""
    body_epochs: Count = 1
    """Epochs per round for the body after that, with the head fixed."""
    weighting: Literal["equal", "size"] = "equal"
    """Weights in the mean of the bodies. equal: all alike. size: by n_k."""

    @property
    def averages(self) -> str:
        return self.weighting

    def init(self, fed: Server) -> State:
        return {"body": fed.initial(0)[fed.layout.body], "share": fed.equal_shares()}

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(shared=(state["body"],))

    def local(self, client: Client, message: Message) -> Reply:
        net, layout = client.net, client.net.layout
        epochs = self.head_epochs or client.training.epochs
        with net.frozen(layout.body):
            with_head = sgd(client, self._vector(client, message), epochs=epochs)
        if not net.trains(layout.body):  # a pretrained body that is frozen
            return Reply({"head": with_head[layout.head]}, (with_head[layout.body],))
        with net.frozen(layout.head):
            trained = sgd(client, with_head, epochs=self.body_epochs, first_epoch=epochs)
        return Reply({"head": trained[layout.head]}, (trained[layout.body],))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        weights = replies.weights_by(self.weighting)
        return averaged(len(state["share"]), replies.ids, weights, body=replies.body[0])

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        """The received body, and the head trained on it."""
        layout = client.net.layout
        return joined(layout.size, (layout.body, message.shared[0]), (layout.head, trained().state["head"]))

    def received(self, client: Client, message: Message) -> Model:
        return self._vector(client, message)

    def mixing(self, state: State) -> dict[str, Tensor]:
        return {"body": same_for_all(state["share"]), "head": torch.eye(len(state["share"]))}

    def _vector(self, client: Client, message: Message) -> Tensor:
        layout = client.net.layout
        head = client.state.get("head", client.net.initial[layout.head])
        return joined(layout.size, (layout.body, message.shared[0]), (layout.head, head))
