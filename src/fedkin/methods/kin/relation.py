"""Who is kin to whom: the rows of A, by which kin mixes clients' models."""

from __future__ import annotations

import torch
from torch import Tensor

from fedkin.maths.table import needed
from fedkin.protocol import State


def kin_weights(state: State, ids: Tensor, temperature: float) -> Tensor:
    """A_ji = softmax_i(s_ji / T + log n_i) for the clients j in `ids` [ids, clients].

    s_ji is cos(w_j − w̄, w_i − w̄); for i = j it is the largest of the others: a client is not its own kin. Only replies
    of the last round count (`share` is 0 elsewhere), so that nothing stale is mixed in.
    """
    share = state["share"].double()
    used = needed(state["models"], (share > 0) & state["known"])
    near = torch.zeros(len(ids), len(share), dtype=torch.double)
    near[:, used] = _directions(state, ids) @ _directions(state, used).T
    itself = ids[:, None] == torch.arange(len(share))
    closest = near.masked_fill(itself | (share == 0), -1).max(1, keepdim=True).values
    near = torch.where(itself, closest, near)
    near = near * state["known"][ids, None]  # nobody knows the kin of a client that never replied
    rows: Tensor = (near / temperature + share.log()).softmax(1).float()
    return rows


def _directions(state: State, ids: Tensor) -> Tensor:
    """w_i − w̄, scaled to length 1."""
    out: Tensor = state["models"][ids].sub_(state["mean"]).double()
    return out.div_(out.norm(dim=1, keepdim=True).clamp_min(1e-12))
