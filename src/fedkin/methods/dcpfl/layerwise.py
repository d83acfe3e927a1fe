"""Models of which only some layers are sent: select them, put them back, and average them group by group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from fedkin.maths.mixing import average, shares
from fedkin.methods.dcpfl.discrepancy import LayerScale, layer_discrepancy

Drift = Literal["per_interval", "raw"]
Tables = dict[str, Any]
"""What the server keeps of each group: `models` [G, d], `version` [G, L] (when each layer was last averaged), `since`
[G, L] (when it was averaged before that), `spread` [G, L] (eq. 5), `shares` [G, L, clients] (each client's weight in
that mean)."""


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


def overall(table: Tensor, labels: Tensor, n: Tensor) -> Tensor:
    """Mean over groups [G, …], each weighted by the examples n of its clients."""
    placed = labels >= 0
    examples = torch.zeros(len(table), dtype=torch.double).index_add_(0, labels[placed], n[placed].double())
    return average(table, (examples / examples.sum()).float())


def averaged(
    groups: Tables,
    labels: Tensor,
    uploads: Tensor,
    due: Tensor,
    *,
    ids: Tensor,
    n: Tensor,
    now: int,
    owner: Tensor,
    parameters: int,
    scale: LayerScale,
    drift: Drift,
) -> Tables:
    """The groups after each layer that is due ([G, L]) became the mean of its members' uploads, weighted by n.

    Eq. (5) sees only the layers uploaded in this round. A group without a member among `labels` does not change.
    """
    out = {name: table.clone() for name, table in groups.items()}
    layers = [(owner[:parameters] == layer).nonzero().flatten() for layer in range(due.shape[1])]
    for group in range(len(due)):
        members = (labels == group).nonzero().flatten()
        if not len(members) or not bool(due[group].any()):
            continue
        own = uploads if len(members) == len(uploads) else uploads[members]
        count = n[members]
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
        out["shares"][group, which] = shares(out["shares"].shape[2], ids[members], weights)
    return out
