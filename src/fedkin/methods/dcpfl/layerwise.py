"""Rows of which only some layers are there: picked out, put together, and averaged group by group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedkin.maths.mixing import average, shares
from fedkin.methods.dcpfl.discrepancy import Scale, layer_discrepancy

Tables = dict[str, Any]
"""What the server has of each group, a row a group: `models` [G, d], `version` [G, L] (when each layer was last
averaged), `spread` [G, L] (eq. 5 then), `shares` [G, L, clients] (who had which part in that mean)."""


def pick(row: Tensor, layers: Tensor, owner: Tensor) -> Tensor:
    """The columns of these layers (a truth value for each), in order; `owner` [d] is each column's layer."""
    return row if bool(layers.all()) else row[layers[owner]]


def put(row: Tensor, part: Tensor, layers: Tensor, owner: Tensor) -> Tensor:
    """A copy of `row` in which the columns of these layers are `part`."""
    if bool(layers.all()):
        return part.clone()
    out = row.clone()
    out[layers[owner]] = part
    return out


def stacked(parts: Tensor | Sequence[Tensor], layers: Tensor, owner: Tensor) -> Tensor:
    """Parts of rows as whole rows [C, d], 0 where a layer is not there; `layers` [C, L] says which are."""
    if isinstance(parts, Tensor) and bool(layers.all()):
        return parts
    empty = torch.zeros(len(owner))
    return torch.stack([put(empty, part, has, owner) for part, has in zip(parts, layers)])


def overall(table: Tensor, labels: Tensor, n: Tensor) -> Tensor:
    """Mean over groups [G, …], each weighted by the examples n of the clients that `labels` puts there."""
    placed = labels >= 0
    rows = torch.zeros(len(table), dtype=torch.double).index_add_(0, labels[placed], n[placed].double())
    return average(table, (rows / rows.sum()).float())


def averaged(
    groups: Tables,
    labels: Tensor,
    rows: Tensor,
    due: Tensor,
    *,
    ids: Tensor,
    n: Tensor,
    now: int,
    owner: Tensor,
    parameters: int,
    scale: Scale,
) -> Tables:
    """The groups after the layers that are due ([G, L]) became the mean of the members' rows, weighted by n.

    A group of whose members none is among `labels` stays as it was.
    """
    out = {name: table.clone() for name, table in groups.items()}
    layers = [(owner[:parameters] == layer).nonzero().flatten() for layer in range(due.shape[1])]
    for group in range(len(due)):
        members = (labels == group).nonzero().flatten()
        if not len(members) or not bool(due[group].any()):
            continue
        own = rows if len(members) == len(rows) else rows[members]
        count = n[members]
        weights = (count.double() / count.sum()).float()
        mean = average(own, weights)
        which = due[group].nonzero().flatten()
        out["models"][group] = torch.where(due[group][owner], mean, groups["models"][group])
        out["version"][group, which] = now
        out["spread"][group, which] = layer_discrepancy(own, mean, [layers[k] for k in which.tolist()], scale)
        out["shares"][group, which] = shares(out["shares"].shape[2], ids[members], weights)
    return out
