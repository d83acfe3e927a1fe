"""PFLIC: A Novel Personalized Federated Learning-Based Iterative Clustering.
Zhang, Chen, Liang, Li, Castiglione, Yuan. ComSIS 2025.

| symbol | here |
|---|---|
| k, θ^i | clusters, row i of state "models"; after round 1 all rows have equal shared layers (state "shared") |
| θ̂^j, id_j, D_j | a reply's model and identity, replies.n |
| L_j(θ, D_j) | mean loss of the model client j starts from, on its training examples |
| C_j, S_j | state "losses" / "times", state "times" |
| t_j, TS | state "turns", threshold |
| ρ | rho |
| H, η | local_steps, the run's lr |
| Cal, P | state "cal" (forward passes over a client's examples; training counts three), size of a model |

Deviations: the printed update θ + Σ D_j/D θ̂_j adds a model to a model; it is read as the weighted mean within a
cluster. Algorithm 3 line 4 drops the division of eq. (4); the equation is used. The shared layer is the mean over all
clients unless shared_from="clusters". A client uses its cluster's model without training it, because the paper's test
clients (sec. 5.2) never train. `restarts` and `reseed_empty` are ours (`pflic-restarts`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedkin.bounds import Bound, Count, Fraction, FractionBelow1, Whole
from fedkin.client.choice import best_model
from fedkin.client.training import sgd
from fedkin.maths.mixing import average
from fedkin.methods.pflic.selection import chosen, cluster_means, portions, turns_after
from fedkin.models.network import Layout
from fedkin.protocol import Client, Clients, Message, Method, Model, Replies, Reply, Server, State, ragged, require

# Settings for `matters` under which phase 2 begins within a few rounds.
SOON = {"restarts": 1, "stable_rounds": 1, "max_unstable_fraction": 0.9}


CITATION = r"""@article{zhang2025pflic,
  title = {{PFLIC}: A Novel Personalized Federated Learning-Based Iterative Clustering},
  author = {Zhang, Shiwen and Chen, Shuang and Liang, Wei and Li, Kuanching and Castiglione, Arcangelo
            and Yuan, Junsong},
  journal = {Computer Science and Information Systems (ComSIS)},
  year = {2025}
}"""


@dataclass(frozen=True)
class PFLIC(Method):
    paper = "Zhang et al., ComSIS 2025"
    citation = CITATION
    travels = "down: a shared layer and k sets of the rest, later one; up: model, identity, loss"
    stays = "nothing"

    clusters: Count = 4
    """k: number of clusters."""
    shared: tuple[str, ...] = ("-1",)
    """Layers that all clusters share, by name or number (-1: the last); none: each cluster has its own."""
    shared_from: Literal["clients", "clusters"] = "clients"
    """The shared layers are the mean over all clients that answered, weighted by examples, or the plain mean of the k
    cluster models (algorithm 1, line 28)."""
    rho: Fraction = 0.5
    """ρ: fraction of each cluster that takes part in a round once identities are frozen; 0: the run's participation."""
    threshold: Count = 10
    """TS: rounds a client may take part in after that, until its whole cluster has reached this number."""
    stable_rounds: Whole = 3
    """Rounds in a row without a change after which identities are frozen; 0: never, as in IFCA."""
    max_unstable_fraction: FractionBelow1 = 0.0
    """Fraction of the replies that may bring a new identity in such a round."""
    local_steps: Whole = 0
    """H: batches of local training in a round (10 in the paper); 0: the run's epochs."""
    restarts: Count = 1
    """Random starts trained side by side at first; the one with the lowest mean loss is kept."""
    restart_rounds: Count = 5
    """Rounds for which the starts are trained side by side."""
    reseed_empty: bool = False
    """Until identities are frozen, a cluster without members gets the model of the client with the largest loss."""

    matters = {
        "shared": {"shared": ()},
        "rho": SOON,
        "threshold": {**SOON, "threshold": 1},
        "stable_rounds": SOON,
        "max_unstable_fraction": {**SOON, "settings": {"lost": 0.5}},
        "restart_rounds": {"restarts": 3, "restart_rounds": 1},
        "reseed_empty": {"clusters": 6},
    }

    # ---- server
    def init(self, fed: Server) -> State:
        shared = within(fed.layout, self.shared)
        if shared.all():
            raise ValueError(
                f"shared={self.shared} is the whole network, so clusters could not differ: share fewer layers."
            )
        mean, epochs = float(fed.n.double().mean()), fed.training.epochs
        passes = self.local_steps * min(fed.training.batch_size, mean) / mean if self.local_steps else epochs
        numbers = {"round": 0, "calm": 0, "changes": 0, "loss": None, "phase": 1, "stable": False, "tried": 1}
        starts = []
        for start in range(self.restarts):
            models = torch.stack([fed.initial(start * self.clusters + i) for i in range(self.clusters)])
            tables = {
                "models": models,
                "shared": shared,
                "identity": torch.full((fed.size,), -1),
                "losses": torch.zeros(fed.size, dtype=torch.double),
                "times": torch.zeros(fed.size, dtype=torch.long),
                "turns": torch.zeros(fed.size, dtype=torch.long),
                "contributions": fed.equal_shares(self.clusters + 1),  # last row: of the shared layers
                "rho": self.rho or fed.participation,
                "cal": 3 * passes,
            }
            starts.append({**tables, **numbers, "rivals": []})
        return {**starts[0], "rivals": starts[1:]}

    def warnings(self, fed: Server, rounds: int) -> list[str]:
        out = []
        if self.clusters > len(fed.ids):
            out.append(
                f"PFLIC has {self.clusters} clusters for {len(fed.ids)} clients, so some stay empty: use "
                f"clusters={len(fed.ids)} or fewer."
            )
        first = max(self.stable_rounds + 1, self.restart_rounds if self.restarts > 1 else 0) + 1
        if self.stable_rounds and rounds < first:
            out.append(
                f"PFLIC does not reach its client selection in {rounds} rounds: identities can be frozen for round "
                f"{first} at the earliest. Give more rounds, or lower stable_rounds"
                + (" or restart_rounds." if self.restarts > 1 else ".")
            )
        return out

    def select(self, state: State, fed: Server, round: int) -> Tensor:
        if not state["stable"]:
            return fed.ids
        utilities = state["losses"] / state["times"]  # eq. (4)
        identity = state["identity"][fed.ids]
        picked = [fed.ids[identity < 0]]  # newcomers and clients that never answered: they still need a cluster
        for i in identity[identity >= 0].unique():
            members = fed.ids[identity == i]
            picked.append(chosen(utilities, state["turns"], members, state["rho"], self.threshold))
        return torch.cat(picked).sort().values

    def send(self, state: State, ids: Tensor) -> Message:
        shared = state["shared"]
        layer, sets = state["models"][0, shared], state["models"][:, ~shared]
        if state["round"] == 0:
            return Message(shared=(layer[:0], state["models"]))  # sec. 4.3: first k whole models
        if not state["stable"]:
            return Message(shared=(layer, sets))  # then one shared layer and k sets of the other weights
        identity = state["identity"][ids].tolist()
        return Message(shared=(layer,), own=([sets if i < 0 else sets[i : i + 1] for i in identity],))

    def round(self, state: State, clients: Clients) -> State:
        if state["stable"]:  # algorithm 3, line 2; being asked counts, or a client that never answers stays the first
            turns = turns_after(state["turns"], state["identity"], clients.ids, self.threshold)
            state = {**state, "turns": turns}
        starts = [{**state, "rivals": []}, *state["rivals"]]
        for index, start in enumerate(starts):
            sent = self.send(start, clients.ids)
            starts[index] = self.merge(start, sent, clients.run(self.trial if index else self.local, sent))
        best, *rivals = sorted(starts, key=lambda start: inf if start["loss"] is None else start["loss"])
        return {**best, "rivals": rivals if best["round"] < self.restart_rounds else [], "tried": len(starts)}

    def reply_bounds(self, fed: Server, client: int) -> Mapping[int, Bound]:
        return {1: Bound(least=0, most=self.clusters - 1), 2: fed.loss_bound}

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        one = [state["stable"] and known >= 0 for known in state["identity"][replies.ids].tolist()]
        fits = (self.fits(state, settled, *parts) for settled, parts in zip(one, zip(*replies.body)))
        require(replies, fits, "replied with arrays of other lengths than a model, a cluster and a loss")
        ids, n, share = replies.ids, replies.n, portions(replies.n)
        trained, losses = _stacked(replies.body[0]), _stacked(replies.body[2]).flatten().double()
        reported = torch.tensor([[*identity.tolist(), -1][0] for identity in replies.body[1]])
        before = state["identity"][ids]
        labels = torch.where(reported < 0, before, reported).clamp(min=0)  # a client sent one set reports no identity
        identity = state["identity"].index_copy(0, ids, labels)
        changes = int((labels != before).sum())
        calm = state["calm"] + 1 if changes <= self.max_unstable_fraction * len(ids) else 0
        trying = self.restarts > 1 and state["round"] + 1 < self.restart_rounds

        unit = one_hot(ids, len(identity)).float()
        models = cluster_means(state["models"], trained, labels, n)  # algorithm 1, line 27
        contributions = cluster_means(state["contributions"], unit, labels, n)
        shared = state["shared"]
        if self.shared_from == "clusters":  # line 28
            old = state["contributions"][-1].expand(self.clusters, -1)
            common, contributors = models[:, shared].mean(0), cluster_means(old, unit, labels, n).mean(0)
        else:
            common, contributors = average(trained[:, shared], share), average(unit, share)
        empty = [i for i in range(self.clusters) if not (identity == i).any()]
        if self.reseed_empty and empty and not state["stable"]:
            worst = losses.argmax()
            models[empty[0]], contributions[empty[0]] = trained[worst], unit[worst]
        models[:, shared], contributions[-1] = common, contributors
        return {
            **state,
            "models": models,
            "contributions": contributions,
            "identity": identity,
            "losses": state["losses"].index_add(0, ids, losses),
            "times": state["times"].index_add(0, ids, torch.ones_like(ids)),
            "round": state["round"] + 1,
            "calm": calm,
            "changes": changes,
            "loss": float(share.double() @ losses),
            "phase": 2 if state["stable"] else 1,
            "stable": state["stable"] or (0 < self.stable_rounds <= calm and not trying),
        }

    def fits(self, state: State, settled: bool, model: Tensor, identity: Tensor, loss: Tensor) -> bool:
        """Check the shapes of a reply: the engine does not, because a client that was sent one set (`settled`) reports
        no identity."""
        chosen = 0 if settled or self.clusters == 1 else 1
        return model.shape == state["models"][0].shape and loss.shape == (1,) and identity.shape == (chosen,)

    # ---- client
    @ragged
    def local(self, client: Client, message: Message) -> Reply:
        index, loss, model = best_model(client, message, lambda: self.offered(client, message))  # eq. (2)
        several = len(_sets(message)) > 1
        identity = torch.tensor([index] if several else [], dtype=torch.int32)  # eq. (3)
        trained = sgd(client, model, steps=self.local_steps or None)  # None: the run's epochs
        return Reply({}, (trained, identity, torch.tensor([loss])))

    @ragged
    def trial(self, client: Client, message: Message) -> Reply:
        """`local` for a start that is not the best so far. Another name, so that the engine does not measure it."""
        return self.local(client, message)

    def offered(self, client: Client, message: Message) -> list[Tensor]:
        """The models in a message, each put together from its set and the shared layers."""
        sets, shared = _sets(message), within(client.net.layout, self.shared)
        if sets.shape[1] == len(shared):
            return list(sets)
        models = torch.empty(len(sets), len(shared))
        models[:, shared], models[:, ~shared] = message.shared[0], sets
        return list(models)

    def received(self, client: Client, message: Message) -> Tensor:
        if len(_sets(message)) == 1:
            return self.offered(client, message)[0]
        return best_model(client, message, lambda: self.offered(client, message)).model

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Model:
        return self.received(client, message)

    # ---- to look at
    def mixing(self, state: State) -> dict[str, Tensor]:
        table, identity = state["contributions"], state["identity"]
        matrices = {"personal": table[identity]}  # unknown identity (-1): the last row, because any set may be chosen
        return {**matrices, "shared": table[-1].expand(len(identity), -1)} if state["shared"].any() else matrices

    def describe(self, state: State) -> dict[str, Any]:
        times, pre = state["times"].tolist(), state["phase"] == 1
        clients = len(times) * state["tried"]
        return {
            "clusters": state["identity"].tolist(),
            "phase": state["phase"],
            "changes": state["changes"],
            "participation": times,
            "utilities": [total / s if s else None for total, s in zip(state["losses"].tolist(), times)],
            "mean_loss": state["loss"],
            "e_cal": clients * (state["cal"] + self.clusters if pre else state["rho"] * state["cal"]),  # table 2
            "e_com": clients * (1 if pre else state["rho"]) * state["models"].shape[1],  # table 3
        }


def within(layout: Layout, layers: tuple[str, ...]) -> Tensor:
    """True for the positions of a vector that belong to these layers; a name takes precedence over a number."""
    names = [layer.name for layer in layout.layers]
    keys = [key if key in names or not key.removeprefix("-").isdecimal() else int(key) for key in layers]
    inside = torch.zeros(layout.size, dtype=torch.bool)
    inside[layout.positions(tuple(keys))] = True
    return inside


def _sets(message: Message) -> Tensor:
    """The k sets of weights in a message, or the one of the client's cluster."""
    sets = [*message.shared, *message.own][1]
    assert isinstance(sets, Tensor)
    return sets


def _stacked(arrays: Tensor | list[Tensor]) -> Tensor:
    """The arrays of all replies as one, without a copy if that is what came."""
    return arrays if isinstance(arrays, Tensor) else torch.stack(arrays)
