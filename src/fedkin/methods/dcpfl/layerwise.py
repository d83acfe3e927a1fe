"""Layer-wise aggregation (DC-PFL, sec. IV): which layers are due, models of which only some layers are sent, and their
means group by group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from fedkin.maths.mixing import average, shares
from fedkin.methods.dcpfl.discrepancy import LayerScale, layer_discrepancy
from fedkin.protocol import Replies, State

Drift = Literal["per_interval", "raw"]
Tables = dict[str, Any]
"""What the server keeps of each group: `models` [G, d], `version` [G, L] (when each layer was last averaged), `since`
[G, L] (when it was averaged before that), `spread` [G, L] (eq. 5), `shares` [G, L, clients] (each client's weight in
that mean)."""


def started(initial: Tensor, groups: int, layers: int, clients: int) -> Tables:
    """Groups before the first round."""
    return {
        "models": initial.repeat(groups, 1),
        "version": torch.zeros(groups, layers, dtype=torch.long),
        "since": torch.zeros(groups, layers, dtype=torch.long),
        "spread": torch.full((groups, layers), torch.inf, dtype=torch.double),
        "shares": torch.full((groups, layers, clients), 1 / clients),
    }


# ---- which layers
def low_layers(spread: Tensor, share: float, reference: Literal["sum", "mean"]) -> Tensor:
    """[G, L]: D_{g,l} < share · D_g, eq. (6); false before the first measurement."""
    return spread < share * (spread.sum(1, keepdim=True) if reference == "sum" else spread.mean(1, keepdim=True))


def due_layers(state: State, low: Tensor, alpha: int, *, layerwise: bool, silent: bool) -> Tensor:
    """[G + 1, L]: layers that a group's clients upload in this round: high ones every τ, all of them every ατ, eq. (6).
    The last row of `low` and of the result is for clients without a group."""
    period, now = state["period"], state["clock"] + 1
    if now % period:
        return torch.zeros_like(low)
    everything = not layerwise or state["tree"] is None or now % (alpha * period) == 0
    due = torch.ones_like(low) if everything else ~low
    if silent and state["tree"] is not None:  # a client alone in its group has no one to average with
        labels = state["labels"]
        due[:-1][labels[labels >= 0].bincount(minlength=len(low) - 1) == 1] = False
    return due


def newest(version: Tensor) -> Tensor:
    """Adds a last row for clients without a group (label -1): the mean of all groups, as new as the newest group."""
    return torch.cat([version, version.amax(0, keepdim=True)])


def lacking(state: State, ids: Tensor) -> Tensor:
    """[C, L]: layers that a client lacks because its group averaged them since the client last received them."""
    return state["held"][ids] < newest(state["groups"]["version"])[state["labels"][ids]]  # type: ignore[no-any-return]


# ---- parts of models
def pick(vector: Tensor, layers: Tensor, owner: Tensor) -> Tensor:
    """The columns of the layers that are True in `layers`, in order; `owner` [d] is each column's layer."""
    return vector if bool(layers.all()) else vector[layers[owner]]


def put(vector: Tensor, part: Tensor, layers: Tensor, owner: Tensor) -> Tensor:
    """A copy of `vector` in which the columns of these layers are `part`."""
    if bool(layers.all()):
        return part.clone()
    out = vector.clone()
    out[layers[owner]] = part
    return out


def stacked(parts: Tensor | Sequence[Tensor], layers: Tensor, owner: Tensor) -> Tensor:
    """Parts of models as whole vectors [C, d], 0 where a layer is missing; `layers` [C, L] says which are present."""
    if isinstance(parts, Tensor) and bool(layers.all()):
        return parts
    empty = torch.zeros(len(owner))
    return torch.stack([put(empty, part, has, owner) for part, has in zip(parts, layers)])


# ---- means
def overall(table: Tensor, labels: Tensor, n: Tensor) -> Tensor:
    """Mean over groups [G, …], each weighted by the examples n of its clients."""
    placed = labels >= 0
    examples = torch.zeros(len(table), dtype=torch.double).index_add_(0, labels[placed], n[placed].double())
    return average(table, (examples / examples.sum()).float())


def averaged(
    state: State,
    groups: Tables,
    labels: Tensor,
    replies: Replies,
    uploads: Tensor,
    due: Tensor,
    *,
    scale: LayerScale,
    drift: Drift,
) -> Tables:
    """`groups` after each layer that is due ([G, L]) became the mean of its members' uploads, weighted by examples.

    `labels` is every client's group. Eq. (5) sees only the layers uploaded in this round. A group of which no member
    replied does not change.
    """
    out = {name: table.clone() for name, table in groups.items()}
    now, owner, own_label = state["clock"], state["owner"], labels[replies.ids]
    layers = [(owner[: state["parameters"]] == layer).nonzero().flatten() for layer in range(due.shape[1])]
    for group in range(len(groups["models"])):
        members = (own_label == group).nonzero().flatten()
        if not len(members) or not bool(due[group].any()):
            continue
        own = uploads if len(members) == len(uploads) else uploads[members]
        count = replies.n[members]
        weights = (count.double() / count.sum()).float()
        mean = average(own, weights)
        which = due[group].nonzero().flatten()
        out["models"][group] = torch.where(due[group][owner], mean, groups["models"][group])
        # `version` is already `now` where a group that was just averaged is split
        since = torch.where(groups["version"][group] < now, groups["version"][group], groups["since"][group])[which]
        out["since"][group, which], out["version"][group, which] = since, now
        if drift == "raw" or bool(due[group].all()):
            apart = now - since if drift == "per_interval" else torch.ones_like(since)
            found = layer_discrepancy(own, mean, [layers[k] for k in which.tolist()], scale)
            out["spread"][group, which] = found * apart.min() / apart
        out["shares"][group, which] = shares(out["shares"].shape[2], replies.ids[members], weights)
    return out
