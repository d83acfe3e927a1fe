"""A worker's network and PyTorch settings, restored for every client, whatever the previous one did."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from operator import is_
from typing import Any

import torch
from torch import nn

from fedkin.models.network import Network

_PLAIN = frozenset((bool, int, float, str, type(None)))


class Workspace:
    def __init__(self, make: Callable[[], Network], threads: int, first: Network | None = None) -> None:
        """`first`: the initial network; `make` builds another one like it."""
        self._make, self._threads = make, threads
        self._build(first)

    def _build(self, net: Network | None = None) -> None:
        self.net = net or self._make()
        module = self.net.module
        self._initial = self.net.initial.clone()
        self._modes = [(part, part.training) for part in module.modules()]
        self._gradients = [(parameter, parameter.requires_grad) for parameter in module.parameters()]
        self._built = _structure(self.net)
        self._glance = _Glance(self.net)
        self._frozen_mark = self._mark()

    def _mark(self) -> list[int]:
        """Changes if a client writes to a frozen parameter."""
        return [int(_bits(value).sum()) for value in self.net.frozen_parameters.values()]

    def clean(self) -> Network:
        """The network as it was built: restored if possible, or else a new one."""
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)
        for part, training in self._modes:
            if part.training != training:
                vars(part)["training"] = training  # to assign it as an attribute takes longer
        changed = not self._glance.unchanged() and _structure(self.net) != self._built
        if changed or self._mark() != self._frozen_mark:
            self._build()  # with its own frozen values: the shared ones may have been changed
        for parameter, gradient in self._gradients:
            if parameter.requires_grad != gradient:
                parameter.requires_grad_(gradient)
            if parameter.grad is not None:
                parameter.grad = None
        self.net.initial.copy_(self._initial)
        self.net.load(self._initial)
        self.net.cost = 0.0
        return self.net

    def apart(self, value: Any) -> Any:
        """The same value, with copies of tensors that are stored in the network, which its next use would change."""
        if isinstance(value, torch.Tensor):
            return value.clone() if self.net.holds(value) else value
        if isinstance(value, dict):
            return {k: self.apart(v) for k, v in value.items()}
        if isinstance(value, tuple):
            return tuple(self.apart(v) for v in value)
        return [self.apart(v) for v in value] if isinstance(value, list) else value


def _bits(value: torch.Tensor) -> torch.Tensor:
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(value.element_size(), torch.uint8)
    return value.contiguous().view(whole)


class _Glance:
    """Sees in a few microseconds that a network is as it was built, which is nearly always so. If it cannot tell,
    `_structure` can: it compares what this only takes to be the same object."""

    def __init__(self, net: Network) -> None:
        self._net = net
        self._whole = (net.flat, net.initial, net.module)
        self._parts = [(vars(part), tuple(vars(part).values())) for part in net.module.modules()]
        tables = [value for _, values in self._parts for value in values if isinstance(value, dict)]
        self._tables = [(table, tuple(table), tuple(table.values())) for table in tables if table]
        self._empty = [table for table in tables if not table]
        tensors = [*net.module.parameters(), *net.module.buffers()]
        self._tensors = [(tensor, tensor.data_ptr(), tensor.shape, tensor.dtype) for tensor in tensors]

    def unchanged(self) -> bool:
        net = self._net
        return (
            all(map(is_, (net.flat, net.initial, net.module), self._whole))
            and not any(self._empty)
            and all(len(now) == len(then) and all(map(is_, now.values(), then)) for now, then in self._parts)
            and all(
                tuple(table) == names and all(map(is_, table.values(), values)) for table, names, values in self._tables
            )
            and all(t.data_ptr() == at and t.shape == shape and t.dtype == kind for t, at, shape, kind in self._tensors)
        )


def _structure(net: Network) -> list[Any]:
    """What cannot be restored: which parts there are, their settings and hooks, and where their numbers are stored."""
    out: list[Any] = [id(net.flat), net.flat.data_ptr(), id(net.initial), id(net.module)]
    for name, part in net.module.named_modules():
        values = vars(part)
        out.append((name, id(part), type(part), "forward" in values))
        # one pass over the attributes: this is done for every task
        for key, value in values.items():
            kind = type(value)
            if kind in _PLAIN:
                if key != "training":
                    out.append(value)
            elif kind is OrderedDict:  # hooks
                out.append(len(value))
        out += [(k, id(v), _memory(v)) for k, v in part._parameters.items()]
        out += [(k, _memory(v)) for k, v in part._buffers.items()]
    return out


def _memory(tensor: torch.Tensor | nn.Parameter | None) -> Any:
    return None if tensor is None else (tensor.data_ptr(), tuple(tensor.shape), tensor.dtype)
