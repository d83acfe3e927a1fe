"""FedCEDAR: Rethinking Personalized Federated Learning with Clustering-based Dynamic Graph Propagation.
Wang, Chen, Wu, Das, Yang, Ma. PAKDD 2024.

| symbol | here |
|---|---|
| w_{t,b}, C_t | replies.body[0], replies.ids: the clients that answered |
| K | clusters; state "models" has one row for each center found |
| δ^k_{t,b} | state "labels": each client's cluster, -1 if it was not in the last round |
| w^k_{s,t}, r^{ij} | a center; state "graph" |
| P | propagations |
| ŵ^k_{s,t}, ⟨ŵ_{s,t}⟩ | state "models", their mean |
| γ, Q | the run's participation; every `activate_every` rounds |

The paper leaves open, and we decided: k-means++ with restarts; "normalized" cosine similarity divides by the row's sum,
with negative cosines as 0 and the self edge included. A client whose reply was lost was not in the round.
Similarities compare the trainable parameters; averages cover the whole vector. `fedcedar-soft` and `fedcedar-memory`
(`memory`, `weighting`) are ours.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedkin.bounds import Count, Positive, Whole
from fedkin.client.newcomer import best_fit
from fedkin.client.training import sgd
from fedkin.maths.graph import centered, cosine, evenness, normalized, propagation
from fedkin.maths.kmeans import gram, kmeans, membership
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State, round_half_up

SAME_DIRECTION = 0.7  # cosine from which on a center continues one of an earlier round
GRAPH_LIMIT = 100  # with more centers (only without clustering) the graph is not written to the history


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
    """K: number of k-means centers; fewer if fewer distinct models came back."""
    propagations: Whole = 2
    """P: number of propagations of the centers over the graph; 0: plain cluster means (AS-2)."""
    clustering: bool = True
    """Off: every client is a node of the graph (AS-1)."""
    precise: bool = True
    """A client with a cluster gets its cluster's model. Off: every client gets the mean of all of them (AS-3)."""
    normalize: Literal["sum", "softmax"] = "sum"
    """How a row of cosines becomes weights. sum (paper): negative ones as 0, divided by the sum. softmax: of cosine /
    temperature."""
    temperature: Positive = 0.3
    """Temperature of the softmax: small values keep clusters separate, large ones make all models equal."""
    features: Literal["weights", "updates", "centered"] = "weights"
    """What cosines compare: the centers (paper), their change since the models were sent, or the centers minus their
    mean."""
    n_init: Count = 10
    """Number of k-means restarts; the best one is kept."""
    memory: Whole = 0
    """Rounds for which a client that does not take part keeps its cluster; 0 (paper): it gets the mean at once. A
    cluster of an earlier round is matched to a new one by the direction of its center."""
    weighting: Literal["equal", "size"] = "equal"
    """Weights of the clusters in their mean: equal (paper), or the number of clients in each."""
    activate_every: Whole = 0
    """Rounds between those that sample the participation from each group of clients separately; 0: never. The groups
    are the clusters and, as one more, the clients without a cluster."""
    nodes: tuple[int, ...] = ()
    """True node of each client, for the groups of activate_every in the paper's case study. No real server knows it."""

    matters = {
        "clusters": {"clustering": True},
        "temperature": {"normalize": "softmax"},
        "n_init": {"clustering": True, "clusters": 3, "n_init": 1},
        "memory": {"memory": 1, "settings": {"rounds": 6, "participation": 0.4}},
        "activate_every": {"clustering": True, "activate_every": 2},
        "nodes": {"clustering": True, "activate_every": 2, "nodes": (0, 0, 0, 0, 0, 1, 1, 2)},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nodes and not self.activate_every:
            raise ValueError(
                "nodes are the groups that activate_every samples from: give activate_every too (the paper's is 5)."
            )
        if self.activate_every and not self.clustering and not self.nodes:
            raise ValueError("activate_every without clustering has no groups to sample from: give nodes.")

    # ---- server
    def init(self, fed: Server) -> State:
        if self.nodes and len(self.nodes) != fed.size:
            raise ValueError(
                f"nodes names {len(self.nodes)} clients; the federation has {fed.size}: give one label each."
            )
        return {
            "models": fed.initial(0)[None],  # the common initial model; no client belongs to it yet
            "labels": torch.full((fed.size,), -1),
            "absent": torch.zeros(fed.size, dtype=torch.long),
            "directions": torch.empty(0),
            "contributions": fed.equal_shares(1),
            "graph": torch.ones(1, 1, dtype=torch.float64),
            "cosines": torch.ones(1, 1, dtype=torch.float64),
            "parameters": fed.layout.parameters,
        }

    def warnings(self, fed: Server, rounds: int) -> list[str]:
        present, out = len(fed.sample(1)), []
        if self.clustering and self.clusters > present:
            out.append(
                f"FedCEDAR looks for {self.clusters} clusters among the {present} clients of a round, so every client "
                f"is a cluster of its own: use clusters below {present}, or a larger participation."
            )
        if self.memory and present == len(fed.ids):
            out.append(
                "FedCEDAR's memory is for clients that are absent from a round, and with participation 1 nobody is "
                "(unless replies are lost), so memory and weighting change nothing: use a smaller participation."
            )
        return out

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
        return Message(own=(self._distributed(state, state["models"], ids),))

    def _distributed(self, state: State, table: Tensor, ids: Tensor) -> Tensor:
        """Sec. 3.5: for each client its cluster's row of `table`, or the mean of the rows."""
        labels = state["labels"][ids]
        outside = labels < 0 if self.precise else torch.ones_like(labels, dtype=torch.bool)
        out = table[labels.clamp(min=0)]  # condition 1: the model of its own cluster
        members = state["labels"][state["labels"] >= 0]
        if self.weighting == "size" and len(members):
            sizes = members.bincount(minlength=len(table)).float()
            out[outside] = sizes / sizes.sum() @ table
        else:
            out[outside] = table[: len(state["graph"])].mean(0)  # condition 2: the mean of this round's K clusters
        return out

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        models: Tensor = replies.body[0]
        weights = models[:, : state["parameters"]]
        products = gram(weights)
        labels = np.arange(len(models))
        if self.clustering:  # eq. (1)
            rng = np.random.default_rng([replies.seed, 0xCEDA2])
            order = replies.ids.argsort().numpy()  # k-means++ draws by index: clients must come in the same order
            found = kmeans(products[np.ix_(order, order)], self.clusters, restarts=self.n_init, rng=rng)
            labels[order] = found.labels
        center = membership(labels)
        if self.clustering and len(center) < self.clusters and len(center) != len(state["graph"]):
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
        new = {
            "models": mix @ models,
            "contributions": torch.zeros(len(mix), len(state["labels"])).index_copy_(1, replies.ids, mix),
        }
        if self.memory:
            apart = torch.from_numpy(center - center.mean(0)).float() @ weights
            new["directions"] = F.normalize(apart, dim=1)
        return {
            **self._remember(state, new, replies.ids, torch.from_numpy(labels)),
            "graph": torch.from_numpy(graph),
            "cosines": torch.from_numpy(cosines),
        }

    def _remember(self, state: State, new: State, ids: Tensor, labels: Tensor) -> State:
        """This round's clusters, and clusters of earlier rounds that absent clients still belong to.

        A cluster of an earlier round becomes the new cluster whose center lies in the same direction from the mean of
        the centers. Without such a cluster it stays as it was: perhaps none of its clients took part in this round.
        """
        absent = (state["absent"] + 1).index_fill(0, ids, 0)
        before = torch.where((absent > 0) & (absent <= self.memory), state["labels"], -1)
        known = before[before >= 0].unique()
        if len(known):
            likeness, nearest = (state["directions"][known] @ new["directions"].T).max(1)
            lost = known[likeness < SAME_DIRECTION]
            found = torch.full((len(state["models"]),), -1)
            found[known] = nearest
            found[lost] = len(new["models"]) + torch.arange(len(lost))
            before[before >= 0] = found[before[before >= 0]]
            new = {name: torch.cat([table, state[name][lost]]) for name, table in new.items()}
        return {**state, **new, "labels": before.index_put((ids,), labels), "absent": absent}

    # ---- client
    def local(self, client: Client, message: Message) -> Reply:
        start = message.own[0]
        assert isinstance(start, Tensor)
        return Reply({}, (sgd(client, start),))

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        return trained().body[0]

    # ---- newcomers
    def join(self, state: State, client: Client, id: int) -> Message:
        """The model of the cluster that fits the newcomer's examples best; if not precise, the mean."""
        if not self.precise:
            return super().join(state, client, id)
        return Message(own=(state["models"][best_fit(client, state["models"])],))

    # ---- to look at
    def mixing(self, state: State) -> Tensor:
        """A_t = D · R^P · M: M averages members into centers, D distributes the centers' models."""
        return self._distributed(state, state["contributions"], torch.arange(len(state["labels"])))

    def describe(self, state: State) -> dict[str, Any]:
        """`maths.graph.edge_auc` of `clusters` and `graph` says how well the graph recovers known edges."""
        graph = state["graph"]
        out = {"clusters": state["labels"], "centers": len(graph), "graph_evenness": evenness(graph.numpy())}
        return {**out, "graph": graph, "cosines": state["cosines"]} if len(graph) <= GRAPH_LIMIT else out
