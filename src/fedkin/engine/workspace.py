"""A worker's network and PyTorch settings, restored for every client, whatever the previous one did."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
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
        if _structure(self.net) != self._built or self._mark() != self._frozen_mark:
            self._build()  # with its own frozen values: the shared ones may have been changed
        for parameter, gradient in self._gradients:
            if parameter.requires_grad != gradient:
                parameter.requires_grad_(gradient)
            if parameter.grad is not None:
                parameter.grad = None
        for part, training in self._modes:
            if part.training != training:  # to assign it takes longer than to look
                part.training = training
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
