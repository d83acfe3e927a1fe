"""ClusterFL as the DC-PFL paper describes it: it "clusters clients by K-means. Each client's model is updated based on
both its local data and other clients' models in the same cluster".
Ouyang et al., MobiSys 2021, as read by Liu et al., 2025.

| symbol | here |
|---|---|
| w_i, c_k | state "models" (and the client's own state "model"), state "centers" |
| K, λ | clusters, lam |

Not the method of the ClusterFL paper: that is `clusterfl`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedkin.bounds import Count, NonNegative
from fedkin.client.newcomer import best_fit
from fedkin.client.training import sgd
from fedkin.maths.centers import means
from fedkin.maths.kmeans import gram_of, kmeans
from fedkin.maths.table import ClientTable
from fedkin.methods.clusterfl import CITATION
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State, with_rows


@dataclass(frozen=True)
class ClusterFLKMeans(Method):
    paper = "Ouyang et al., MobiSys 2021, as read by Liu et al., 2025"
    citation = CITATION
    travels = "model both ways"
    stays = "model"

    clusters: Count = 3
    """K: number of k-means clusters. k-means runs in every round on the last models of all clients heard so far."""
    lam: NonNegative = 0.1
    """λ: weight of the penalty λ/2·‖w − c_k‖² around the cluster's center; 0 with start=own is local training."""
    start: Literal["own", "center"] = "own"
    """Where local training starts: at the client's own model, or at the received center."""
    weighting: Literal["equal", "size"] = "equal"
    """Weights of the members in a center: equal, or by their number of examples."""
    restarts: Count = 10
    """Number of k-means restarts; the best one is kept."""

    matters = {"restarts": {"clusters": 3, "restarts": 1}}

    # ---- server
    def init(self, fed: Server) -> State:
        return {
            "models": ClientTable(fed.initial(0), fed.size),
            "centers": fed.initial(0)[None],
            "labels": torch.full((fed.size,), -1),
            "n": fed.n if self.weighting == "size" else torch.ones_like(fed.n),
            "parameters": fed.layout.parameters,
        }

    def warnings(self, fed: Server, rounds: int) -> list[str]:
        if self.clusters < len(fed.ids):
            return []
        return [
            f"ClusterFL-kmeans has {self.clusters} clusters for {len(fed.ids)} clients, so every client is its own "
            f"center and trains alone: use clusters below {len(fed.ids)}."
        ]

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(own=(_own(state["centers"], state["labels"][ids]),))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        models = with_rows(state["models"], replies.ids, replies.body[0])
        known = state["labels"] >= 0
        known[replies.ids] = True
        ids = known.nonzero().flatten()
        rng = np.random.default_rng([replies.seed, 0xC1F])
        found = kmeans(gram_of(models, ids, state["parameters"]), self.clusters, restarts=self.restarts, rng=rng)
        labels = torch.full_like(state["labels"], -1)
        labels[ids] = torch.from_numpy(found.labels)
        empty = torch.zeros(int(found.labels.max()) + 1, models.shape[1])
        centers = means(models, labels[ids], state["n"][ids], empty, ids)
        return {**state, "models": models, "labels": labels, "centers": centers}

    # ---- client
    def local(self, client: Client, message: Message) -> Reply:
        center = message.own[0]
        assert isinstance(center, Tensor)
        anchor = center[: client.net.layout.parameters]
        start = center if self.start == "center" else client.state.get("model", client.net.initial)
        trained = sgd(client, start, regularizer_gradient=(lambda w: self.lam * (w - anchor)) if self.lam else None)
        return Reply({"model": trained}, (trained,))

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        model: Tensor = (client.state if "model" in client.state else trained().state)["model"]
        return model

    # ---- newcomers
    def join(self, state: State, client: Client, id: int) -> Message:
        """The center that fits the newcomer's examples best."""
        return Message(own=(state["centers"][best_fit(client, state["centers"])],))

    # ---- to look at
    def mixing(self, state: State) -> Tensor:
        """Weights in the center that is sent; a client that never answered is sent the mean of the centers."""
        labels = state["labels"]
        inside: Tensor = (torch.arange(len(state["centers"]))[:, None] == labels) * state["n"].float()
        inside[inside.sum(1) == 0] = 1.0  # before round 1 the center has no members
        return _own(inside / inside.sum(1, keepdim=True), labels)

    def describe(self, state: State) -> dict[str, Any]:
        return {"clusters": state["labels"]}


def _own(table: Tensor, labels: Tensor) -> Tensor:
    """The row of each client's cluster; the mean of the rows without a cluster."""
    return torch.where((labels >= 0)[:, None], table[labels.clamp(min=0)], table.mean(0))
