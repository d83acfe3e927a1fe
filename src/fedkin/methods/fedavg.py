"""FedAvg: Communication-Efficient Learning of Deep Networks from Decentralized Data.
McMahan, Moore, Ramage, Hampson, Agüera y Arcas. AISTATS 2017.

| symbol | here |
|---|---|
| w_t | state "model" |
| n_k | replies.n |
| C | the run's participation |
| E, B, η | the run's epochs, batch_size, lr |

`fedavg-ft` is FedAvg whose clients fine-tune the received model on their own training examples before they use it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from fedkin.bounds import Whole
from fedkin.client.training import sgd
from fedkin.maths.mixing import averaged, same_for_all
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State

CITATION = r"""@inproceedings{mcmahan2017communication,
  title = {Communication-Efficient Learning of Deep Networks from Decentralized Data},
  author = {McMahan, Brendan and Moore, Eider and Ramage, Daniel and Hampson, Seth and {Ag{\"u}era y Arcas}, Blaise},
  booktitle = {International Conference on Artificial Intelligence and Statistics (AISTATS)},
  year = {2017}
}"""


@dataclass(frozen=True)
class FedAvg(Method):
    paper = "McMahan et al., AISTATS 2017"
    citation = CITATION
    travels = "model both ways"
    stays = "nothing"

    fine_tune: bool = False
    """Clients train the received model before they use it (FedAvg-FT)."""
    fine_tune_epochs: Whole = 0
    """Epochs of fine-tuning; 0: as many as in a round."""

    matters = {"fine_tune_epochs": {"fine_tune": True}}

    averages = "size"

    def init(self, fed: Server) -> State:
        # before the first reply the model is nobody's: all clients share it alike
        return {"model": fed.initial(0), "share": fed.equal_shares()}

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(shared=(state["model"],))

    def local(self, client: Client, message: Message) -> Reply:
        return Reply({}, (sgd(client, message.shared[0]),))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        return averaged(len(state["share"]), replies.ids, replies.weights, model=replies.body[0])  # weights n_k / n

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        if not self.fine_tune:
            return message.shared[0]
        if not self.fine_tune_epochs:
            return trained().body[0]
        return sgd(client, message.shared[0], epochs=self.fine_tune_epochs)

    def mixing(self, state: State) -> Tensor:
        return same_for_all(state["share"])
