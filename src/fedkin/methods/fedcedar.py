"""FedCEDAR: Rethinking Personalized Federated Learning with Clustering-based Dynamic Graph Propagation.
Wang, Chen, Wu, Das, Yang, Ma. PAKDD 2024.

| symbol | here |
|---|---|
| w_{t,b}, C_t | replies.body[0], replies.ids: those who answered |
| K | clusters; the centers there are: the rows of state "models" |
| δ^k_{t,b} | state "labels": each client's cluster in the last round, -1 outside it |
| w^k_{s,t}, r^{ij} | a center; state "graph" |
| P | propagations |
| ŵ^k_{s,t}, ⟨ŵ_{s,t}⟩ | state "models", their plain mean |
| γ, Q | the run's participation; every `activate_every` rounds |

Left open by the paper and decided here: k-means++ with restarts; "normalized" cosine similarity is a division by the
row's sum with negative cosines as 0 and the self edge included. A client whose reply was lost was not in the round.
Similarities look at the trainable parameters, averages at the whole row. `fedcedar-soft` is no form of the paper's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedkin.bounds import Count, Positive, Whole
from fedkin.client.training import sgd
from fedkin.maths.graph import centered, cosine, evenness, normalized, propagation
from fedkin.maths.kmeans import gram, kmeans, membership
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State, round_half_up

GRAPH_LIMIT = 100  # beyond so many centers (there only without clustering) the graph is not written to the history


CITATION = r"""@inproceedings{wang2024rethinking,
  title = {Rethinking Personalized Federated Learning with Clustering-based Dynamic Graph Propagation},
  author = {Wang, Jiaqi and Chen, Yuzhong and Wu, Yuhang and Das, Mahashweta and Yang, Hao and Ma, Fenglong},
  booktitle = {Pacific-Asia Conference on Knowledge Discovery and Data Mining (PAKDD)},
  year = {2024}
}"""


@dataclass(frozen=True)
class FedCEDAR(Method):
    paper = "Wang et al., PAKDD 2024"
    citation = CITATION
    travels = "model both ways"
    stays = "nothing"

    clusters: Count = 5
    """K: centers of k-means; fewer where fewer distinct models came back."""
    propagations: Whole = 2
    """P: times that the centers' models are propagated over the graph; 0: plain cluster means (AS-2)."""
    clustering: bool = True
    """Off: every client is a node of the graph (AS-1)."""
    precise: bool = True
    """A client of the last round gets its own cluster's model. Off: everybody gets the mean of them (AS-3)."""
    normalize: Literal["sum", "softmax"] = "sum"
    """How a row of cosines becomes weights. sum (paper): negative ones as 0, divided by the sum. softmax: see
    temperature."""
    temperature: Positive = 0.3
    """Of the softmax: small values keep a cluster to itself, large ones make all alike."""
    features: Literal["weights", "updates", "centered"] = "weights"
    """What cosines compare: the centers (paper), their change since the models were sent, or the centers less their
    mean."""
    n_init: Count = 10
    """Starts of k-means, of which the best counts."""
    activate_every: Whole = 0
    """Every so many rounds draw the participation from each group of clients apart; 0: never. The groups are the
    last round's clusters and, as one more, the clients outside it."""
    nodes: tuple[int, ...] = ()
    """True node of each client, for the groups of activate_every in the paper's case study. No real server knows it."""

    matters = {
        "clusters": {"clustering": True},
        "temperature": {"normalize": "softmax"},
        "n_init": {"clustering": True, "clusters": 3, "n_init": 1},
        "activate_every": {"clustering": True, "activate_every": 2},
        "nodes": {"clustering": True, "activate_every": 2, "nodes": (0, 0, 0, 0, 0, 1, 1, 2)},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nodes and not self.activate_every:
            raise ValueError("nodes say whom activate_every draws from: give activate_every too (the paper's is 5).")
        if self.activate_every and not self.clustering and not self.nodes:
            raise ValueError("activate_every without clustering has no groups to draw from: give nodes.")

    # ---- server
    def init(self, fed: Server) -> State:
        if self.nodes and len(self.nodes) != fed.size:
            raise ValueError(
                f"nodes names {len(self.nodes)} clients; the federation has {fed.size}: one label for each."
            )
        return {
            "models": fed.initial(0)[None],  # round 0: the common initial model, which is nobody's: all alike
            "labels": torch.full((fed.size,), -1),
            "ids": torch.arange(fed.size),
            "mix": torch.full((1, fed.size), 1 / fed.size),
            "graph": torch.ones(1, 1, dtype=torch.float64),
            "cosines": torch.ones(1, 1, dtype=torch.float64),
            "parameters": fed.layout.parameters,
        }

    def select(self, state: State, fed: Server, round: int) -> Tensor:
        if not self.activate_every or round % self.activate_every:
            return fed.sample(round)
        group = (torch.tensor(self.nodes) if self.nodes else state["labels"])[fed.ids]  # t ∈ Q, sec. 4.4
        rng = fed.rng(round, 0xACE)
        chosen: list[int] = []
        for node in group.unique().tolist():
            members = fed.ids[group == node].numpy()
            count = max(1, round_half_up(fed.participation * len(members)))
            chosen += rng.choice(members, size=count, replace=False).tolist()
        return torch.tensor(sorted(chosen))

    def send(self, state: State, ids: Tensor) -> Message:
        return Message(own=(self._distributed(state["models"], state["labels"][ids]),))

    def _distributed(self, models: Tensor, labels: Tensor) -> Tensor:
        """Sec. 3.5. Of `models` or of who contributed to them: a row for each client."""
        outside = labels < 0 if self.precise else torch.ones_like(labels, dtype=torch.bool)
        rows = models[labels.clamp(min=0)]  # condition 1: the own cluster's
        rows[outside] = models.mean(0)  # condition 2: the mean, each cluster alike
        return rows

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        rows: Tensor = replies.body[0]
        weights = rows[:, : state["parameters"]]
        products = gram(weights)
        labels = np.arange(len(rows))
        if self.clustering:  # eq. (1)
            rng = np.random.default_rng([replies.seed, 0xCEDA2])
            labels = kmeans(products, self.clusters, restarts=self.n_init, rng=rng).labels
        center = membership(labels)
        if self.clustering and len(center) < self.clusters and len(center) != len(state["models"]):
            logging.getLogger(__name__).warning(
                "%d distinct models came back: %d clusters instead of %d.", len(center), len(center), self.clusters
            )
        if self.features == "updates":
            started = sent.own[0]
            assert isinstance(started, Tensor)
            products = gram(weights, started[:, : state["parameters"]], replies.position)
        between = center @ products @ center.T
        cosines = cosine(centered(between) if self.features == "centered" else between)
        graph = normalized(cosines, self.normalize, self.temperature)  # sec. 3.3
        mix = torch.from_numpy(propagation(graph, self.propagations) @ center).float()  # eq. (2)
        return {
            "models": mix @ rows,
            "labels": torch.full_like(state["labels"], -1).index_put((replies.ids,), torch.from_numpy(labels)),
            "ids": replies.ids,
            "mix": mix,
            "graph": torch.from_numpy(graph),
            "cosines": torch.from_numpy(cosines),
            "parameters": state["parameters"],
        }

    # ---- client
    def local(self, client: Client, message: Message) -> Reply:
        start = message.own[0]
        assert isinstance(start, Tensor)
        return Reply({}, (sgd(client, start),))

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        return trained().body[0]

    # ---- to look at
    def mixing(self, state: State) -> Tensor:
        """A_t = D · R^P · M: D distributes, M averages members into centers."""
        contributions = torch.zeros(len(state["mix"]), len(state["labels"]))
        contributions[:, state["ids"]] = state["mix"]
        return self._distributed(contributions, state["labels"])

    def describe(self, state: State) -> dict[str, Any]:
        """With `clusters` and `graph`, `maths.graph.edge_auc` tells how well true edges are recovered."""
        graph = state["graph"]
        out = {"clusters": state["labels"], "centers": len(graph), "graph_evenness": evenness(graph.numpy())}
        return {**out, "graph": graph, "cosines": state["cosines"]} if len(graph) <= GRAPH_LIMIT else out
