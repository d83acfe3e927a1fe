"""FedAvg with linear probing before fine-tuning (LP-FT).

Fine-Tuning can Distort Pretrained Features and Underperform Out-of-Distribution.
Kumar, Raghunathan, Jones, Ma, Liang. ICLR 2022.
A Closer Look at Personalized Fine-Tuning in Heterogeneous Federated Learning (LP-FT after FedAvg).
Chen, Ghoukasian, Jin, Wang, Karimireddy, Li. arXiv 2511.12695, 2025.

| step | here |
|---|---|
| (1) w^T, trained by FedAvg | state "model" |
| (2) linear probing: the head alone, the body fixed | probe_epochs |
| (3) fine-tuning: all parameters, from the probed head | tune_epochs |

Both phases run at each client on its own training examples, and nothing of them travels. A head that already fits the
client sends smaller gradients into the body, so the shared features change less than in plain fine-tuning. The step
numbers are ours. Deviation: Kumar et al. probe to convergence and fine-tune with a smaller learning rate; here both
phases take a fixed number of epochs at the run's rate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from fedkin.bounds import Whole
from fedkin.client.parts import sgd_except
from fedkin.client.training import sgd
from fedkin.maths.mixing import averaged, same_for_all
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State

CITATION = r"""@inproceedings{kumar2022fine,
  title = {Fine-Tuning can Distort Pretrained Features and Underperform Out-of-Distribution},
  author = {Kumar, Ananya and Raghunathan, Aditi and Jones, Robbie and Ma, Tengyu and Liang, Percy},
  booktitle = {International Conference on Learning Representations (ICLR)},
  year = {2022}
}
@misc{chen2025closer,
  title = {A Closer Look at Personalized Fine-Tuning in Heterogeneous Federated Learning},
  author = {Chen, Minghui and Ghoukasian, Hrad and Jin, Ruinan and Wang, Zehua and Karimireddy, Sai Praneeth
    and Li, Xiaoxiao},
  note = {arXiv:2511.12695},
  year = {2025}
}"""


@dataclass(frozen=True)
class FedAvgLPFT(Method):
    paper = "Kumar et al., ICLR 2022"
    citation = CITATION
    travels = "model both ways"
    stays = "nothing"

    probe_epochs: Whole = 5
    """Epochs of the head alone; 0 is FedAvg-FT."""
    tune_epochs: Whole = 1
    """Epochs of all parameters after that; 0: the probed head on the received body."""

    averages = "size"

    def init(self, fed: Server) -> State:
        return {"model": fed.initial(0), "share": fed.equal_shares()}

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(shared=(state["model"],))

    def local(self, client: Client, message: Message) -> Reply:
        return Reply({}, (sgd(client, message.shared[0]),))  # (1)

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        return averaged(len(state["share"]), replies.ids, replies.weights, model=replies.body[0])

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        model = message.shared[0]
        if self.probe_epochs:
            model = sgd_except(client, model, client.net.layout.body, epochs=self.probe_epochs)  # (2)
        if self.tune_epochs:
            model = sgd(client, model, epochs=self.tune_epochs, first_epoch=self.probe_epochs)  # (3)
        return model

    def mixing(self, state: State) -> Tensor:
        return same_for_all(state["share"])
