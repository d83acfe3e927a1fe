"""Mixing matrices and reported facts in the size that a page can hold: equal matrices and rows are stored once, and if
a long run of many clients is still too large, some rounds are left out."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

WEIGHT_SCALE = 10_000  # mixing weights are stored as integers; this one means 1
MATRIX_BUDGET = 800_000  # numbers in all mixing matrices of a page
FACT_BUDGET = 2_000_000  # characters of everything that the methods report


def mixing(frames: list[tuple[int, Any]], budget: int) -> dict[str, Any] | None:
    """Store each distinct matrix once, and in it each distinct row once."""
    matrices: list[dict[str, Any]] = []
    known: dict[str, int] = {}
    out: list[dict[str, Any]] = []
    kept = thinned(frames, lambda value: sum(_distinct(m) for m in _parts(value).values()), budget)
    for round, value in kept:
        parts: dict[str, int] = {}
        for name, matrix in _parts(value).items():
            packed = _packed(matrix)
            key = json.dumps(packed)
            if key not in known:
                known[key] = len(matrices)
                matrices.append(packed)
            parts |= dict.fromkeys(name.split(", "), known[key])  # layers with the same matrix share an entry
        out.append({"round": round, "parts": parts})
    return {"matrices": matrices, "frames": out, "written": len(frames)} if out else None


def _parts(value: Any) -> dict[str, list[list[float]]]:
    return value if isinstance(value, dict) else {"model": value}


def _packed(matrix: list[list[float]]) -> dict[str, Any]:
    whole = [tuple(round(WEIGHT_SCALE * (w or 0)) for w in row) for row in matrix]
    rows: dict[tuple[int, ...], int] = {}
    of = [rows.setdefault(row, len(rows)) for row in whole]
    return {"rows": [list(row) for row in rows], "of": of}


def _distinct(matrix: list[list[float]]) -> int:
    return len({tuple(row) for row in matrix}) * len(matrix)


def facts(found: dict[str, list[tuple[int, Any]]], budget: int) -> dict[str, list[list[Any]]]:
    """What the methods report, metric by metric, as [round, value]."""
    out = {}
    for metric, values in found.items():
        plain = [(round, _compact(value)) for round, value in values]
        kept = thinned(plain, lambda value: len(json.dumps(value, separators=(",", ":"))), budget // 4)
        out[metric] = [[round, value] for round, value in kept]
    return out


def _compact(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, list):
        return [_compact(v) for v in value]
    if isinstance(value, dict):
        return {k: _compact(v) for k, v in value.items()}
    return value


def thinned(frames: list[tuple[int, Any]], cost: Callable[[Any], int], budget: int) -> list[tuple[int, Any]]:
    """Evenly spaced rounds, always with the first and the last, as many as the budget allows."""
    total = sum(cost(value) for _, value in frames)
    if total <= budget or len(frames) <= 2:
        return frames
    count = max(2, int(len(frames) * budget / total))
    return [frames[i] for i in sorted(set(np.linspace(0, len(frames) - 1, count).round().astype(int).tolist()))]
