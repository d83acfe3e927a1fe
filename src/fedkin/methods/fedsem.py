"""FedSEM (FeSEM): Multi-Center Federated Learning.
Xie, Long, Shen, Zhou, Wang, Jiang, Zhang. arXiv 2005.01026, 2020.

| symbol | here |
|---|---|
| W_i, W̃^(k) | state "models", rows of state "centers" |
| r_i^(k) | state "labels" |
| K | clusters |
| (1/m) Σ_i min_k ‖W_i − W̃^(k)‖² | "multi_center_loss" in the history |

All centers start as the common model, so the first assignment is random and balanced, or by k-means on the first
models. In many dimensions a model is nearest to the mean that it is part of: with few clients a random assignment may
never change, and `first="kmeans"` finds groups that `random` does not. An empty center stays where it was. Distances
look at the parameters of the layers named (all of them in the paper), means at the whole row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedkin.bounds import Count, NonNegative
from fedkin.client.training import sgd
from fedkin.maths.centers import means, squared_to
from fedkin.maths.kmeans import gram, kmeans
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State, with_rows

CITATION = r"""@misc{xie2020multi,
  title = {Multi-Center Federated Learning},
  author = {Xie, Ming and Long, Guodong and Shen, Tao and Zhou, Tianyi and Wang, Xianzhi and Jiang, Jing
            and Zhang, Chengqi},
  year = {2020},
  eprint = {2005.01026},
  archivePrefix = {arXiv}
}"""


@dataclass(frozen=True)
class FedSEM(Method):
    paper = "Xie et al., arXiv 2005.01026, 2020"
    citation = CITATION
    travels = "model both ways"
    stays = "nothing"

    clusters: Count = 3
    """K: number of centers."""
    weighting: Literal["equal", "size"] = "equal"
    """Mean of a center's models: each alike (paper), or by rows (the authors' code)."""
    first: Literal["random", "kmeans"] = "random"
    """The first assignment: random and balanced (as in the authors' code), or k-means++ on the first round's models."""
    layers: tuple[str, ...] = ()
    """Names of the layers that distances look at; none: all (the authors' code looks at one dense layer)."""
    mu: NonNegative = 0.0
    """Strength of a pull to the received center in local training (an option of the authors' code)."""

    matters = {
        "layers": {"layers": ("fc2",)},
        "mu": {"mu": 1.0},
    }

    # ---- server
    def init(self, fed: Server) -> State:
        looked_at = fed.layout.positions(self.layers) if self.layers else torch.arange(fed.layout.parameters)
        order = torch.from_numpy(fed.rng(0, 0x5E3).permutation(fed.size))
        return {
            "centers": fed.initial(0).repeat(self.clusters, 1),
            "models": fed.initial(0).repeat(fed.size, 1),
            "labels": torch.empty(fed.size, dtype=torch.long).index_put(
                (order,), torch.arange(fed.size) % self.clusters
            ),
            "known": torch.zeros(fed.size, dtype=torch.bool),
            "n": fed.n if self.weighting == "size" else torch.ones_like(fed.n),
            "looked_at": looked_at[looked_at < fed.layout.parameters],
            "loss": 0.0,
        }

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(own=(state["centers"][state["labels"][ids]],))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        first = not bool(state["known"].any())
        models = with_rows(state["models"], replies.ids, replies.body[0])
        known = state["known"].clone()
        known[replies.ids] = True
        rows, labels, centers = models[known], state["labels"].clone(), state["centers"]
        if not first:
            labels[known] = self._apart(state, rows, centers).argmin(1)  # E-step
        elif self.first == "kmeans":  # else the random assignment stands: all centers are one
            rng = np.random.default_rng([replies.seed, 0x5E3])
            found = kmeans(gram(rows[:, state["looked_at"]]), self.clusters, restarts=10, rng=rng)
            labels[known] = torch.from_numpy(found.labels)
        centers = means(rows, labels[known], state["n"][known], centers)  # M-step
        loss = float(self._apart(state, rows, centers).min(1).values.mean())
        return {**state, "centers": centers, "models": models, "labels": labels, "known": known, "loss": loss}

    def _apart(self, state: State, rows: Tensor, centers: Tensor) -> Tensor:
        return squared_to(rows[:, state["looked_at"]], centers[:, state["looked_at"]])

    # ---- client
    def local(self, client: Client, message: Message) -> Reply:
        start = message.own[0]
        assert isinstance(start, Tensor)
        center = start[: client.net.layout.parameters]
        return Reply(
            {}, (sgd(client, start, regularizer_gradient=(lambda w: self.mu * (w - center)) if self.mu else None),)
        )

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        center = message.own[0]
        assert isinstance(center, Tensor)
        return center

    # ---- to look at
    def mixing(self, state: State) -> Tensor:
        """Shares in the own center; of an empty center nobody has any, so all alike."""
        inside: Tensor = (state["labels"][:, None] == state["labels"]) * state["known"] * state["n"].float()
        inside[inside.sum(1) == 0] = 1.0
        return inside / inside.sum(1, keepdim=True)

    def describe(self, state: State) -> dict[str, Any]:
        return {
            "clusters": torch.where(state["known"], state["labels"], -1),
            "multi_center_loss": state["loss"],
        }
