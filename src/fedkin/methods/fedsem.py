"""FedSEM (FeSEM): Multi-Center Federated Learning.
Xie, Long, Shen, Zhou, Wang, Jiang, Zhang. arXiv 2005.01026, 2020.

| symbol | here |
|---|---|
| W_i, W̃^(k) | replies.body[0], rows of state "centers" |
| r_i^(k) | state "labels" |
| K | clusters |
| (1/m) Σ_i min_k ‖W_i − W̃^(k)‖² | "multi_center_loss" in the history |

All centers start as the common model, so the first assignment cannot be by distance: it is k-means on the first round's
models, or random and balanced. With few clients a random assignment may never change, because in many dimensions a
model is nearest to the mean that contains it. A center without members stays where it was. Distances use the
parameters of the named layers (all layers in the paper); means use the whole vector.

Both steps use the models of this round's replies. `average="last"` uses the last model of every client heard so far, as
the paper's equations do with all clients in every round; under partial participation those models are many rounds old.
A client that was never heard receives the mean of the centers, weighted by their members.
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
from fedkin.maths.centers import means, squared_to
from fedkin.maths.kmeans import gram, kmeans
from fedkin.maths.mixing import average, shares
from fedkin.maths.table import ClientTable, Table, blocks
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
    """Weights in a center's mean. equal: all models alike (paper). size: by number of examples (authors' code)."""
    first: Literal["kmeans", "random"] = "kmeans"
    """First assignment: k-means++ on the first round's models, or random and balanced (authors' code)."""
    average: Literal["round", "last"] = "round"
    """Models that both steps use: this round's replies, or the last model of every client heard so far."""
    layers: tuple[str, ...] = ()
    """Names of the layers that distances use; empty: all layers. The authors' code uses one dense layer."""
    mu: NonNegative = 0.0
    """Strength of a proximal term around the received center (an option of the authors' code)."""

    matters = {
        "layers": {"layers": ("fc2",)},
        "mu": {"mu": 1.0},
    }

    # ---- server
    def init(self, fed: Server) -> State:
        looked_at = fed.layout.positions(self.layers) if self.layers else torch.arange(fed.layout.parameters)
        order = torch.from_numpy(fed.rng(0, 0x5E3).permutation(fed.size))
        balanced = torch.empty(fed.size, dtype=torch.long).index_put((order,), torch.arange(fed.size) % self.clusters)
        state: State = {
            "centers": fed.initial(0).repeat(self.clusters, 1),
            "labels": balanced if self.first == "random" else torch.full((fed.size,), -1),
            "share": fed.equal_shares(self.clusters),
            "known": torch.zeros(fed.size, dtype=torch.bool),
            "n": fed.n if self.weighting == "size" else torch.ones_like(fed.n),
            "looked_at": looked_at[looked_at < fed.layout.parameters],
            "loss": 0.0,
        }
        return state | ({"models": ClientTable(fed.initial(0), fed.size)} if self.average == "last" else {})

    def warnings(self, fed: Server, rounds: int) -> list[str]:
        first = len(fed.sample(1))
        if self.clusters <= first:
            return []
        return [
            f"FedSEM has {self.clusters} clusters for the {first} clients of the first round, so some centers stay "
            f"empty. Use at most {first}."
        ]

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(own=(self._by_cluster(state, state["centers"])[state["labels"][ids]],))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        first = not bool(state["known"].any())
        known = state["known"].clone()
        known[replies.ids] = True
        ids, models, at = replies.ids, replies.body[0], torch.arange(len(replies.ids))  # models[at] are those of ids
        new: State = {"known": known}
        if self.average == "last":
            models = new["models"] = with_rows(state["models"], ids, models)
            ids = at = known.nonzero().flatten()
        labels, centers, share = state["labels"].clone(), state["centers"], state["share"].clone()
        if not first:
            labels[ids] = self._apart(state, models, at, centers).argmin(1)  # E-step
        elif self.first == "kmeans":  # else the random assignment stands
            rng = np.random.default_rng([replies.seed, 0x5E3])
            order = ids.argsort()  # k-means++ draws by index: replies in another order must give the same clusters
            found = kmeans(gram(models[at[order]][:, state["looked_at"]]), self.clusters, restarts=10, rng=rng)
            labels[ids[order]] = torch.from_numpy(found.labels)
        centers = means(models, labels[ids], state["n"][ids], centers, at)  # M-step
        for k in labels[ids].unique().tolist():
            inside = ids[labels[ids] == k]
            share[k] = shares(len(labels), inside, state["n"][inside] / state["n"][inside].sum())
        loss = float(self._apart(state, models, at, centers).min(1).values.mean())
        return {**state, **new, "centers": centers, "labels": labels, "share": share, "loss": loss}

    def _apart(self, state: State, models: Table, at: Tensor, centers: Tensor) -> Tensor:
        """Squared distances of models[at] to the centers."""
        looked_at = state["looked_at"]
        return torch.cat([squared_to(rows[:, looked_at], centers[:, looked_at]) for _, rows in blocks(models, at)])

    def _by_cluster(self, state: State, rows: Tensor) -> Tensor:
        """Rows of the clusters and, last, so that the label -1 finds it, their mean weighted by members."""
        members = torch.bincount(state["labels"][state["known"]], minlength=self.clusters).float()
        if not bool(members.any()):  # before the first reply all are the same
            return torch.cat([rows, rows[:1]])
        return torch.cat([rows, average(rows, members / members.sum())[None]])

    # ---- client
    def local(self, client: Client, message: Message) -> Reply:
        start = message.own[0]
        assert isinstance(start, Tensor)
        center = start[: client.net.layout.parameters]
        proximal = (lambda w: self.mu * (w - center)) if self.mu else None
        return Reply({}, (sgd(client, start, regularizer_gradient=proximal),))

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        center = message.own[0]
        assert isinstance(center, Tensor)
        return center

    # ---- newcomers
    def join(self, state: State, client: Client, id: int) -> Message:
        """The center that fits the newcomer's examples best."""
        return Message(own=(state["centers"][best_fit(client, state["centers"])],))

    # ---- to look at
    def mixing(self, state: State) -> Tensor:
        """Shares in the center that a client would receive."""
        return self._by_cluster(state, state["share"])[state["labels"]]

    def describe(self, state: State) -> dict[str, Any]:
        return {
            "clusters": torch.where(state["known"], state["labels"], -1),
            "multi_center_loss": state["loss"],
        }
