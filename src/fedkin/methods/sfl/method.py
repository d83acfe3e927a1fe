"""SFL and SFL*: Personalized Federated Learning With a Graph.
Chen, Long, Wu, Zhou, Jiang. IJCAI 2022.

| symbol | here |
|---|---|
| A | state "graph": row-stochastic, with self edges |
| W, u_i, g | state "models", what is sent to client i, their mean over clients (the read-out) |
| λ | pull_personal, pull_global |
| number of graph layers | propagations |

This is the method as intended: proximal terms ½λ‖w − u_i‖² + ½λ‖w − g‖² that have a gradient, training from u_i, edges
by similarity. In the authors' code the proximal terms have no gradient, training starts from g, and learned edges grow
with *distance*: `official_compat`. Their graph is an oracle built from the clients' labels: `groups`.

Edges compare a client's model with the mean of its round, because changes since the initial model are nearly alike for
all clients (`similarity`). Models flow from this round's replies. A client that did not reply now gets what flows to it
along the edges of its last model. `average="last"` lets the last models of all clients heard so far flow, many rounds
old under partial participation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedkin.bounds import Count, Fraction, NonNegative, Positive, Whole
from fedkin.client.newcomer import after_one_round
from fedkin.client.training import sgd
from fedkin.maths.graph import cosine, propagation
from fedkin.maths.kmeans import ROUNDING, gram_of, squared_distances
from fedkin.maths.table import ClientTable, Table, blocks, mean_of, mixed
from fedkin.methods.sfl.graph_learning import Flags, Floats, constructed, strongest
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State, with_rows

CITATION = r"""@inproceedings{chen2022personalized,
  title = {Personalized Federated Learning With a Graph},
  author = {Chen, Fengwen and Long, Guodong and Wu, Zonghan and Zhou, Tianyi and Jiang, Jing},
  booktitle = {International Joint Conference on Artificial Intelligence (IJCAI)},
  year = {2022}
}"""


@dataclass(frozen=True)
class SFL(Method):
    paper = "Chen et al., IJCAI 2022"
    citation = CITATION
    travels = "down: personal and global model; up: model"
    stays = "nothing"
    quadratic = "the graph and its powers, and compares all clients that have answered in every round."

    learned: bool = False
    """SFL*: blend a learned graph into the other one."""
    propagations: Whole = 3
    """L: number of steps along the edges."""
    server_step: Fraction = 1.0
    """How far models move toward the mean of their neighbors; 0: not at all."""
    pull_personal: NonNegative = 0.3
    """λ: strength of the proximal term around the personal model u_i."""
    pull_global: NonNegative = 0.3
    """λ: strength of the proximal term around the read-out g."""
    neighbors: Count = 30
    """Number of edges kept per client, its own included."""
    similarity: Literal["centered", "changes"] = "centered"
    """Edges between clients without known groups: cosines of their models minus the mean of their round, or of their
    changes since the initial model. Those are nearly 1 for every pair after a few rounds, so that all get the mean."""
    average: Literal["round", "last"] = "round"
    """Models that flow along the graph: this round's replies, or the last model of every client heard so far."""
    groups: tuple[int, ...] = ()
    """The known group of each client: members of a group are linked. An oracle; the paper links by labels or by a
    sensor network. Empty: edges by `similarity`, with 0 for negative ones."""
    blend: Fraction = 0.05
    """β: weight of the learned graph."""
    learn_steps: Whole = 50
    """Steps in which the graph is learned, anew in each round; 10 in the authors' code."""
    learn_rate: Positive = 0.05
    """Learning rate of these steps."""
    official_compat: bool = False
    """Behave like the authors' code: training from g without proximal terms, and learned edges that grow with
    distance."""

    matters = {
        "neighbors": {"neighbors": 2},
        "groups": {"groups": (0, 0, 0, 0, 1, 1, 1, 1)},
        "blend": {"learned": True},
        "learn_steps": {"learned": True, "blend": 0.5},
        "learn_rate": {"learned": True, "blend": 0.5},
        "official_compat": {"official_compat": True},
    }

    # ---- server
    def init(self, fed: Server) -> State:
        if self.groups and len(self.groups) != fed.size:
            raise ValueError(f"groups names {len(self.groups)} clients; the federation has {fed.size}.")
        compared = (
            {"apart": ClientTable(torch.zeros(fed.layout.parameters), fed.size)}
            if self.similarity == "centered"
            else {}
        )
        return {
            **compared,
            "models": ClientTable(fed.initial(0), fed.size),
            "initial": fed.initial(0),
            "known": torch.zeros(fed.size, dtype=torch.bool),
            "sources": torch.ones(fed.size, dtype=torch.bool),
            "graph": torch.eye(fed.size),
            "mix": torch.eye(fed.size),
            "parameters": fed.layout.parameters,
        }

    def send(self, state: State, ids: Tensor) -> Message:
        read_out = mixed(state["mix"][state["sources"]].mean(0), state["models"])
        order = ids.argsort()  # on several threads a product rounds by position, and a learned graph magnifies that
        own = mixed(state["mix"][ids[order]], state["models"])[order.argsort()]
        return Message(shared=(read_out,), own=(own,))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        models = with_rows(state["models"], replies.ids, replies.body[0])
        known, sources = state["known"].clone(), torch.zeros_like(state["known"])
        known[replies.ids] = True
        sources[replies.ids] = True
        if self.average == "last":
            sources = known
        ids = known.nonzero().flatten()
        compared: State = {}
        if self.similarity == "centered":
            apart = _apart(models, replies.ids, sources, state["parameters"])
            compared = {"apart": with_rows(state["apart"], replies.ids, apart)}
        graph = self._graph({**state, **compared, "models": models}, ids, sources[ids].numpy(), replies.seed)
        own = np.eye(len(graph))
        mix = self.server_step * propagation(graph, self.propagations) + (1 - self.server_step) * own
        return {**state, **compared, "models": models, "known": known, "sources": sources,
                "graph": _placed(graph, ids, sources), "mix": _placed(mix, ids, sources)}  # fmt: skip

    def _graph(self, state: State, ids: Tensor, sources: Flags, seed: int) -> Floats:
        """A among the clients heard so far; its edges come from `sources` alone."""
        models, count = state["models"], state["parameters"]
        if self.similarity == "centered":
            products = gram_of(state["apart"], ids, count)
        else:
            products = gram_of(models, ids, count, minus=state["initial"])
        similarity = np.maximum(cosine(products), 0)
        if self.groups:
            group = np.array(self.groups)[ids.numpy()]
            graph = strongest((group[:, None] == group).astype(float), len(ids), sources)
        else:
            graph = strongest(similarity, self.neighbors, sources)
        if not self.learned:
            return graph
        target = np.sqrt(squared_distances(gram_of(models, ids, count))) if self.official_compat else similarity
        edges = constructed(
            target, steps=self.learn_steps, lr=self.learn_rate, seed=seed % (1 << 62), one_way=self.official_compat
        )
        return (1 - self.blend) * graph + self.blend * strongest(edges, self.neighbors, sources)

    # ---- client
    def local(self, client: Client, message: Message) -> Reply:
        personal, read_out = message.own[0], message.shared[0]
        assert isinstance(personal, Tensor)
        if self.official_compat:
            return Reply({}, (sgd(client, read_out),))
        count = client.net.layout.parameters
        u, g = personal[:count], read_out[:count]

        def proximal(w: Tensor) -> Tensor:
            return self.pull_personal * (w - u) + self.pull_global * (w - g)

        pulled = bool(self.pull_personal or self.pull_global)
        return Reply({}, (sgd(client, personal, regularizer_gradient=proximal if pulled else None),))

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        model = message.own[0]
        assert isinstance(model, Tensor)
        return model

    # ---- newcomers
    def join(self, state: State, client: Client, id: int) -> Message:
        """What flows to its model in its first round, with all known clients as neighbors."""
        return after_one_round(replace(self, average="last"), state, client, id)

    # ---- to look at
    def mixing(self, state: State) -> Tensor:
        mix: Tensor = state["mix"]
        return mix

    def describe(self, state: State) -> dict[str, Any]:
        return {"graph": state["graph"]} if len(state["graph"]) <= 100 else {}


def _apart(models: Table, ids: Tensor, sources: Tensor, count: int) -> Tensor:
    """How far the parameters of `ids` lie from the mean of the sources; 0 where that is no more than rounding."""
    from_ = sources.nonzero().flatten()
    longest = max(float(rows[:, :count].norm(dim=1).max()) for _, rows in blocks(models, from_))
    out = models[ids][:, :count] - mean_of(models, from_)[:count]
    out[out.norm(dim=1) ** 2 <= ROUNDING * longest**2] = 0
    return out


def _placed(rows: Floats, ids: Tensor, sources: Tensor) -> Tensor:
    """These rows among all clients; a client that was never heard takes the mean of the sources."""
    size = len(sources)
    out = torch.zeros(size, size)
    out[:, sources] = 1 / int(sources.sum())
    out[ids] = torch.zeros(len(ids), size).index_copy(1, ids, torch.from_numpy(rows).float())
    return out
