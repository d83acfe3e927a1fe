"""SCAFFOLD: Stochastic Controlled Averaging for Federated Learning.
Karimireddy, Kale, Mohri, Reddi, Stich, Suresh. ICML 2020.

| symbol | here |
|---|---|
| x | state "model" |
| c | state "control" |
| c_i | state "control" of client i |
| y_i | reply 0 |
| Δc_i | reply 1 |
| η_g | server_lr |
| η_l, K | the run's lr, and its epochs in steps |

Control variates cover the trained parameters only; buffers of batch norm are averaged. With the run's momentum, option
II divides by the total weight of the steps' gradients instead of K, so that c_i stays a mean of gradients. When a reply
is lost, so is its Δc_i, and c no longer equals the mean of the c_i; the paper's protocol has the same effect.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedkin.bounds import Positive
from fedkin.client.evaluate import gradient
from fedkin.client.training import sgd
from fedkin.maths.mixing import average, same_for_all, shares
from fedkin.maths.steps import accumulation, local_steps, step_toward
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State

CITATION = r"""@inproceedings{karimireddy2020scaffold,
  title = {{SCAFFOLD}: Stochastic Controlled Averaging for Federated Learning},
  author = {Karimireddy, Sai Praneeth and Kale, Satyen and Mohri, Mehryar and Reddi, Sashank J. and Stich, Sebastian U.
            and Suresh, Ananda Theertha},
  booktitle = {International Conference on Machine Learning (ICML)},
  year = {2020}
}"""


@dataclass(frozen=True)
class Scaffold(Method):
    paper = "Karimireddy et al., ICML 2020"
    citation = CITATION
    travels = "model and control variate both ways"
    stays = "control variate"
    needs_sgd = "option II reads a client's mean gradient off the distance that the client moved."

    server_lr: Positive = 1.0
    """η_g: step of the server toward the mean of the replies; 1: all the way."""
    option: Literal["II", "I"] = "II"
    """How a client updates c_i. II: from the distance it moved. I: from the gradient on all its examples at x, which
    costs one more pass."""
    weighting: Literal["equal", "size"] = "equal"
    """Weights in the mean. equal: all clients alike, as in the paper. size: by n_i, the objective of FedAvg."""

    from_zero = (1,)

    def init(self, fed: Server) -> State:
        alike = self.weighting == "equal"
        return {
            "model": fed.initial(0),
            "control": torch.zeros(fed.layout.parameters),
            "part": fed.equal_shares() if alike else (fed.n.double() / fed.n.sum()).float(),
            "share": fed.equal_shares(),
        }

    def warnings(self, fed: Server, rounds: int) -> list[str]:
        return ["SCAFFOLD's control variates are zero in round 1. Use at least 2 rounds."] if rounds < 2 else []

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(shared=(state["model"], state["control"]))

    def local(self, client: Client, message: Message) -> Reply:
        x, c = message.shared
        lr, momentum = client.training.lr, client.training.momentum
        mine: Tensor = client.state.get("control", torch.zeros_like(c))
        y = sgd(client, x, regularizer_gradient=lambda w: c - mine)  # y <- y - η_l (g(y) - c_i + c), eq. (3)
        anchor = x[: len(c)]
        if self.option == "I":  # eq. (4), i
            new = gradient(client.net, x, client.data.train)[0] + client.training.weight_decay * anchor
        else:  # eq. (4), ii
            steps = local_steps(len(client.data.y), client.training.batch_size, client.training.epochs)
            new = mine - c + (anchor - y[: len(c)]) / (lr * accumulation(steps, lr=lr, momentum=momentum))
        return Reply({"control": new}, (y, new - mine))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        weights = replies.weights_by(self.weighting)
        y, change = replies.body
        model, control = state["model"], state["control"]
        return {
            "model": step_toward(model, average(y, weights), self.server_lr, len(control)),  # eq. (5)
            "control": control + average(change, state["part"][replies.ids]),  # c + |S|/N mean Δc_i, eq. (5)
            "part": state["part"],
            "share": shares(len(state["share"]), replies.ids, weights),
        }

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        return message.shared[0]

    def mixing(self, state: State) -> Tensor:
        return same_for_all(state["share"])

    def describe(self, state: State) -> dict[str, float]:
        return {"control_norm": float(state["control"].norm())}
