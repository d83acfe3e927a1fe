"""FedProx: Federated Optimization in Heterogeneous Networks.
Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. MLSys 2020.

| symbol | here |
|---|---|
| w^t | state "model" |
| h_k(w; w^t) = F_k(w) + μ/2 ‖w − w^t‖² | the local objective, eq. (2) |
| μ | mu |
| p_k = n_k / n | replies.n, fed.n |

Stragglers train for a random number of epochs in [1, E) and are kept. FedAvg in that paper drops them; here that is
`fedavg` with the run's `--lost`. The paper's theory draws clients with probability p_k and takes the plain mean; its
experiments draw uniformly and weight by n_k. `sampling` offers both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedkin.bounds import Fraction, NonNegative
from fedkin.client.training import sgd
from fedkin.maths.mixing import averaged, same_for_all
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State, round_half_up

CITATION = r"""@inproceedings{li2020federated,
  title = {Federated Optimization in Heterogeneous Networks},
  author = {Li, Tian and Sahu, Anit Kumar and Zaheer, Manzil and Sanjabi, Maziar and Talwalkar, Ameet
            and Smith, Virginia},
  booktitle = {Conference on Machine Learning and Systems (MLSys)},
  year = {2020}
}"""


@dataclass(frozen=True)
class FedProx(Method):
    paper = "Li et al., MLSys 2020"
    citation = CITATION
    travels = "model both ways"
    stays = "nothing"

    mu: NonNegative = 0.1
    """Strength of the proximal term; 0 is FedAvg. The paper tunes it in {0.001, 0.01, 0.1, 0.5, 1}."""
    stragglers: Fraction = 0.0
    """Probability that a client is slow in a round. It then trains for a random number of epochs in [1, E)."""
    sampling: Literal["uniform", "size"] = "uniform"
    """uniform: clients drawn uniformly, mean weighted by n_k. size: drawn by p_k with replacement, plain mean."""

    @property
    def averages(self) -> str:
        return "size" if self.sampling == "uniform" else ""

    def init(self, fed: Server) -> State:
        if self.stragglers and fed.training.epochs < 2:
            raise ValueError(
                f"stragglers={self.stragglers} has no effect with epochs={fed.training.epochs}: a straggler trains for "
                "1 to epochs-1 epochs. Use at least 2 epochs."
            )
        return {"model": fed.initial(0), "share": fed.equal_shares()}

    def warnings(self, fed: Server, rounds: int) -> list[str]:
        if fed.training.epochs > 1 or int(fed.n[fed.ids].max()) > fed.training.batch_size:
            return []
        return [
            "Every client takes a single step per round, from the center of FedProx's proximal term, so mu has no "
            "effect. Use more epochs or a smaller batch_size."
        ]

    def select(self, state: State, fed: Server, round: int) -> Tensor:
        if self.sampling == "uniform":
            return fed.sample(round)
        chance = fed.n[fed.ids].double().numpy()
        count = max(1, round_half_up(fed.participation * len(fed.ids)))
        drawn = fed.rng(round).choice(len(fed.ids), size=count, replace=True, p=chance / chance.sum())
        return fed.ids[torch.from_numpy(np.sort(drawn))]

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(shared=(state["model"],))

    def local(self, client: Client, message: Message) -> Reply:
        center = message.shared[0]
        anchor = center[: client.net.layout.parameters]
        epochs = client.training.epochs
        rng = np.random.default_rng([client.seed, 0xF9])
        if rng.random() < self.stragglers:
            epochs = int(rng.integers(1, epochs))
        trained = sgd(client, center, epochs=epochs, regularizer_gradient=lambda w: self.mu * (w - anchor))  # ∇h_k
        return Reply({}, (trained,))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        weights = replies.weights_by("size" if self.sampling == "uniform" else "equal")
        return averaged(len(state["share"]), replies.ids, weights, model=replies.body[0])

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        return message.shared[0]

    def mixing(self, state: State) -> Tensor:
        return same_for_all(state["share"])
