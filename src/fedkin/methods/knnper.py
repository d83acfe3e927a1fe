"""kNN-Per: Personalized Federated Learning through Local Memorization.
Marfoq, Neglia, Vidal, Kameni. ICML 2022.

| symbol | here |
|---|---|
| h | state "model", trained by FedAvg |
| φ_h(x) | the head's input: `net.split` |
| M_m | the features and labels of the client's training examples |
| k, σ | k, scale |
| λ_m | lam, or chosen on validation examples |
| p = λ_m p_knn + (1 − λ_m) p_h | `predict` |

Deviations: λ_m is chosen on validation examples (the authors' code prints a table over test examples); probabilities
are mixed (their code by default mixes logits with probabilities).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedkin.bounds import Count, Fraction, Positive
from fedkin.client.evaluate import EVALUATION_BATCH
from fedkin.client.training import sgd
from fedkin.maths.mixing import averaged, same_for_all
from fedkin.maths.neighbors import neighbor_probabilities
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State

GRID = torch.linspace(0, 1, 101)


CITATION = r"""@inproceedings{marfoq2022personalized,
  title = {Personalized Federated Learning through Local Memorization},
  author = {Marfoq, Othmane and Neglia, Giovanni and Vidal, Richard and Kameni, Laetitia},
  booktitle = {International Conference on Machine Learning (ICML)},
  year = {2022}
}"""


@dataclass(frozen=True)
class KNNPer(Method):
    paper = "Marfoq et al., ICML 2022"
    citation = CITATION
    travels = "model both ways"
    stays = "features and labels of own examples"
    needs_classes = True

    k: Count = 10
    """Number of neighbors that vote; all stored examples if there are fewer."""
    lam: Fraction = 0.5
    """λ: weight of the neighbors if it is not chosen, or if a client has no validation examples; 0 is FedAvg."""
    choose: bool = True
    """Each client chooses λ on its validation examples: best accuracy, then lowest loss, then smallest λ."""
    scale: Positive = 1.0
    """σ: a neighbor has the weight exp(−distance / σ)."""
    kernel: Literal["distance", "squared"] = "distance"
    """squared: exp(−distance² / (dimensions · σ)), as in the authors' code."""
    capacity: Fraction = 1.0
    """Fraction of its training examples that a client stores, drawn at random; 0 is FedAvg."""

    matters = {"lam": {"choose": False}}

    @property
    def model_holds(self) -> str:
        return "features and labels of training examples" if self.capacity else ""

    # ---- FedAvg
    averages = "size"

    def init(self, fed: Server) -> State:
        return {"model": fed.initial(0), "share": fed.equal_shares()}

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(shared=(state["model"],))

    def local(self, client: Client, message: Message) -> Reply:
        return Reply({}, (sgd(client, message.shared[0]),))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        return averaged(len(state["share"]), replies.ids, replies.weights, model=replies.body[0])

    # ---- memory, at the client alone
    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        x, y = client.data.train
        count = round(self.capacity * len(y))
        if not count:
            return message.shared[0]
        kept = torch.randperm(len(y), generator=torch.Generator().manual_seed(client.seed))[:count].sort().values
        client.net.load(message.shared[0])
        client.net.eval()
        model = {"model": message.shared[0], "features": _split(client, x[kept])[0], "labels": y[kept]}
        return {**model, "lam": self._chosen(client, model) if self.choose else torch.tensor(self.lam)}

    def received(self, client: Client, message: Message) -> Model:
        return message.shared[0]

    def predict(self, client: Client, personal: Model, x: Tensor) -> Tensor:
        if isinstance(personal, Tensor):
            client.net.load(personal)
            return client.net(x)
        lam = personal["lam"]
        near, global_ = self._both(client, personal, x)
        return (lam * near + (1 - lam) * global_).clamp(min=1e-12).log()

    def mixing(self, state: State) -> Tensor:
        return same_for_all(state["share"])

    def _both(self, client: Client, model: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        """p_knn and p_h."""
        client.net.load(model["model"])
        client.net.eval()
        features, logits = _split(client, x)
        near = neighbor_probabilities(
            features, model["features"], model["labels"],
            k=self.k, classes=client.data.classes, scale=self.scale, squared=self.kernel == "squared",
        )  # fmt: skip
        return near, F.softmax(logits, 1)

    def _chosen(self, client: Client, model: dict[str, Tensor]) -> Tensor:
        x, y = client.data.validation
        if not len(y):
            return torch.tensor(self.lam)
        near, global_ = self._both(client, model, x)
        grid = GRID.to(near.device)[:, None, None]
        mixed = grid * near + (1 - grid) * global_
        right = (mixed.argmax(2) == y).sum(1)
        loss = -mixed[:, torch.arange(len(y)), y].clamp(min=1e-12).log().sum(1)
        best = min(range(len(GRID)), key=lambda i: (-int(right[i]), float(loss[i])))
        return GRID[best].clone()


@torch.no_grad()
def _split(client: Client, x: Tensor) -> tuple[Tensor, Tensor]:
    """Features and logits of all these examples, in batches."""
    parts = [client.net.split(batch) for batch in x.split(EVALUATION_BATCH)]
    return torch.cat([z.flatten(1) for z, _ in parts]), torch.cat([logits for _, logits in parts])
