"""Numbers in replies that are not parameters, such as losses and counts: what a client may send.

A method declares the ranges (`Method.reply_bounds`). A loss has no largest value, so it is compared with the others'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

import torch
from torch import Tensor

from fedkin.bounds import Bound

UNLIKE = 1e4  # a number this many times the median client's is outside a range that has no upper end
Bodies = Mapping[int, Sequence[Tensor]]
Bounds = Mapping[int, Mapping[int, Bound]]


def with_upper_ends(bodies: Bodies, bounds: Bounds) -> dict[int, dict[int, Bound]]:
    """The bounds of each client, by index of the array; where one has no upper end, it is set by the replies."""
    sizes: dict[int, list[float]] = {}
    for client, body in bodies.items():
        for index in bounds[client]:
            if index < len(body) and body[index].numel():
                sizes.setdefault(index, []).append(float(body[index].abs().max()))
    usual = {index: UNLIKE * max(1.0, median(found)) for index, found in sizes.items()}
    return {
        client: {
            index: replace(bound, most=usual.get(index)) if bound.most is None else bound
            for index, bound in bounds[client].items()
        }
        for client in bodies
    }


def outside(body: Sequence[Tensor], bounds: Mapping[int, Bound]) -> str:
    """What is wrong with a reply; empty if all its numbers are within their bounds."""
    for index, bound in bounds.items():
        if index < len(body) and body[index].numel():
            for value in map(float, torch.aminmax(body[index])):
                if not bound.holds(value):
                    return f"array {index} of its reply holds {value:.4g}; it must {bound}"
    return ""


def clamped(body: Sequence[Tensor], bounds: Mapping[int, Bound]) -> tuple[Tensor, ...]:
    """A reply with its numbers moved into their bounds."""
    return tuple(
        array.clamp(bounds[index].least, bounds[index].most) if index in bounds and array.numel() else array
        for index, array in enumerate(body)
    )
