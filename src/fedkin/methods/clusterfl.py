"""ClusterFL: A Similarity-Aware Federated Learning System for Human Activity Recognition.
Ouyang, Xie, Zhou, Huang, Xing. MobiSys 2021.

| symbol | here |
|---|---|
| W, F, Ω, U | state "models", "indicator", "omega", "dual" |
| α, β, ρ | alpha, beta, rho |

min over W and F of Σ L_i(w_i) + α tr(WWᵀ) − β tr(FᵀWWᵀF), by ADMM with Ω = FᵀW and multipliers U.

With α = β and F a cluster's averaging matrix the penalty is β Σ ‖w_i − mean of i's cluster‖², k-means' objective.

Deviations. The authors' server compares models by their outputs (KL divergence) on test data of its own; a server
without data compares parameters by squared distances. The server sends a client one vector c_i and one number, where
the authors send Ω and U whole (2N models); the gradient is the same. The authors' client step has the opposite sign
before U + ρΩ and lacks the cross term: `official_step`. The authors' α = 1e-3, β = 5e-4, ρ = 2e-3 go with 1,000 local
epochs in all; in a run of 20 they change nothing, so the defaults are larger.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkin.bounds import Count, NonNegative
from fedkin.client.newcomer import after_one_round
from fedkin.client.training import sgd
from fedkin.maths.kmeans import gram, squared_distances
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State, with_rows

CITATION = r"""@inproceedings{ouyang2021clusterfl,
  title = {{ClusterFL}: A Similarity-Aware Federated Learning System for Human Activity Recognition},
  author = {Ouyang, Xiaomin and Xie, Zhiyuan and Zhou, Jiayu and Huang, Jianwei and Xing, Guoliang},
  booktitle = {International Conference on Mobile Systems, Applications, and Services (MobiSys)},
  year = {2021}
}"""


@dataclass(frozen=True)
class ClusterFL(Method):
    paper = "Ouyang et al., MobiSys 2021"
    citation = CITATION
    travels = "down: a vector of the model's size; up: parameters"
    stays = "model"
    quadratic = "the indicator F, and three vectors for each client in memory."

    alpha: NonNegative = 0.1
    """α: L2 penalty on each model. At least β, or models can grow without bound."""
    beta: NonNegative = 0.1
    """β: how strongly the models of one cluster are drawn together."""
    rho: float = 0.8
    """ρ: penalty of the augmented Lagrangian; above 2β, and above 4β for Ω to converge."""
    update_every: Count = 3
    """Rounds between updates of the indicator F, which is 0 before the first one."""
    official_step: bool = False
    """The client step of the authors' code, with its sign."""

    matters = {
        "beta": {"update_every": 1},
        "rho": {"update_every": 1, "rho": 1.6},
        "update_every": {"update_every": 1},
        "official_step": {"update_every": 1},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.rho > 2 * self.beta:
            raise ValueError(f"rho={self.rho} must be above 2·beta={2 * self.beta}: Ω is divided by ρ − 2β.")

    from_zero = (0,)

    # ---- server
    def init(self, fed: Server) -> State:
        none = torch.zeros(fed.size, fed.layout.parameters)
        return {
            "models": fed.initial(0)[: fed.layout.parameters].repeat(fed.size, 1),
            "known": torch.zeros(fed.size, dtype=torch.bool),
            "indicator": torch.zeros(fed.size, fed.size),
            "omega": none,
            "dual": none,
            "round": 0,
        }

    def warnings(self, fed: Server, rounds: int) -> list[str]:
        if rounds > self.update_every:
            return []
        return [
            f"ClusterFL is local training with an L2 penalty in {rounds} rounds: clusters first act in round "
            f"{self.update_every + 1}. Give more rounds, or lower update_every."
        ]

    def send(self, state: State, ids: Tensor) -> Message:
        f = state["indicator"]
        if self.official_step:
            linear = -(f[ids] @ (state["dual"] + self.rho * state["omega"]))
        else:
            linear = linear_term(f, state["models"], state["omega"], state["dual"], self.rho)[ids]
        return Message(own=(linear, self.rho * f[ids].square().sum(1)))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        models = with_rows(state["models"], replies.ids, replies.body[0])
        known = state["known"].clone()
        known[replies.ids] = True
        round, f = state["round"] + 1, state["indicator"]
        if round % self.update_every == 0:
            ids = known.nonzero().flatten()
            f = torch.zeros_like(f)
            f[ids[:, None], ids] = torch.from_numpy(indicator(squared_distances(gram(models[ids])))).float()
        omega, dual = auxiliary(f, models, state["dual"], self.beta, self.rho)
        return {"models": models, "known": known, "indicator": f, "omega": omega, "dual": dual, "round": round}

    # ---- client
    def local(self, client: Client, message: Message) -> Reply:
        linear, quadratic = message.own
        assert isinstance(linear, Tensor)
        assert isinstance(quadratic, Tensor)
        own = 2 * self.alpha + float(quadratic)
        trained = sgd(
            client, client.state.get("model", client.net.initial), regularizer_gradient=lambda w: own * w - linear
        )
        return Reply({"model": trained}, (trained[: client.net.layout.parameters],))

    def received(self, client: Client, message: Message) -> None:
        return None  # no model is sent

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        model: Tensor = (client.state if "model" in client.state else trained().state)["model"]
        return model

    # ---- newcomers
    def join(self, state: State, client: Client, id: int) -> Message:
        """What its cluster sends, from an indicator that includes the newcomer's model."""
        return after_one_round(replace(self, update_every=1), state, client, id)

    # ---- to look at
    def describe(self, state: State) -> dict[str, Any]:
        gap = (state["omega"] - state["indicator"].T @ state["models"]).norm()
        return {"omega_gap": gap} | ({"indicator": state["indicator"]} if len(state["models"]) <= 100 else {})


Floats = NDArray[np.float64]


def indicator(apart: Floats) -> Floats:
    """F from pairwise divergences: their centered rows' products, negative ones as 0, columns that sum to 1 (or are 0).

    The authors keep all principal components of the centered rows, so the products are those of the rows themselves.
    """
    centered = apart - apart.mean(0)
    near = np.maximum(centered @ centered.T, 0)
    total = near.sum(0)
    out: Floats = near / np.where(total > 0, total, 1)
    return out


def auxiliary(f: Tensor, w: Tensor, u: Tensor, beta: float, rho: float) -> tuple[Tensor, Tensor]:
    """Ω, the stationary point of −β‖Ω‖² + ⟨U, Ω − FᵀW⟩ + ρ/2‖Ω − FᵀW‖², and the next multipliers U."""
    mean = f.T @ w
    omega = (rho * mean - u) / (rho - 2 * beta)
    return omega, u + rho * (omega - mean)


def linear_term(f: Tensor, w: Tensor, omega: Tensor, u: Tensor, rho: float) -> Tensor:
    """c with rows c_i = Σ_j F_ij (U_j + ρ Ω_j) − ρ Σ_j F_ij Σ_{k≠i} F_kj w_k. The Lagrangian depends on w_i through
    ½ρ Σ_j F_ij² ‖w_i‖² − ⟨c_i, w_i⟩."""
    others = f @ (f.T @ w) - f.square().sum(1, keepdim=True) * w
    return f @ (u + rho * omega) - rho * others
