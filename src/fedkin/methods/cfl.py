"""CFL: Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization Under Privacy Constraints.
Sattler, Müller, Samek. IEEE TNNLS 2021.

| symbol | here |
|---|---|
| θ_c, Δθ_i | rows of state "models"; replies.body[0], the client's change of the model it was sent |
| C | state "labels": the cluster of each client, -1 before its first reply |
| ε_1, ε_2, γ_max | eps1, eps2, gamma_max |
| α_ij, α^max_cross | cosine of updates; the second result of `bipartition` |

A client first heard after a split was sent the model from before the first split (state "root"). It joins the cluster
whose model moved from there most in the direction of the client's own update; the paper descends its tree of splits.
The paper's choice among cached ancestors by validation is left out.

The norms of updates depend on model, learning rate and epochs, so ε_1 and ε_2 are in units of the longest mean update
of the cluster so far. `scale="absolute"` takes them as plain norms, as the authors' code does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedkin.bounds import Bound, Fraction, NonNegative, PositiveFraction, Whole
from fedkin.client.training import sgd
from fedkin.maths.cluster import bipartition
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
    needs_sgd = "clients are split by the directions of their gradients, which only steps of SGD keep."

    eps1: NonNegative = 0.6
    """ε_1: a cluster is stationary when its mean update is shorter than this. The authors' rule of thumb is 0.1, which
    takes hundreds of rounds to reach."""
    eps2: Annotated[float, Bound(least=0, infinite=True)] = 1.0
    """ε_2: a stationary cluster is split if some member's update is longer than this. inf: no split, FedAvg."""
    scale: Literal["relative", "absolute"] = "relative"
    """Unit of eps1 and eps2. relative: the longest mean update of the cluster so far. absolute: plain norms, as in the
    authors' code, which takes 0.4 and 1.6."""
    gamma_max: Fraction = 0.0
    """γ_max: a split is accepted if √((1 − α_cross)/2) is larger; 0: any split (authors' code)."""
    wait: Whole = 5
    """Rounds before the first test; 20 in the authors' code."""
    least: Annotated[int, Bound(least=2)] = 3
    """Smallest cluster that is tested (from the authors' code)."""
    quorum: PositiveFraction = 1.0
    """Fraction of a cluster's members that must have replied for a test. Members without a reply at a split join a part
    later, as newcomers do."""
    weighting: Literal["size", "equal"] = "size"
    """Weights in the mean of a cluster's updates. size: by number of examples (paper). equal: all alike (authors'
    code)."""

    matters = {
        "eps1": {"wait": 0, "eps2": 0.0, "eps1": 1e9, "settings": {"participation": 1.0}},
        "eps2": {"wait": 0, "eps1": 1e9, "eps2": float("inf"), "settings": {"participation": 1.0}},
        "scale": {"wait": 0, "eps1": 1e9, "scale": "absolute", "settings": {"participation": 1.0}},
        "gamma_max": {"wait": 0, "eps1": 1e9, "eps2": 0.0, "gamma_max": 1.0, "settings": {"participation": 1.0}},
        "wait": {"eps1": 1e9, "eps2": 0.0, "wait": 0, "settings": {"participation": 1.0}},
        "least": {"wait": 0, "eps1": 1e9, "eps2": 0.0, "least": 100, "settings": {"participation": 1.0}},
        "quorum": {"wait": 1, "eps1": 1e9, "eps2": 0.0, "quorum": 0.5},
    }

    from_zero = (0,)

    # ---- server
    def init(self, fed: Server) -> State:
        return {
            "models": fed.initial(0)[None],
            "root": fed.initial(0),
            "labels": torch.full((fed.size,), -1),
            "share": fed.equal_shares(1),
            "root_share": fed.equal_shares(),
            "round": 0,
            "parameters": fed.layout.parameters,
            "longest": torch.zeros(1),
            "mean_update": torch.zeros(1),
            "largest_update": torch.zeros(1),
        }

    def warnings(self, fed: Server, rounds: int) -> list[str]:
        out = []
        if rounds <= self.wait:
            out.append(
                f"CFL splits no cluster in {rounds} rounds, because it waits for {self.wait}. Use more rounds or a "
                "smaller wait."
            )
        if fed.participation < self.quorum:
            out.append(
                f"CFL splits clusters only in rounds in which {self.quorum:.0%} of their members reply; with "
                f"participation {fed.participation:g} that is rare or never. Use quorum {fed.participation:g} or less."
            )
        return out

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(own=(_by_cluster(state["models"], state["root"], state["labels"][ids]),))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        updates: Tensor = replies.body[0]
        flat = updates[:, : state["parameters"]]
        before, models, share = state["labels"], state["models"].clone(), state["share"].clone()
        norms = {name: state[name].clone() for name in ("longest", "mean_update", "largest_update")}
        labels, whole = before.clone(), len(models) == 1
        new = replies.ids[before[replies.ids] < 0]
        labels[new] = 0 if whole else self._joined(state, flat[before[replies.ids] < 0])
        for c in range(len(models)):
            # a newcomer's update starts at another model, except before the first split
            mine = ((labels if whole else before)[replies.ids] == c).nonzero().flatten()
            if not len(mine):
                continue
            mine = mine[replies.ids[mine].argsort()]  # so that labels do not depend on the order of replies
            n = replies.n[mine].double() if self.weighting == "size" else torch.ones(len(mine), dtype=torch.double)
            weights = (n / n.sum()).float()
            models[c] += average(updates[mine], weights)
            share[c] = shares(share.shape[1], replies.ids[mine], weights)
            norms["mean_update"][c] = average(flat[mine], weights).norm()
            norms["largest_update"][c] = flat[mine].norm(dim=1).max()
            norms["longest"][c] = max(norms["longest"][c], norms["mean_update"][c])
            members = int((labels == c).sum())
            if self._stationary(
                state["round"] + 1, {name: float(norm[c]) for name, norm in norms.items()}, len(mine), members
            ):
                other, cross = bipartition(cosine(gram(flat[mine])))  # min over cuts of the max α across
                if ((1 - cross) / 2) ** 0.5 > self.gamma_max:  # far enough apart
                    labels[labels == c] = -1  # members without a reply are newcomers again
                    labels[replies.ids[mine]] = c
                    labels[replies.ids[mine[torch.from_numpy(other)]]] = len(models)  # ids, not positions
                    models, share = torch.cat([models, models[c : c + 1]]), torch.cat([share, share[c : c + 1]])
                    norms = {name: torch.cat([norm, norm[c : c + 1]]) for name, norm in norms.items()}
                    norms["longest"][[c, -1]] = 0.0  # two new clusters
        root = (models[0], share[0]) if len(models) == 1 else (state["root"], state["root_share"])
        if whole and len(models) > 1:
            root = (models[0], share[0])  # both parts start here, and so will newcomers
        return {
            **state, **norms, "models": models, "share": share, "labels": labels,
            "root": root[0], "root_share": root[1], "round": state["round"] + 1,
        }  # fmt: skip

    def _stationary(self, round: int, norms: dict[str, float], replied: int, members: int) -> bool:
        """Does the cluster as a whole stand still while single members would still move far?"""
        if round <= self.wait or replied < self.least or replied < self.quorum * members:
            return False
        unit = norms["longest"] if self.scale == "relative" else 1.0
        return norms["mean_update"] < self.eps1 * unit and norms["largest_update"] > self.eps2 * unit

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

    # ---- newcomers
    def join(self, state: State, client: Client, id: int) -> Message:
        """The model of the cluster that its update from the root points to, as in `merge`."""
        if len(state["models"]) == 1:
            return super().join(state, client, id)
        update = sgd(client, state["root"]) - state["root"]
        cluster = int(self._joined(state, update[None, : state["parameters"]]))
        return Message(own=(state["models"][cluster],))

    # ---- to look at
    def mixing(self, state: State) -> Tensor:
        return _by_cluster(state["share"], state["root_share"], state["labels"])

    def describe(self, state: State) -> dict[str, Any]:
        """The norms are what eps1 and eps2 are compared with, cluster by cluster."""
        return {
            "clusters": state["labels"],
            "models": len(state["models"]),
            "mean_update": state["mean_update"],
            "largest_update": state["largest_update"],
            "longest_mean_update": state["longest"],
        }


def _by_cluster(rows: Tensor, otherwise: Tensor, labels: Tensor) -> Tensor:
    return torch.where((labels >= 0)[:, None], rows[labels.clamp(min=0)], otherwise)
