"""The label column of tables: classes, numbers, or several labels that are there or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedkin.data.cells import Floats, ReadColumn, Reading, check_case, check_size, level_order, read_column
from fedkin.data.table import Problems, Table

TaskKind = Literal["classification", "regression", "multilabel"]
MOST_CLASSES = 100_000  # a network needs an output for each
FEW = 20  # so few texts or labels may all be different
TRUTHS = {"0": 0.0, "no": 0.0, "false": 0.0, "1": 1.0, "yes": 1.0, "true": 1.0}


@dataclass(frozen=True)
class Labels:
    y: NDArray[Any]
    """int64 classes, or float32 numbers in a regression."""
    classes: int
    names: tuple[str, ...] = field(default=())
    """What the classes are called in the data."""


def labels(
    tables: Sequence[Table],
    reading: Reading,
    task: TaskKind,
    problems: Problems,
    *,
    known: Sequence[str] = (),
    alone: bool = False,
) -> Labels:
    """The label column of all tables as one array.

    Whole numbers from 0 are classes as they are. Other numbers and texts become classes in sorted order. `known` are
    the classes of a trained model. `alone`: these examples are those of one site among several, so whole numbers from 0
    stay as they are even where the site has no example of class 0.
    """
    if len(reading.labels) > 1 or task == "multilabel":
        return _several(tables, reading, task, problems)
    (name,) = reading.labels
    usable = [table for table in tables if name in table.columns]
    for table in tables:
        if name in table.unusable:
            problems.add("the label is neither a number nor a text", source=table.source, column=name)
    read = [read_column(table, name, reading, problems) for table in usable]
    for table, r in zip(usable, read):
        if r.missing.any():
            problems.add("the label is missing; fill it in or remove the row", source=table.source, column=name,
                         rows=table.rows[r.missing])  # fmt: skip
    values = np.concatenate([r.values for r in read]) if read else np.empty(0)
    if task == "regression":
        for table, r in zip(usable, read):
            check_size(name, table, r, problems)
            if r.text.any():
                problems.add("the target of a regression is not a number", source=table.source, column=name,
                             rows=table.rows[r.text])  # fmt: skip
        return Labels(np.nan_to_num(values).astype(np.float32), 0)
    found = [level for r in read for level, gone in zip(r.levels, r.missing) if not gone]
    if not found:
        return Labels(np.zeros(len(values), np.int64), 1)
    if not known:
        known = _classes(usable, read, found, name, problems, alone=alone)
    index = {level: i for i, level in enumerate(known)}
    for table, r in zip(usable, read):
        unknown = np.array([level not in index for level in r.levels]) & ~r.missing
        if unknown.any() and known:
            problems.add(f"the label is none of the {len(known)} known classes", source=table.source, column=name,
                         rows=table.rows[unknown])  # fmt: skip
    y = np.array([index.get(level, 0) for r in read for level in r.levels], np.int64)
    return Labels(y, max(1, len(known)), tuple(known))


def _several(tables: Sequence[Table], reading: Reading, task: TaskKind, problems: Problems) -> Labels:
    """Several label columns as one array [examples, labels]: numbers, or 0 and 1."""
    if task == "classification":
        problems.add("several labels: say whether each is there or not (task='multilabel', --task multilabel), or a "
                     "number to predict (task='regression', --task regression)")  # fmt: skip
    columns = []
    for name in reading.labels:
        single = replace(reading, label=name)
        if task == "regression":
            columns.append(labels(tables, single, task, problems).y)
            continue
        for table in tables:
            if name in table.unusable:
                problems.add("the label is neither a number nor a text", source=table.source, column=name)
        usable = [table for table in tables if name in table.columns]
        columns.append(np.concatenate([_truths(table, name, reading, problems) for table in usable] or [np.empty(0)]))
    alike = len({len(column) for column in columns}) == 1  # else a problem says which file lacks a column
    y = np.stack(columns, axis=1) if alike else np.empty((0, len(columns)))
    return Labels(y.astype(np.float32), 0)


def _truths(table: Table, name: str, reading: Reading, problems: Problems) -> Floats:
    read = read_column(table, name, reading, problems)
    values = np.array([TRUTHS.get(level.casefold(), np.nan) for level in read.levels])
    if read.missing.any():
        problems.add("the label is missing; fill it in or remove the row", source=table.source, column=name,
                     rows=table.rows[read.missing])  # fmt: skip
    if (wrong := np.isnan(values) & ~read.missing).any():
        problems.add("one label of several must be 0 or 1, no or yes, false or true", source=table.source, column=name,
                     rows=table.rows[wrong])  # fmt: skip
    return values


def _classes(
    tables: Sequence[Table], read: Sequence[ReadColumn], found: list[str], name: str, problems: Problems, *, alone: bool
) -> list[str]:
    distinct = sorted(set(found), key=level_order)
    numbers = np.concatenate([r.values[~r.missing] for r in read])
    if np.isfinite(numbers).any() and not np.isfinite(numbers).all():
        for table, r in zip(tables, read):
            if r.text.any():
                problems.add("the label is a text, elsewhere it is a number", source=table.source, column=name,
                             rows=table.rows[r.text])  # fmt: skip
        return []
    if len(distinct) == 1 and len(found) > 1 and not alone:
        problems.add(f"the label '{name}' is the same in every example; there is nothing to learn. Name another label")
        return []
    if not np.isfinite(numbers).any():
        check_case(name, tables, read, problems)
    elif (numbers != np.floor(numbers)).any():
        problems.add(f"the label '{name}' has numbers that are not whole. Is this a regression? task='regression'")
        return []
    if len(found) >= FEW and 2 * len(distinct) > len(found):
        problems.add(
            f"the label '{name}' has {len(distinct)} different values in {len(found)} examples. Is it an identifier, "
            "or the target of a regression? Name another label, or task='regression'"
        )
        return []
    if np.isfinite(numbers).all() and (numbers.min() == 0 or (alone and numbers.min() > 0)):
        if numbers.max() >= MOST_CLASSES:
            problems.add(
                f"the label '{name}' has whole numbers from 0 beyond {MOST_CLASSES}; a network needs an output for "
                "each. Number the classes without gaps, or write them as texts"
            )
            return []
        return [str(i) for i in range(int(numbers.max()) + 1)]
    return distinct
