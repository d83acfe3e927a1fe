"""pFedMe: Personalized Federated Learning with Moreau Envelopes.
T. Dinh, Tran, Nguyen. NeurIPS 2020.

| symbol | here |
|---|---|
| F_i(w) = min_θ f_i(θ) + λ/2 ‖θ − w‖² | the Moreau envelope, the clients' objective |
| w^t | state "model" |
| w_i, θ_i | `w`, client state "theta" (the personal model) |
| λ | lam |
| K, η_p | inner_steps, inner_lr: gradient steps on the envelope's inner problem |
| R, η | local_rounds, the run's lr |
| β | beta |
| S^t | drawn from state "round" and "seed" |

All clients work in every round, and S^t only says who is averaged (`everyone`); clients outside S^t send nothing back.
Deviations: no momentum; the authors' undocumented weight decay of 0.001 in the inner problem is the run's weight_decay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedkin.bounds import Count, NonNegative, Whole
from fedkin.client.steps import slope
from fedkin.client.training import stream
from fedkin.maths.mixing import average, same_for_all, shares
from fedkin.protocol import (
    Client,
    Message,
    Method,
    Model,
    Replies,
    Reply,
    Server,
    State,
    ragged,
    require,
    round_half_up,
)

CITATION = r"""@inproceedings{dinh2020personalized,
  title = {Personalized Federated Learning with Moreau Envelopes},
  author = {{T. Dinh}, Canh and Tran, Nguyen H. and Nguyen, Tuan Dung},
  booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
  year = {2020}
}"""


@dataclass(frozen=True)
class PFedMe(Method):
    paper = "T. Dinh et al., NeurIPS 2020"
    citation = CITATION
    travels = "model both ways; up only from those averaged"
    stays = "personal model"
    needs_sgd = "inner and outer steps are gradient steps of its own, which optimizer and clip do not enter."

    lam: NonNegative = 15.0
    """λ: how strongly personal models are pulled to the global one."""
    inner_steps: Count = 5
    """K: gradient steps on the inner problem, all on the same batch."""
    inner_lr: NonNegative = 0.05
    """η_p: rate of the inner steps; inner_lr · lam should stay below 1."""
    local_rounds: Whole = 0
    """R: batches per round; 0: as many as the run's epochs have. The paper uses 20."""
    beta: NonNegative = 1.0
    """β: step of the server toward the mean of the replies; 1: all the way."""
    warm_start: bool = True
    """θ continues from the last batch, as in the authors' code. False: it starts at w_i for every batch."""
    everyone: bool = True
    """All clients work in every round, and the run's participation is the fraction that is averaged. False: only that
    fraction works."""
    weighting: Literal["equal", "size"] = "equal"
    """Weights in the mean. equal: all replies alike, as in the paper. size: by n_k, as in the authors' code."""

    matters = {"everyone": {"settings": {"participation": 0.5}}}

    def init(self, fed: Server) -> State:
        if fed.training.lr * self.lam >= 2:
            raise ValueError(
                f"lr={fed.training.lr} times lam={self.lam} is {fed.training.lr * self.lam:.3g}: from 2 on the models "
                f"diverge. Use lr of at most {1 / self.lam:.3g}."
            )
        return {
            "model": fed.initial(0),
            "share": fed.equal_shares(),
            "round": 0,
            "seed": fed.seed,
            "participation": fed.participation if self.everyone else 1.0,
        }

    def select(self, state: State, fed: Server, round: int) -> Tensor:
        return fed.ids if self.everyone else fed.sample(round)

    def send(self, state: State, ids: Tensor) -> Message:
        counted = torch.zeros(len(ids), dtype=torch.bool)  # S^t
        count = max(1, round_half_up(state["participation"] * len(ids)))
        rng = np.random.default_rng([state["seed"], state["round"], 0x3E])
        drawn = torch.from_numpy(rng.choice(len(ids), size=count, replace=False))
        counted[ids.argsort()[drawn]] = True  # among the ids in order, whatever the order of those asked
        return Message(shared=(state["model"],), own=(counted,))

    @ragged
    def local(self, client: Client, message: Message) -> Reply:
        net, parameters = client.net, client.net.layout.parameters
        net.load(message.shared[0])
        net.train()
        w = message.shared[0][:parameters].clone()
        theta = w.clone()
        decay = client.training.weight_decay
        for batch in stream(client, steps=self.local_rounds or None):
            if not self.warm_start:
                theta = w.clone()
            for _ in range(self.inner_steps):  # in place: in so short a step, new arrays cost more than the arithmetic
                # ∇f_i(θ) + λ(θ − w) + decay · θ
                gradient = slope(net, theta, batch).add_(theta, alpha=self.lam + decay).sub_(w, alpha=self.lam)
                theta.sub_(gradient, alpha=self.inner_lr)
            w.lerp_(theta, client.training.lr * self.lam)  # w − ηλ(w − θ), since ∇F_i(w) = λ(w − θ)
        buffers = net.flat[parameters:]
        counted = message.own[0]
        reply = torch.cat([w, buffers]) if counted else torch.empty(0)
        return Reply({"theta": torch.cat([theta, buffers])}, (reply,))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        state = {**state, "round": state["round"] + 1}
        fits = (len(reply) in (0, len(state["model"])) for reply in replies.body[0])
        require(replies, fits, "replied with a model of another length")
        there = [index for index, reply in enumerate(replies.body[0]) if len(reply)]
        if not there:
            return state
        weights = replies.n[there].double() if self.weighting == "size" else torch.ones(len(there)).double()
        weights = (weights / weights.sum()).float()
        mean = average(torch.stack([replies.body[0][index] for index in there]), weights)
        share = shares(len(state["share"]), replies.ids[there], weights)
        return {
            **state,
            "model": (1 - self.beta) * state["model"] + self.beta * mean,
            "share": (1 - self.beta) * state["share"] + self.beta * share,
        }

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        theta: Tensor = client.state.get("theta", message.shared[0])
        return theta

    def received(self, client: Client, message: Message) -> Model:
        return message.shared[0]

    def mixing(self, state: State) -> Tensor:
        return same_for_all(state["share"])
