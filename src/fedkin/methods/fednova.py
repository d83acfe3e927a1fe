"""FedNova: Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization.
Wang, Liu, Liang, Joshi, Poor. NeurIPS 2020.

| symbol | here |
|---|---|
| x | state "model" |
| x_i | reply 0 |
| ‖a_i‖₁ | reply 1, first number: total weight of a client's gradients (τ_i for plain SGD) |
| τ_i | its number of steps |
| d_i = (x − x_i) / (η ‖a_i‖₁) | the normalized change |
| p_i | n_i over the n of all replies |
| τ_eff | effective |
| ρ, η | the run's momentum, lr |

A client that takes more steps moves farther, so FedAvg in effect gives it more weight. FedNova first divides every
change by its number of steps. The paper derives ‖a_i‖₁ for momentum and for a proximal term separately; here it covers
both together. Buffers of batch norm are averaged with p_i.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedkin.bounds import Bound, NonNegative, Whole
from fedkin.client.training import sgd
from fedkin.maths.mixing import average, same_for_all, shares
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
    needs_sgd = "the normalization counts how steps of SGD, with momentum and a proximal term, add up gradients."

    mu: NonNegative = 0.0
    """Strength of a proximal term (FedProx) in the local objective; 0: none."""
    fewest_epochs: Whole = 0
    """Each client draws its epochs of a round between this and the run's epochs (paper: 2 to 5); 0: the run's
    epochs."""
    effective: Literal["vector", "steps"] = "vector"
    """τ_eff: mean of ‖a_i‖₁ (vector) or of the steps τ_i (steps), weighted by p_i. The authors' code uses steps with a
    proximal term and vector otherwise. With vector, equal work at all clients gives FedAvg."""

    matters = {"fewest_epochs": {"fewest_epochs": 1}, "effective": {"mu": 1.0}}

    def init(self, fed: Server) -> State:
        lr, epochs = fed.training.lr, fed.training.epochs
        if lr * self.mu >= 1:
            raise ValueError(
                f"mu={self.mu} times lr={lr} is {lr * self.mu:.3g}: keep it below 1, or a step overshoots the center."
            )
        if self.fewest_epochs > epochs:
            raise ValueError(f"fewest_epochs={self.fewest_epochs} must be at most the run's epochs, {epochs}.")
        return {
            "model": fed.initial(0),
            "share": fed.equal_shares(),
            "parameters": fed.layout.parameters,
            "effective": 0.0,
        }

    def warnings(self, fed: Server, rounds: int) -> list[str]:
        steps = {local_steps(n, fed.training.batch_size, fed.training.epochs) for n in fed.n[fed.ids].tolist()}
        if len(steps) > 1 or self.fewest_epochs:
            return []
        return [
            f"All clients take {min(steps)} steps per round, so FedNova has nothing to normalize and is FedAvg. "
            "Set fewest_epochs, or use clients of different sizes."
        ]

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(shared=(state["model"],))

    def local(self, client: Client, message: Message) -> Reply:
        x, training = message.shared[0], client.training
        anchor = x[: client.net.layout.parameters]
        epochs = training.epochs
        if self.fewest_epochs:
            epochs = int(np.random.default_rng([client.seed, 0x0A]).integers(self.fewest_epochs, epochs + 1))
        proximal = (lambda w: self.mu * (w - anchor)) if self.mu else None
        trained = sgd(client, x, epochs=epochs, regularizer_gradient=proximal)
        steps = local_steps(len(client.data.y), training.batch_size, epochs)
        way = accumulation(steps, lr=training.lr, momentum=training.momentum, mu=self.mu)  # ‖a_i‖₁
        return Reply({}, (trained, torch.tensor([way] if self.effective == "vector" else [way, steps])))

    def reply_bounds(self, fed: Server, client: int) -> Mapping[int, Bound]:
        """‖a_i‖₁ and the number of steps: no client takes more steps than its examples allow."""
        training = fed.training
        steps = local_steps(int(fed.n[client]), training.batch_size, training.epochs)
        return {1: Bound(least=1e-3, most=steps / (1 - training.momentum) * (1 + 1e-6))}

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        models, lengths = replies.body
        x, count = state["model"], state["parameters"]
        p = replies.n.double() / replies.n.sum()
        effective = p @ lengths[:, -1].double()  # τ_eff = sum_i p_i τ_i, or of ‖a_i‖₁
        q = normalized_weights(p, lengths[:, 0], effective)
        model = average(models, replies.weights)
        # x - τ_eff sum_i p_i η d_i, with η d_i = (x - x_i) / ‖a_i‖₁: the paper's update rule
        model[:count] = average(models[:, :count], q.float()) + (1 - q.sum()).float() * x[:count]
        return {
            "model": model,
            "share": shares(len(state["share"]), replies.ids, q / q.sum()),
            "parameters": count,
            "effective": float(effective),
        }

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        return message.shared[0]

    def mixing(self, state: State) -> Tensor:
        return same_for_all(state["share"])

    def describe(self, state: State) -> dict[str, float]:
        return {"effective_steps": state["effective"]}
