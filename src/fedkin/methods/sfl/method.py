"""SFL and SFL*: Personalized Federated Learning With a Graph.
Chen, Long, Wu, Zhou, Jiang. IJCAI 2022.

| symbol | here |
|---|---|
| A | state "graph": row-stochastic, with self edges |
| W, u_i, g | state "models", what is sent to client i, their mean over clients (the read-out) |
| λ | pull_personal, pull_global |
| number of graph layers | propagations |

The method as meant: proximal terms ½λ‖w − u_i‖² + ½λ‖w − g‖² with a gradient, training from u_i, edges by similarity.
The authors' code has proximal terms without a gradient, trains from g, and learns edges that grow with *distance*:
`official_compat`. Its graph is an oracle made of the clients' labels: `groups`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.bounds import Count, Fraction, NonNegative, Positive, Whole
from fedkin.client.training import sgd
from fedkin.maths.graph import cosine, propagation
from fedkin.maths.kmeans import gram, squared_distances
from fedkin.methods.sfl.graph_learning import Floats, constructed, strongest
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

    learned: bool = False
    """SFL*: a learned graph is blended into the other one."""
    propagations: Whole = 3
    """L: steps along the edges."""
    server_step: Fraction = 1.0
    """How far models move to their neighbors' mean: 0 leaves each alone."""
    pull_personal: NonNegative = 0.3
    """Strength of the pull to the personal model u_i in local training."""
    pull_global: NonNegative = 0.3
    """Strength of the pull to the read-out g."""
    neighbors: Count = 30
    """Edges kept in each row, the own one included."""
    groups: tuple[int, ...] = ()
    """A known group of each client: those of one group are linked (an oracle; the paper links by labels or by a sensor
    network). Empty: cosines of the clients' changes since the initial model, negative ones as 0."""
    blend: Fraction = 0.05
    """Share of the learned graph."""
    learn_steps: Whole = 50
    """Steps in which a graph is learned, anew in each round; the authors' code takes 10."""
    learn_rate: Positive = 0.05
    """Their learning rate."""
    official_compat: bool = False
    """As the authors' code does it: training from g without any pull, and learned edges that grow with distance."""

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
        return {
            "models": fed.initial(0).repeat(fed.size, 1),
            "initial": fed.initial(0),
            "known": torch.zeros(fed.size, dtype=torch.bool),
            "graph": torch.eye(fed.size),
            "mix": torch.eye(fed.size),
            "parameters": fed.layout.parameters,
        }

    def send(self, state: State, ids: Tensor) -> Message:
        known = state["known"] if bool(state["known"].any()) else torch.ones_like(state["known"])
        read_out = state["mix"][known].mean(0) @ state["models"]
        return Message(shared=(read_out,), own=(state["mix"][ids] @ state["models"],))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        models = with_rows(state["models"], replies.ids, replies.body[0])
        known = state["known"].clone()
        known[replies.ids] = True
        ids = known.nonzero().flatten()
        graph = self._graph(state, models[ids][:, : state["parameters"]], ids, replies.seed)
        mix = self.server_step * propagation(graph, self.propagations) + (1 - self.server_step) * np.eye(len(graph))
        return {**state, "models": models, "known": known, "graph": _placed(graph, ids, len(known)),
                "mix": _placed(mix, ids, len(known))}  # fmt: skip

    def _graph(self, state: State, rows: Tensor, ids: Tensor, seed: int) -> Floats:
        """A among the clients heard so far."""
        similarity = np.maximum(cosine(gram(rows, state["initial"][None, : state["parameters"]], ids * 0)), 0)
        if self.groups:
            group = np.array(self.groups)[ids.numpy()]
            graph = strongest((group[:, None] == group).astype(float), len(ids))
        else:
            graph = strongest(similarity, self.neighbors)
        if not self.learned:
            return graph
        target = np.sqrt(squared_distances(gram(rows))) if self.official_compat else similarity
        edges = constructed(
            target, steps=self.learn_steps, lr=self.learn_rate, seed=seed % (1 << 62), one_way=self.official_compat
        )
        return (1 - self.blend) * graph + self.blend * strongest(edges, self.neighbors)

    # ---- client
    def local(self, client: Client, message: Message) -> Reply:
        personal, read_out = message.own[0], message.shared[0]
        assert isinstance(personal, Tensor)
        if self.official_compat:
            return Reply({}, (sgd(client, read_out),))
        count = client.net.layout.parameters
        u, g = personal[:count], read_out[:count]

        def regularizer_gradient(w: Tensor) -> Tensor:
            return self.pull_personal * (w - u) + self.pull_global * (w - g)

        return Reply(
            {},
            (
                sgd(
                    client,
                    personal,
                    regularizer_gradient=regularizer_gradient if self.pull_personal or self.pull_global else None,
                ),
            ),
        )

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        model = message.own[0]
        assert isinstance(model, Tensor)
        return model

    # ---- to look at
    def mixing(self, state: State) -> Tensor:
        mix: Tensor = state["mix"]
        return mix

    def describe(self, state: State) -> dict[str, Any]:
        return {"graph": state["graph"]} if len(state["graph"]) <= 100 else {}


def _placed(rows: Floats, ids: Tensor, size: int) -> Tensor:
    """Among all clients; one that was never heard takes the mean of those who were."""
    out = torch.zeros(size, size)
    out[:, ids] = 1 / len(ids)
    out[ids] = torch.zeros(len(ids), size).index_copy(1, ids, torch.from_numpy(rows).float())
    return out
