"""Training that an evaluation did ahead of the next round, kept so that the round need not repeat it.

A method whose personal model is the trained one is evaluated by training every client with the seed of the next round.
If the client then takes part in that round and is sent the same message, its reply is the one already made.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from fedkin.protocol import Message, Reply

MOST_BYTES = 1 << 28
"""Of a worker. Beyond that, clients train again."""

Value = TypeVar("Value")


class Work(Protocol):
    @property
    def round(self) -> int: ...
    @property
    def client(self) -> int: ...
    @property
    def state(self) -> Path | None: ...


class _Ahead(NamedTuple):
    round: int
    state: Path | None
    message: Message
    reply: Reply
    flops: float


class TrainedAhead:
    """Replies of one worker, by client."""

    def __init__(self) -> None:
        self._kept: dict[int, _Ahead] = {}
        self._bytes = 0

    def keep(self, evaluation: Work, message: Message, reply: Reply, flops: float) -> None:
        """Keep a copy of what a client will reply to this message in the next round, if there is room."""
        round = evaluation.round + 1
        if self._kept and next(iter(self._kept.values())).round != round:
            self._kept.clear()  # of an earlier round: those clients did not take part
        if not self._kept:
            self._bytes = 0
        size = sum(t.numel() * t.element_size() for t in _tensors((message, reply)))
        if self._bytes + size <= MOST_BYTES:
            self._kept[evaluation.client] = _Ahead(round, evaluation.state, copied(message), copied(reply), flops)
            self._bytes += size

    def take(self, task: Work, message: Message) -> tuple[Reply, float] | None:
        """The reply and its FLOPs, if they are known. They are given out once."""
        found = self._kept.pop(task.client, None)
        if found is None or (found.round, found.state) != (task.round, task.state):
            return None
        return (found.reply, found.flops) if _same(found.message, message) else None


def copied(value: Value) -> Value:
    """A copy of a nested value of tensors: whoever is given it may write into it, and nobody else sees that."""
    made: Any = value
    if isinstance(value, Tensor):
        made = value.clone()
    elif isinstance(value, dict):
        made = {k: copied(v) for k, v in value.items()}
    elif isinstance(value, list):
        made = [copied(v) for v in value]
    elif isinstance(value, tuple):
        parts = (copied(v) for v in value)
        made = type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return made  # type: ignore[no-any-return]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b)


def _tensors(value: Any) -> Iterable[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _tensors(part)
