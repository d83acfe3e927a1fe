"""A reply as an update: what each of its arrays was before the client worked on it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import Tensor

from fedkin.protocol import Message


def judged(array: Tensor) -> bool:
    """Attacks, defenses and noise act on arrays of floating-point numbers."""
    return array.is_floating_point() and bool(array.numel())


def references(message: Message, body: Sequence[Tensor], from_zero: Collection[int] = ()) -> list[Tensor | None]:
    """What a client was sent for each array of its reply; None if the message does not contain it.

    An array of a reply continues the first array of the message that has its shape: the client's own part before what
    all were sent, each used once. This depends on shapes alone, never on a client's data. Arrays in `from_zero` are
    differences or gradients and continue nothing (`Method.from_zero`).
    """
    offered = [a for a in (*message.own, *message.shared) if isinstance(a, Tensor) and judged(a)]
    found: list[Tensor | None] = []
    for index, array in enumerate(body):
        match = next((i for i, sent in enumerate(offered) if sent.shape == array.shape), None)
        if match is None or index in from_zero or not judged(array):
            found.append(None)
        else:
            found.append(offered.pop(match))
    return found


def offers(message: Message, array: Tensor) -> list[Tensor]:
    """The models of a message from which a client may have chosen the one that this array continues: a model of its own
    beside one that all were sent, or the rows of a table."""
    both = []
    for parts in (message.own, message.shared):
        match = next((a for a in parts if isinstance(a, Tensor) and judged(a) and a.shape == array.shape), None)
        both += [] if match is None else [match]
    if both:
        return both
    tables = [a for a in (*message.own, *message.shared) if isinstance(a, Tensor) and judged(a) and a.dim() > 1]
    return [row for table in tables if table.shape[1:] == array.shape for row in table]
