"""FedBABU: Toward Enhanced Representation for Federated Image Classification.
Oh, Kim, Yun. ICLR 2022.

| here | meaning |
|---|---|
| state "body" | the only part that is trained in the federation, and averaged |
| the head | random, common to all, never trained there: every client makes it from the run's seed |
| fine_tune, fine_tune_epochs | what a client trains before it uses the model, and for how long |

Deviation: the authors lower the learning rate tenfold at 1/2 and 3/4 of the rounds; here it is the run's.
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
from fedkin.maths.mixing import average, shares
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
    """What a client trains on its own rows before it uses the model."""
    fine_tune_epochs: Whole = 5
    """Epochs of that; 0: the model is used as received."""
    weighting: Literal["equal", "size"] = "equal"
    """equal: the plain mean of the bodies, as in the authors' code. size: weighted by n_k."""

    def init(self, fed: Server) -> State:
        if not bool((fed.layout.body < fed.layout.parameters).any()):
            raise ValueError(
                "FedBABU trains the body alone, and the body of this model is frozen: unfreeze a part of it, or take a "
                "method that trains heads (fedper, fedrep, fedavg-ft)."
            )
        return {"body": fed.initial(0)[fed.layout.body], "share": fed.equal_shares()}

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(shared=(state["body"],))

    def local(self, client: Client, message: Message) -> Reply:
        with client.net.frozen(client.net.layout.head):
            trained = sgd(client, _row(client, message))
        return Reply({}, (trained[client.net.layout.body],))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        weights = replies.weights_by(self.weighting)
        return {
            "body": average(replies.body[0], weights),
            "share": shares(len(state["share"]), replies.ids, weights),
        }

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        row, layout = _row(client, message), client.net.layout
        if not self.fine_tune_epochs:
            return row
        nothing = torch.empty(0, dtype=torch.long)
        with client.net.frozen({"full": nothing, "head": layout.body, "body": layout.head}[self.fine_tune]):
            return sgd(client, row, epochs=self.fine_tune_epochs, first_epoch=OTHER_EPOCHS)

    def received(self, client: Client, message: Message) -> Model:
        return _row(client, message)

    def mixing(self, state: State) -> Tensor:
        share: Tensor = state["share"]
        return share.expand(len(share), -1)


def _row(client: Client, message: Message) -> Tensor:
    """The received body under the common head."""
    layout = client.net.layout
    return joined(layout.size, (layout.body, message.shared[0]), (layout.head, client.net.initial[layout.head]))
