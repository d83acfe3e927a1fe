"""CFL: Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization Under Privacy Constraints.
Sattler, Müller, Samek. IEEE TNNLS 2021.

| symbol | here |
|---|---|
| θ_c, Δθ_i | rows of state "models"; replies.body[0], the client's change of the model it was sent |
| C | state "labels": the cluster of each client, -1 before its first answer |
| ε_1, ε_2, γ_max | eps1, eps2, gamma_max |
| α_ij, α^max_cross | cosine of updates; the second result of `bipartition` |

A client first heard after a split was sent the model from before the first split (state "root") and joins the cluster
whose model moved from there most in the client's own direction; the paper descends its tree of splits. The paper's
choice among cached ancestors by validation is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fedkin.bounds import Bound, Fraction, NonNegative, PositiveFraction, Whole
from fedkin.client.training import sgd
from fedkin.maths.graph import cosine
from fedkin.maths.kmeans import gram
from fedkin.maths.mixing import average, shares
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State

CITATION = r"""@article{sattler2021clustered,
  title = {Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization Under Privacy Constraints},
  author = {Sattler, Felix and M{\"u}ller, Klaus-Robert and Samek, Wojciech},
  journal = {IEEE Transactions on Neural Networks and Learning Systems},
  year = {2021}
}"""


@dataclass(frozen=True)
class CFL(Method):
    paper = "Sattler et al., TNNLS 2021"
    citation = CITATION
    travels = "model down, update up"
    stays = "nothing"

    eps1: NonNegative = 0.4
    """ε_1: a cluster is stationary when its mean update is shorter. Absolute, so it depends on model and learning rate;
    the authors advise about a tenth of the longest update."""
    eps2: Annotated[float, Bound(least=0, infinite=True)] = 1.6
    """ε_2: it is incongruent when, all the same, some member's update is longer. inf: no split, FedAvg."""
    gamma_max: Fraction = 0.0
    """γ_max: a split is accepted if √((1 − α_cross)/2) is larger; 0: any split (the authors' code)."""
    wait: Whole = 20
    """Rounds before the first test (from the authors' code)."""
    least: Annotated[int, Bound(least=2)] = 3
    """Clusters of fewer members are not tested (from the authors' code)."""
    quorum: PositiveFraction = 1.0
    """Share of a cluster's members that must have answered for a test; those missing at a split join a part later, as
    newcomers do."""
    weighting: Literal["size", "equal"] = "size"
    """The mean of a cluster's updates: by rows (paper) or each alike (the authors' code)."""

    matters = {
        "eps1": {"wait": 0, "eps2": 0.0, "eps1": 1e9, "settings": {"participation": 1.0}},
        "eps2": {"wait": 0, "eps1": 1e9, "eps2": 0.0, "settings": {"participation": 1.0}},
        "gamma_max": {"wait": 0, "eps1": 1e9, "eps2": 0.0, "gamma_max": 1.0, "settings": {"participation": 1.0}},
        "wait": {"eps1": 1e9, "eps2": 0.0, "wait": 0, "settings": {"participation": 1.0}},
        "least": {"wait": 0, "eps1": 1e9, "eps2": 0.0, "least": 100, "settings": {"participation": 1.0}},
        "quorum": {"wait": 1, "eps1": 1e9, "eps2": 0.0, "quorum": 0.5},
    }

    # ---- server
    def init(self, fed: Server) -> State:
        return {
            "models": fed.initial(0)[None],
            "root": fed.initial(0),
            "labels": torch.full((fed.size,), -1),
            "share": torch.full((1, fed.size), 1 / fed.size),
            "root_share": fed.equal_shares(),
            "round": 0,
            "parameters": fed.layout.parameters,
        }

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(own=(_by_cluster(state["models"], state["root"], state["labels"][ids]),))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        updates: Tensor = replies.body[0]
        flat = updates[:, : state["parameters"]]
        before, models, share = state["labels"], state["models"].clone(), state["share"].clone()
        labels, whole = before.clone(), len(models) == 1
        new = replies.ids[before[replies.ids] < 0]
        labels[new] = 0 if whole else self._joined(state, flat[before[replies.ids] < 0])
        for c in range(len(models)):
            # a newcomer's update starts at another model, except before the first split
            mine = ((labels if whole else before)[replies.ids] == c).nonzero().flatten()
            if not len(mine):
                continue
            n = replies.n[mine].double() if self.weighting == "size" else torch.ones(len(mine), dtype=torch.double)
            weights = (n / n.sum()).float()
            models[c] += average(updates[mine], weights)
            share[c] = shares(share.shape[1], replies.ids[mine], weights)
            members = int((labels == c).sum())
            if self._stationary(state["round"] + 1, flat[mine], weights, members):
                other, cross = bipartition(cosine(gram(flat[mine])))  # min over cuts of the max α across
                if ((1 - cross) / 2) ** 0.5 > self.gamma_max:  # far enough apart
                    labels[labels == c] = -1  # those who did not answer are newcomers again
                    labels[replies.ids[mine]] = c
                    labels[replies.ids[mine[torch.from_numpy(other)]]] = len(models)  # ids, not positions
                    models, share = torch.cat([models, models[c : c + 1]]), torch.cat([share, share[c : c + 1]])
        root = (models[0], share[0]) if len(models) == 1 else (state["root"], state["root_share"])
        if whole and len(models) > 1:
            root = (models[0], share[0])  # both parts start here, and so will newcomers
        return {
            **state, "models": models, "share": share, "labels": labels,
            "root": root[0], "root_share": root[1], "round": state["round"] + 1,
        }  # fmt: skip

    def _stationary(self, round: int, updates: Tensor, weights: Tensor, members: int) -> bool:
        """Together they stand still, alone they would not."""
        if round <= self.wait or len(updates) < self.least or len(updates) < self.quorum * members:
            return False
        together = float(average(updates, weights).norm())
        return together < self.eps1 and float(updates.norm(dim=1).max()) > self.eps2

    def _joined(self, state: State, updates: Tensor) -> Tensor:
        moved = (state["models"] - state["root"])[:, : state["parameters"]]
        return F.cosine_similarity(updates[:, None], moved[None], dim=2).argmax(1)

    # ---- client
    def local(self, client: Client, message: Message) -> Reply:
        start = message.own[0]
        assert isinstance(start, Tensor)
        return Reply({}, (sgd(client, start) - start,))

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        model = message.own[0]
        assert isinstance(model, Tensor)
        return model

    # ---- to look at
    def mixing(self, state: State) -> Tensor:
        return _by_cluster(state["share"], state["root_share"], state["labels"])

    def describe(self, state: State) -> dict[str, Any]:
        return {"clusters": state["labels"], "models": len(state["models"])}


def _by_cluster(rows: Tensor, otherwise: Tensor, labels: Tensor) -> Tensor:
    return torch.where((labels >= 0)[:, None], rows[labels.clamp(min=0)], otherwise)


Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


def bipartition(similarity: Floats) -> tuple[Flags, float]:
    """The two parts whose largest similarity across is smallest, and that similarity.

    Pairs are joined in order of decreasing similarity until two parts are left (single linkage), which attains the
    min-max exactly. True marks the part without the first row.
    """
    count = len(similarity)
    if count < 2:
        raise ValueError(f"{count} rows cannot be cut in two.")
    part = np.arange(count)
    first, second = np.triu_indices(count, 1)
    for pair in np.argsort(-similarity[first, second], kind="stable"):
        if len(np.unique(part)) == 2:
            break
        part[part == part[second[pair]]] = part[first[pair]]
    other: Flags = part != part[0]
    return other, float(similarity[~other][:, other].max())
