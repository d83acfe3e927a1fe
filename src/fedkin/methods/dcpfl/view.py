"""What DC-PFL shows of its state: who is in each layer of each client's model, the tree, the radius of curvature and
the discrepancies of layers."""

from __future__ import annotations

from math import isfinite
from typing import Any

import torch
from torch import Tensor

from fedkin.methods.dcpfl.curvature import radius
from fedkin.methods.dcpfl.layerwise import lacking, overall
from fedkin.methods.dcpfl.tree import mean_discrepancy
from fedkin.protocol import State


def mixing(state: State) -> dict[str, Tensor]:
    """One matrix for all layers with equal mixing. A layer that would not be sent stays the client's own."""
    everybody = torch.arange(len(state["n"]))
    asks, labels, table = lacking(state, everybody), state["labels"], state["groups"]["shares"]
    out: dict[str, Tensor] = {}
    for layer, name in enumerate(state["layers"]):
        shares = table[:, layer]
        shares = torch.cat([shares, overall(shares, labels, state["n"])[None]])[labels]
        matrix = torch.where(asks[:, layer, None], shares, torch.eye(len(labels)))
        alike = next((key for key, other in out.items() if torch.equal(other, matrix)), None)
        out[name if alike is None else f"{alike}, {name}"] = matrix if alike is None else out.pop(alike)
    return out


def described(state: State, periods: Tensor, window: int) -> dict[str, Any]:
    """`periods` [G, L]: rounds between two averages of each layer."""
    event = dict(state["event"])
    out = {"clusters": state["labels"], "group_count": len(periods), "gamma": state["gamma"]}
    if event.pop("tree", False):
        out["tree"], out["leaves"] = state["tree"], state["leaves"]
        out["discrepancy"] = mean_discrepancy(state, state["leaves"])
    if "loss" in event:
        r = float(radius(state["losses"], window)[-1])
        out["radius"] = r if isfinite(r) else None
    for name, table in (("layer_discrepancy", state["groups"]["spread"]), ("layer_period", periods)):
        rows = [[value if isfinite(value) else None for value in row] for row in table.tolist()]
        out[name] = {str(group): dict(zip(state["layers"], row)) for group, row in enumerate(rows)}
    return out | event
