"""FedNova: Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization.
Wang, Liu, Liang, Joshi, Poor. NeurIPS 2020.

| symbol | here |
|---|---|
| x | state "model" |
| x_i | reply 0 |
| ‖a_i‖₁ | reply 1, first number: how much a client's steps add up to (τ_i for plain SGD) |
| τ_i | its number of steps |
| d_i = (x − x_i) / (η ‖a_i‖₁) | the normalized change |
| p_i | n_i over the n of those who answered |
| τ_eff | effective |
| ρ, η | the run's momentum, lr |

A client that takes more steps moves farther, so FedAvg solves a problem in which it counts more. Here every change is
divided by its length in steps first. The paper normalizes momentum and a proximal term one at a time; here ‖a_i‖₁
holds for both together. Buffers of batch norm are averaged with p_i.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedkin.bounds import NonNegative, Whole
from fedkin.client.training import sgd
from fedkin.maths.mixing import average, shares
from fedkin.maths.steps import accumulation, local_steps, normalized_weights
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State

CITATION = r"""@inproceedings{wang2020tackling,
  title = {Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization},
  author = {Wang, Jianyu and Liu, Qinghua and Liang, Hao and Joshi, Gauri and Poor, H. Vincent},
  booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
  year = {2020}
}"""


@dataclass(frozen=True)
class FedNova(Method):
    paper = "Wang et al., NeurIPS 2020"
    citation = CITATION
    travels = "model both ways, a number up"
    stays = "nothing"

    mu: NonNegative = 0.0
    """Strength of a proximal term (FedProx) in the local objective; 0: none."""
    fewest_epochs: Whole = 0
    """Each client draws its epochs of a round from this to the run's epochs (the paper: 2 to 5); 0: the run's."""
    effective: Literal["vector", "steps"] = "vector"
    """τ_eff: the mean of ‖a_i‖₁, weighted by p_i (vector), or of the steps τ_i (steps). The authors' code takes steps
    with a proximal term, the vector otherwise. With vector, clients that work alike give FedAvg."""

    matters = {"fewest_epochs": {"fewest_epochs": 1}, "effective": {"mu": 1.0}}

    def init(self, fed: Server) -> State:
        lr, epochs = fed.training.lr, fed.training.epochs
        if lr * self.mu >= 1:
            raise ValueError(f"mu={self.mu} with lr={lr}: take lr * mu below 1, or a step goes beyond the center.")
        if self.fewest_epochs > epochs:
            raise ValueError(f"fewest_epochs={self.fewest_epochs} must be at most the run's epochs, {epochs}.")
        return {
            "model": fed.initial(0),
            "share": fed.equal_shares(),
            "parameters": fed.layout.parameters,
            "effective": 0.0,
        }

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(shared=(state["model"],))

    def local(self, client: Client, message: Message) -> Reply:
        x, training = message.shared[0], client.training
        anchor = x[: client.net.layout.parameters]
        epochs = training.epochs
        if self.fewest_epochs:
            epochs = int(np.random.default_rng([client.seed, 0x0A]).integers(self.fewest_epochs, epochs + 1))
        row = sgd(
            client, x, epochs=epochs, regularizer_gradient=(lambda w: self.mu * (w - anchor)) if self.mu else None
        )
        steps = local_steps(len(client.data.y), training.batch_size, epochs)
        way = accumulation(steps, lr=training.lr, momentum=training.momentum, mu=self.mu)  # ‖a_i‖₁
        return Reply({}, (row, torch.tensor([way] if self.effective == "vector" else [way, steps])))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        rows, lengths = replies.body
        x, count = state["model"], state["parameters"]
        p = replies.n.double() / replies.n.sum()
        effective = p @ lengths[:, -1].double()  # τ_eff = sum_i p_i τ_i, or of ‖a_i‖₁
        q = normalized_weights(p, lengths[:, 0], effective)
        model = average(rows, replies.weights)
        # x - τ_eff sum_i p_i η d_i, with η d_i = (x - x_i) / ‖a_i‖₁: the paper's update rule
        model[:count] = average(rows[:, :count], q.float()) + (1 - q.sum()).float() * x[:count]
        return {
            "model": model,
            "share": shares(len(state["share"]), replies.ids, q / q.sum()),
            "parameters": count,
            "effective": float(effective),
        }

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        return message.shared[0]

    def mixing(self, state: State) -> Tensor:
        share: Tensor = state["share"]
        return share.expand(len(share), -1)

    def describe(self, state: State) -> dict[str, float]:
        return {"effective_steps": state["effective"]}
