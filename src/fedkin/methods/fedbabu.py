"""FedBABU: Toward Enhanced Representation for Federated Image Classification.
Oh, Kim, Yun. ICLR 2022.

| here | meaning |
|---|---|
| state "body" | the only part that is trained and averaged in the federation |
| the head | random, common to all, never trained in the federation; every client makes it from the run's seed |
| fine_tune, fine_tune_epochs | what a client trains before it uses the model, and for how long |

Deviation: the authors divide the learning rate by 10 after 1/2 and 3/4 of the rounds; here it is the run's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedkin.bounds import Whole
from fedkin.client.steps import OTHER_EPOCHS, joined
from fedkin.client.training import sgd
from fedkin.maths.mixing import averaged, same_for_all
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State

CITATION = r"""@inproceedings{oh2022fedbabu,
  title = {{FedBABU}: Toward Enhanced Representation for Federated Image Classification},
  author = {Oh, Jaehoon and Kim, Sangmook and Yun, Se-Young},
  booktitle = {International Conference on Learning Representations (ICLR)},
  year = {2022}
}"""


@dataclass(frozen=True)
class FedBABU(Method):
    paper = "Oh et al., ICLR 2022"
    citation = CITATION
    travels = "body both ways"
    stays = "nothing"

    fine_tune: Literal["full", "head", "body"] = "full"
    """What a client trains on its own examples before it uses the model."""
    fine_tune_epochs: Whole = 5
    """Epochs of fine-tuning; 0: the model is used as received."""
    weighting: Literal["equal", "size"] = "equal"
    """Weights in the mean of the bodies. equal: all alike, as in the authors' code. size: by n_k."""

    def init(self, fed: Server) -> State:
        if not bool((fed.layout.body < fed.layout.parameters).any()):
            raise ValueError(
                "FedBABU trains only the body, and the body of this model is frozen: unfreeze a part of it, or use a "
                "method that trains heads (fedper, fedrep, fedavg-ft)."
            )
        return {"body": fed.initial(0)[fed.layout.body], "share": fed.equal_shares()}

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(shared=(state["body"],))

    def local(self, client: Client, message: Message) -> Reply:
        with client.net.frozen(client.net.layout.head):
            trained = sgd(client, _vector(client, message))
        return Reply({}, (trained[client.net.layout.body],))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        weights = replies.weights_by(self.weighting)
        return averaged(len(state["share"]), replies.ids, weights, body=replies.body[0])

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        vector, layout = _vector(client, message), client.net.layout
        if not self.fine_tune_epochs:
            return vector
        nothing = torch.empty(0, dtype=torch.long)
        with client.net.frozen({"full": nothing, "head": layout.body, "body": layout.head}[self.fine_tune]):
            return sgd(client, vector, epochs=self.fine_tune_epochs, first_epoch=OTHER_EPOCHS)

    def received(self, client: Client, message: Message) -> Model:
        return _vector(client, message)

    def mixing(self, state: State) -> Tensor:
        return same_for_all(state["share"])


def _vector(client: Client, message: Message) -> Tensor:
    """The received body under the common head."""
    layout = client.net.layout
    return joined(layout.size, (layout.body, message.shared[0]), (layout.head, client.net.initial[layout.head]))
