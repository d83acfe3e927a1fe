"""Fixed groups that an oracle gives: DC-PFL's figures 2 and 3 group clients by the KLD of their labels.

No server knows the labels, so this is no method that one could use: it exists for these two figures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedkin.client.training import sgd
from fedkin.maths.divergence import pairwise_kld
from fedkin.maths.mixing import average
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State


@dataclass(frozen=True)
class OracleGroups(Method):
    """FedAvg of everybody for the first `start` rounds, then FedAvg inside each group."""

    groups: tuple[int, ...] = ()
    """The group of each client."""
    start: int = 0
    """Rounds in one group before the split."""

    def init(self, fed: Server) -> State:
        if len(self.groups) != fed.size:
            raise ValueError(f"groups names {len(self.groups)} clients; the federation has {fed.size}.")
        labels = torch.tensor(self.groups)
        return {"models": fed.initial(0).repeat(int(labels.max()) + 1, 1), "labels": labels, "clock": 0}

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(own=(state["models"][state["labels"][ids]],))

    def local(self, client: Client, message: Message) -> Reply:
        start = message.own[0]
        assert isinstance(start, Tensor)
        return Reply({}, (sgd(client, start),))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        models, clock = state["models"].clone(), state["clock"] + 1
        rows: Tensor = replies.body[0]
        if clock <= self.start:
            models[:] = average(rows, replies.weights)
            return {**state, "models": models, "clock": clock}
        labels = state["labels"][replies.ids]
        for group in labels.unique().tolist():
            inside = labels == group
            models[group] = average(rows[inside], replies.weights[inside] / replies.weights[inside].sum())
        return {**state, "models": models, "clock": clock}

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        model = message.own[0]
        assert isinstance(model, Tensor)
        return model

    def describe(self, state: State) -> dict[str, object]:
        return {"group_count": len(state["models"]) if state["clock"] > self.start else 1}


def by_kld(counts: np.ndarray, *, share: float | None = None, count: int | None = None) -> tuple[int, ...]:
    """Average linkage on the pairwise KLD of label histograms [clients, classes], cut at a share of the tree's height
    (1: one group) or into `count` groups."""
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    tree = linkage(squareform(pairwise_kld(counts), checks=False), "average")
    if count is not None:
        labels = fcluster(tree, count, "maxclust")
    else:
        assert share is not None
        labels = fcluster(tree, share * tree[-1, 2], "distance")
    return tuple(int(label) - 1 for label in labels)
