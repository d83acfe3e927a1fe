"""IFCA: An Efficient Framework for Clustered Federated Learning.
Ghosh, Chung, Yin, Ramchandran. NeurIPS 2020.

| symbol | here |
|---|---|
| k, θ_j | clusters, rows of state "models" |
| ŝ_i = argmin_j F_i(θ_j) | state "labels", chosen by each client |
| M_t, m | replies.ids, their number |
| γ, τ | the run's lr; its epochs (model averaging) |
| weight sharing (sec. 6) | share_body |

Each client chooses by the loss on all its training examples, in evaluation mode; on a tie it takes the first. The k
losses are computed once per round, and once per evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedkin.bounds import Bound, Count
from fedkin.client.choice import Choice, best_model
from fedkin.client.evaluate import gradient
from fedkin.client.training import sgd
from fedkin.maths.mixing import average, shares
from fedkin.protocol import Client, Message, Method, Model, Replies, Reply, Server, State, with_rows

CITATION = r"""@inproceedings{ghosh2020efficient,
  title = {An Efficient Framework for Clustered Federated Learning},
  author = {Ghosh, Avishek and Chung, Jichan and Yin, Dong and Ramchandran, Kannan},
  booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
  year = {2020}
}"""


@dataclass(frozen=True)
class IFCA(Method):
    paper = "Ghosh et al., NeurIPS 2020"
    citation = CITATION
    travels = "down: k models (one body and k heads with share_body); up: model or gradient, choice"
    stays = "nothing"

    clusters: Count = 4
    """k: number of models. The paper uses 4 for four rotations of MNIST, 2 for CIFAR-10."""
    averaging: Literal["model", "gradient"] = "model"
    """model: clients train the chosen model, and the server averages each cluster (option II). gradient: clients return
    one gradient on all their examples, and the server steps by the run's lr (option I)."""
    weighting: Literal["equal", "size"] = "equal"
    """Weights in the mean of a cluster. equal: all members alike (paper). size: by number of examples."""
    share_body: bool = False
    """Weight sharing: one body for all, trained by all clients, and k heads."""

    matters = {"weighting": {"averaging": "model"}}

    @property
    def from_zero(self) -> tuple[int, ...]:
        return (0,) if self.averaging == "gradient" else ()

    # ---- server
    def init(self, fed: Server) -> State:
        models = torch.stack(
            [fed.initial(k) for k in range(self.clusters)]
        )  # different, or all clients would choose the first
        body = fed.layout.body
        if self.share_body:
            models[:, body] = models[0, body]
        return {
            "models": models,
            "labels": torch.full((fed.size,), -1),
            "share": fed.equal_shares(self.clusters),
            "body_share": fed.equal_shares(),
            "body": body,
            "head": fed.layout.head,
            "lr": fed.training.lr,
            "parameters": fed.layout.parameters,
        }

    def warnings(self, fed: Server, rounds: int) -> list[str]:
        if self.clusters <= len(fed.ids):
            return []
        return [
            f"IFCA has {self.clusters} clusters for {len(fed.ids)} clients, so some models are never chosen. "
            f"Use at most {len(fed.ids)} clusters, usually far fewer."
        ]

    def send(self, state: State, ids: Tensor) -> Message:
        if self.share_body:
            return Message(shared=(state["models"][0, state["body"]], state["models"][:, state["head"]]))
        return Message(shared=(state["models"],))

    def reply_bounds(self, fed: Server, client: int) -> Mapping[int, Bound]:
        return {1: Bound(least=0, most=self.clusters - 1)}

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        work, chosen = replies.body
        models, share = state["models"].clone(), state["share"].clone()
        body_share, count = state["body_share"], len(replies.ids)
        if self.averaging == "gradient":
            for k in range(self.clusters):  # θ_j − γ/m Σ g_i: divided by all replies, not by the cluster's
                step = state["lr"] / count * work[chosen == k].sum(0)
                models[k, : state["parameters"]] -= step
            everyone = state["models"][0].clone()
            everyone[: state["parameters"]] -= state["lr"] / count * work.sum(0)
        else:
            n = replies.n.double() if self.weighting == "size" else torch.ones(count, dtype=torch.double)
            for k in chosen.unique().tolist():  # a model that nobody chose stays as it is
                inside = chosen == k
                weights = (n[inside] / n[inside].sum()).float()
                models[k] = average(work[inside], weights)
                share[k] = shares(share.shape[1], replies.ids[inside], weights)
            weights = (n / n.sum()).float()
            everyone = average(work, weights)
            body_share = shares(share.shape[1], replies.ids, weights)
        if self.share_body:
            models[:, state["body"]] = everyone[state["body"]]
        labels = with_rows(state["labels"], replies.ids, chosen.long())
        return {**state, "models": models, "share": share, "body_share": body_share, "labels": labels}

    # ---- client
    def local(self, client: Client, message: Message) -> Reply:
        position, _, model = choose(client, message)
        work = gradient(client.net, model, client.data.train)[0] if self.averaging == "gradient" else sgd(client, model)
        return Reply({}, (work, torch.tensor(position, dtype=torch.int32)))

    def received(self, client: Client, message: Message) -> Model:
        return choose(client, message).model

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        return choose(client, message).model

    # ---- to look at
    def mixing(self, state: State) -> Tensor | dict[str, Tensor] | None:
        if self.averaging == "gradient":
            return None
        labels, share = state["labels"], state["share"]
        rows = torch.where((labels >= 0)[:, None], share[labels.clamp(min=0)], share.mean(0))
        return {"body": state["body_share"].expand(len(labels), -1), "head": rows} if self.share_body else rows

    def describe(self, state: State) -> dict[str, Any]:
        return {"clusters": state["labels"]}


def choose(client: Client, message: Message) -> Choice:
    """The received model with the lowest loss on this client's training examples."""

    def offered() -> list[Tensor]:
        if len(message.shared) == 1:
            return list(message.shared[0])
        body, heads = message.shared  # one body, k heads
        models = torch.empty(len(heads), client.net.layout.size)
        models[:, client.net.layout.body], models[:, client.net.layout.head] = body, heads
        return list(models)

    return best_model(client, message, offered)
