"""What is in a table, in counts and names of columns: never the value of a cell."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedkin.data.arrays import Arrays
from fedkin.data.cells import Floats
from fedkin.data.encode import Column

FEW = 8  # different whole numbers: at most as many may stand for categories
APART = 0.25  # of the median: zeros are far from the other cells if none of those is below


def clients(arrays: Arrays) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table of clients: examples, those of each class, cells that are missing."""
    classes = [arrays.class_names[k] if arrays.class_names else f"class {k}" for k in range(arrays.classes)]
    assert arrays.group is not None
    rows = []
    for k, name in enumerate(arrays.names):
        own = arrays.group == k
        counts = [str(int((arrays.y[own] == c).sum())) for c in range(arrays.classes)]
        gone = [str(int(np.isnan(arrays.x[own]).sum()))] if arrays.columns else []
        rows.append([name, str(int(own.sum())), *counts, *gone])
    return ["client", "examples", *classes, *(["missing cells"] if arrays.columns else [])], rows


def columns(arrays: Arrays) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table of columns."""
    rows = []
    for column, cells in _columns(arrays):
        kind = f"category, {len(column.levels)} levels" if column.kind == "category" else "number"
        rows.append([column.name, kind, str(int(np.isnan(cells).sum()))])
    return ["column", "read as", "missing cells"], rows


def like_categories(arrays: Arrays) -> list[str]:
    """Number columns with so few different whole numbers that they may stand for categories."""
    found = []
    for column, cells in _columns(arrays):
        values = np.unique(cells[~np.isnan(cells)])
        if column.kind == "number" and len(values) <= FEW and (values == np.floor(values)).all():
            found.append(column.name)
    return found


def zeros_apart(arrays: Arrays) -> list[str]:
    """Number columns in which 0 lies far from all other cells, as it does where it was typed for "not known"."""
    found = []
    for column, cells in _columns(arrays):
        others = cells[~np.isnan(cells) & (cells != 0)]
        if column.kind == "category" or not (cells == 0).any() or len(np.unique(others)) <= FEW:
            continue
        if others.min() >= APART * np.median(others) > 0:
            found.append(column.name)
    return found


def _columns(arrays: Arrays) -> Iterator[tuple[Column, Floats]]:
    yield from zip(arrays.columns, arrays.x.T)
