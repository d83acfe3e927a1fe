"""FedGroup: Efficient Clustered Federated Learning via Decomposed Data-Driven Measure.
Duan, Liu, Ji, Liu, Liang, Chen, Tan. arXiv 2010.06870, 2020.

| symbol | here |
|---|---|
| m, α | groups, pretrain_factor: about α·m clients train first and are grouped |
| w_0 | state "initial", which newcomers train from |
| Δw_i, EDC | a newcomer's update; `decomposed`: its cosines with the m leading directions of all updates |
| μ of FedGrouProx | mu |

Groups are static. A newcomer first trains w_0 and joins the group whose mean first update has the largest cosine with
its own. Updates are scaled to length 1 before the decomposition, so that their lengths do not matter. Left out: cosine
distances between all pairs (MADC) and aggregation between groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fedkin.bounds import Count, NonNegative, Whole
from fedkin.client.training import sgd
from fedkin.maths.graph import cosine
from fedkin.maths.kmeans import gram, kmeans
from fedkin.maths.mixing import average, shares
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State

CITATION = r"""@misc{duan2020fedgroup,
  title = {{FedGroup}: Efficient Clustered Federated Learning via Decomposed Data-Driven Measure},
  author = {Duan, Moming and Liu, Duo and Ji, Xinyuan and Liu, Renping and Liang, Liang and Chen, Xianzhang
            and Tan, Yujuan},
  year = {2020},
  eprint = {2010.06870},
  archivePrefix = {arXiv}
}"""


@dataclass(frozen=True)
class FedGroup(Method):
    paper = "Duan et al., arXiv 2010.06870, 2020"
    citation = CITATION
    travels = "model both ways"
    stays = "nothing"

    groups: Count = 3
    """m: number of groups; fewer if there are fewer distinct updates."""
    pretrain_factor: Count = 20
    """α: the first round asks α·m clients, or all if there are fewer."""
    pretrain_steps: Whole = 50
    """Batches of a newcomer's first training; 0: the run's epochs."""
    mu: NonNegative = 0.0
    """Strength of a proximal term around the received model (FedGrouProx)."""

    matters = {
        "pretrain_factor": {"pretrain_factor": 1},
        "pretrain_steps": {"pretrain_steps": 5},
        "mu": {"mu": 1.0},
    }

    # ---- server
    def init(self, fed: Server) -> State:
        return {
            "models": fed.initial(0)[None],
            "initial": fed.initial(0),
            "directions": torch.zeros(0, fed.layout.parameters),
            "labels": torch.full((fed.size,), -1),
            "share": fed.equal_shares(1),
        }

    def warnings(self, fed: Server, rounds: int) -> list[str]:
        out = []
        if self.groups > len(fed.ids):
            out.append(f"FedGroup has {self.groups} groups for {len(fed.ids)} clients. Use fewer groups.")
        if rounds < 2:
            out.append("FedGroup only forms its groups in the first round. Use at least 2 rounds.")
        return out

    def select(self, state: State, fed: Server, round: int) -> Tensor:
        if len(state["directions"]):
            return fed.sample(round)
        count = min(len(fed.ids), self.pretrain_factor * self.groups)
        picked = fed.rng(round, 0x6F).choice(len(fed.ids), size=count, replace=False)
        return fed.ids[torch.from_numpy(np.sort(picked))]

    def send(self, state: State, ids: Tensor) -> Message:
        labels = state["labels"][ids]
        models = torch.where((labels >= 0)[:, None], state["models"][labels.clamp(min=0)], state["initial"])
        return Message(own=(models, (labels < 0).to(torch.int8)))

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        trained: Tensor = replies.body[0]
        before, labels = state["labels"][replies.ids], state["labels"].clone()
        new = before < 0
        updates = (trained - state["initial"])[new][:, : state["directions"].shape[1]]
        if not len(state["directions"]):  # cold start: all clients are new
            rng = np.random.default_rng([replies.seed, 0x6F])
            order = replies.ids.argsort()  # k-means++ draws by index: clients must come in the same order
            features = decomposed(updates[order], self.groups)
            found = torch.empty_like(before)
            found[order] = torch.from_numpy(kmeans(features @ features.T, self.groups, restarts=10, rng=rng).labels)
            labels[replies.ids] = before = found
            unit = F.normalize(updates, dim=1)
            directions = torch.stack([unit[found == k].mean(0) for k in range(int(found.max()) + 1)])
            models = state["initial"].repeat(len(directions), 1)
            share = torch.zeros(len(directions), len(labels))
        else:
            directions, models, share = state["directions"], state["models"].clone(), state["share"].clone()
            if bool(new.any()):  # their first update starts at w_0, so it enters no mean
                near = F.cosine_similarity(updates[:, None], directions[None], dim=2)
                labels[replies.ids[new]] = near.argmax(1)
        for k in before[before >= 0].unique().tolist():  # FedAvg in each group
            inside = before == k
            weights = (replies.n[inside].double() / replies.n[inside].sum()).float()
            models[k] = average(trained[inside], weights)
            share[k] = shares(len(labels), replies.ids[inside], weights)
        return {**state, "models": models, "directions": directions, "labels": labels, "share": share}

    # ---- client
    def local(self, client: Client, message: Message) -> Reply:
        start, new = message.own
        assert isinstance(start, Tensor)
        assert isinstance(new, Tensor)
        anchor = start[: client.net.layout.parameters]
        steps = (self.pretrain_steps or None) if bool(new) else None
        proximal = (lambda w: self.mu * (w - anchor)) if self.mu else None
        return Reply({}, (sgd(client, start, steps=steps, regularizer_gradient=proximal),))

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        model = message.own[0]
        assert isinstance(model, Tensor)
        return model

    # ---- newcomers
    def join(self, state: State, client: Client, id: int) -> Message:
        """The model of the group whose direction is nearest to the newcomer's first update, as in `merge`."""
        if not len(state["directions"]):
            return super().join(state, client, id)
        first = self.send(state, torch.tensor([id])).for_position(0)
        update = self.local(client, first).body[0] - state["initial"]
        near = F.cosine_similarity(update[: state["directions"].shape[1]], state["directions"], dim=1)
        return Message(own=(state["models"][near.argmax()], torch.zeros((), dtype=torch.int8)))

    # ---- to look at
    def mixing(self, state: State) -> Tensor:
        labels, share = state["labels"], state["share"]
        nobody = torch.full((len(labels),), 1 / len(labels))  # w_0 is nobody's: all clients share it alike
        return torch.where((labels >= 0)[:, None], share[labels.clamp(min=0)], nobody)

    def describe(self, state: State) -> dict[str, Any]:
        return {"clusters": state["labels"]}


Floats = NDArray[np.float64]


def decomposed(updates: Tensor, directions: int) -> Floats:
    """Cosines [updates, directions] of each update with the leading right singular vectors of all updates of length 1.
    These are the eigenvectors of the matrix of cosines times the square roots of its eigenvalues."""
    value, vector = np.linalg.eigh(cosine(gram(updates)))
    order = np.argsort(-value)[:directions]
    out: Floats = vector[:, order] * np.sqrt(np.maximum(value[order], 0))
    return out
