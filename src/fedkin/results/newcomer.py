"""A server's state with room for one more client, as if that client had been there and never answered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedkin.maths.table import ClientTable
from fedkin.protocol import Method, Server, State


def with_newcomer(method: Method, state: State, fed: Server, examples: int) -> tuple[State, int]:
    """The state with a newcomer who has this many training examples, and the newcomer's id.

    The newcomer's entries come from the method's own `init` for a larger federation; the entries of all others are
    those of `state`.
    """
    larger = replace(fed, ids=torch.arange(fed.size + 1), n=torch.cat([fed.n, torch.tensor([examples])]))
    grown = _grown(state, method.init(larger), fed.size)
    assert isinstance(grown, dict)
    return grown, fed.size


def _grown(old: Any, fresh: Any, size: int) -> Any:
    """`old` with the entries that `fresh` has for one more client, in each dimension that counts `size` clients."""
    if isinstance(old, dict) and isinstance(fresh, dict):
        return {name: _grown(value, fresh.get(name), size) for name, value in old.items()}
    if isinstance(old, list | tuple) and isinstance(fresh, list | tuple):
        if len(fresh) == len(old) + 1 == size + 1:
            return [*(_grown(a, b, size) for a, b in zip(old, fresh)), fresh[-1]]
        return [_grown(a, b, size) for a, b in zip(old, fresh)] if len(old) == len(fresh) else old
    if isinstance(old, ClientTable):
        return old.resized(size + 1)
    if isinstance(old, Tensor) and isinstance(fresh, Tensor) and old.dim() == fresh.dim():
        grows = [a == size and b == size + 1 for a, b in zip(old.shape, fresh.shape)]
        if any(grows) and all(g or a <= b for g, a, b in zip(grows, old.shape, fresh.shape)):
            out = fresh[tuple(slice(a + g) for g, a in zip(grows, old.shape))].to(old.dtype).clone()
            out[tuple(slice(a) for a in old.shape)] = old
            return out
    return old
