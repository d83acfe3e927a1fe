"""Mixing matrices and reported facts in the size that a page can hold: equal matrices and rows are stored once, and if
a long run of many clients is still too large, some rounds are left out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

T = TypeVar("T")

WEIGHT_SCALE = 10_000  # mixing weights are stored as integers; this one means 1
MATRIX_BUDGET = 800_000  # numbers in all mixing matrices of a page
FACT_BUDGET = 2_000_000  # characters of everything that the methods report


class Frame(NamedTuple):
    """A value that a page may show for a round, in its smallest form."""

    round: int
    value: Any
    cost: int
    """How much of the page it takes."""


def mixing_frame(round: int, value: Any) -> Frame:
    """A mixing matrix, or one for each part of the model."""
    parts: dict[str, Any] = value if isinstance(value, dict) else {"model": value}
    return Frame(round, {name: _packed(m) for name, m in parts.items()}, sum(_distinct(m) for m in parts.values()))


def fact_frame(round: int, value: Any) -> Frame:
    """What a method reports."""
    small = _compact(value)
    return Frame(round, small, len(json.dumps(small, separators=(",", ":"))))


def mixing(frames: list[Frame], budget: int) -> dict[str, Any] | None:
    """Store each distinct matrix once, and in it each distinct row once."""
    matrices: list[dict[str, Any]] = []
    known: dict[str, int] = {}
    out: list[dict[str, Any]] = []
    for round, value, _ in thinned(frames, budget):
        parts: dict[str, int] = {}
        for name, packed in value.items():
            key = json.dumps(packed)
            if key not in known:
                known[key] = len(matrices)
                matrices.append(packed)
            parts |= dict.fromkeys(name.split(", "), known[key])  # layers with the same matrix share an entry
        out.append({"round": round, "parts": parts})
    return {"matrices": matrices, "frames": out, "written": len(frames)} if out else None


def _packed(matrix: list[list[float]]) -> dict[str, Any]:
    whole = [tuple(round(WEIGHT_SCALE * (w or 0)) for w in row) for row in matrix]
    rows: dict[tuple[int, ...], int] = {}
    of = [rows.setdefault(row, len(rows)) for row in whole]
    return {"rows": [list(row) for row in rows], "of": of}


def _distinct(matrix: list[list[float]]) -> int:
    return len({tuple(row) for row in matrix}) * len(matrix)


def facts(found: dict[str, list[Frame]], budget: int) -> dict[str, list[list[Any]]]:
    """What the methods report, metric by metric, as [round, value]."""
    return {
        metric: [[frame.round, frame.value] for frame in thinned(frames, budget // 4)]
        for metric, frames in found.items()
    }


def _compact(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, list):
        return [_compact(v) for v in value]
    if isinstance(value, dict):
        return {k: _compact(v) for k, v in value.items()}
    return value


def thinned(frames: list[Frame], budget: int) -> list[Frame]:
    """Evenly spaced rounds, always with the first and the last, as many as the budget allows."""
    total = sum(frame.cost for frame in frames)
    return frames if total <= budget else evenly(frames, int(len(frames) * budget / total))


def evenly(items: Sequence[T], count: int) -> list[T]:
    """At most so many of the items, and at least two: the first, the last, and evenly spaced ones between them."""
    if len(items) <= max(2, count):
        return list(items)
    return [items[i] for i in sorted(set(np.linspace(0, len(items) - 1, max(2, count)).round().astype(int).tolist()))]


def rounded(value: Any) -> Any:
    return round(value, 5) if isinstance(value, float) else value
