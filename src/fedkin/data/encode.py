"""From the cells of tables to numbers: which columns are numbers, which are categories, which label is which class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedkin.data.table import (
    LARGEST,
    MISSING,
    Cells,
    Problems,
    Table,
    decimal_evidence,
    plain_numbers,
    to_number,
)

Floats = NDArray[np.float64]
Decimal = Literal["auto", ".", ","]
TaskKind = Literal["classification", "regression"]
MOST_LEVELS = 100  # of a text column that was not declared categorical: more look like an identifier
MOST_CLASSES = 100_000  # a network needs an output for each
FEW = 20  # up to this many texts or labels may all be different


@dataclass(frozen=True)
class Reading:
    """How the cells of a table are read. The same for training examples and for new ones."""

    label: str = "y"
    ignore: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    decimal: Decimal = "auto"

    def missing_in(self, column: str) -> frozenset[str]:
        """Cells of this column that mean "not known". `missing` names them for all columns, or for one: chol=0."""
        parts = [token.strip().rpartition("=") for token in self.missing]
        given = {token.strip() for name, _, token in parts if name.strip() in ("", column)}
        return MISSING | {t.casefold() for t in given} | {level_of(t, ".") for t in given}


@dataclass(frozen=True)
class Column:
    name: str
    kind: Literal["number", "category"]
    levels: tuple[str, ...] = ()
    """Values of a category column, as text. A code is an index into them."""


@dataclass(frozen=True)
class Labels:
    y: NDArray[Any]
    """int64 classes, or float32 numbers in a regression."""
    classes: int
    names: tuple[str, ...] = field(default=())
    """What the classes are called in the data."""


def level_of(cell: str, decimal: str) -> str:
    """A cell as a level: 1, 1.0 and 1,00 are the same one."""
    value = to_number(cell, decimal)
    return cell if np.isnan(value) else _number_level(value)


def _number_level(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


def level_order(level: str) -> tuple[float, str]:
    """Numbers by size, then texts by name."""
    value = to_number(level, ".")
    return (np.inf if np.isnan(value) else value, level)


@dataclass(frozen=True)
class _Read:
    """One column of one table: a number where there is one, a level otherwise."""

    cells: Cells
    values: Floats
    missing: NDArray[np.bool_]
    decimal: str

    @cached_property
    def levels(self) -> list[str]:
        if isinstance(self.cells, np.ndarray):
            return [_number_level(v) if np.isfinite(v) else "" for v in self.cells.tolist()]
        known = {cell: level_of(cell, self.decimal) for cell in set(self.cells)}
        return [known[cell] for cell in self.cells]

    @property
    def text(self) -> NDArray[np.bool_]:
        return ~self.missing & np.isnan(self.values)


def _read(table: Table, name: str, reading: Reading, problems: Problems) -> _Read:
    """A column as numbers and levels. The table caches it, because it is needed several times."""
    key = (name, reading)
    if key not in table.cache:
        decimal = _decimal(table, reading, problems)
        table.cache[key] = _read_cells(table.columns[name], decimal, reading.missing_in(name))
    made: _Read = table.cache[key]
    return made


def _read_cells(cells: Cells, decimal: str, missing: frozenset[str]) -> _Read:
    codes = [value for value in (to_number(token, ".") for token in missing) if not np.isnan(value)]
    if isinstance(cells, np.ndarray):
        values = np.where(np.isinf(cells), np.nan, cells)
        gone = np.isnan(cells) | np.isin(values, codes)
    else:
        plain = plain_numbers(cells) if decimal == "." else None
        if plain is None:
            known = {cell: to_number(cell, decimal) for cell in set(cells)}
            plain = np.array([known[cell] for cell in cells], np.float64)
        values = plain
        empty = {cell for cell in set(cells) if cell.casefold() in missing}
        gone = np.array([cell in empty for cell in cells], bool) | np.isin(values, codes)
    return _Read(cells, np.where(gone, np.nan, values), gone, decimal)


def _decimal(table: Table, reading: Reading, problems: Problems) -> str:
    """The decimal mark of this file. A problem with it is reported once."""
    if reading.decimal != "auto":
        return reading.decimal
    key = ("decimal", reading)
    if key in table.cache:
        return str(table.cache[key])
    found: dict[str, list[str]] = {}
    for name, cells in table.columns.items():
        if name not in reading.ignore and not isinstance(cells, np.ndarray):
            for mark in decimal_evidence(cells):
                found.setdefault(mark, []).append(name)
    if "." in found and "," in found:
        problems.add(
            f"the numbers of column '{found['.'][0]}' have a decimal point, those of '{found[','][0]}' a decimal "
            "comma; use one of them throughout, or say which it is: decimal='.', --decimal .",
            source=table.source,
        )
    elif set(found) == {"unclear"}:
        problems.add(
            "a comma before three digits may be a decimal comma or may separate thousands; say which it is: "
            "decimal=',' or decimal='.', --decimal …",
            source=table.source,
            column=found["unclear"][0],
        )
    table.cache[key] = "," if "," in found else "."
    return str(table.cache[key])


# ---- columns
def infer(tables: Sequence[Table], reading: Reading, problems: Problems) -> tuple[Column, ...]:
    """The columns that all tables share, in the order of the first table. Levels are those of all examples."""
    _check_names(tables, reading, problems)
    out = []
    for name in _shared(tables, reading, problems):
        read = [_read(table, name, reading, problems) for table in tables]
        out.append(_column(name, tables, read, reading, problems))
    if tables and not out and not problems.lines:
        problems.add(f"there is no column beside '{reading.label}' to learn from", source=tables[0].source)
    return tuple(out)


def _check_names(tables: Sequence[Table], reading: Reading, problems: Problems) -> None:
    there = {name for table in tables for name in (*table.columns, *table.unusable)}
    for option in ("ignore", "categorical"):
        for name in getattr(reading, option):
            if name == reading.label:
                problems.add(f"'{name}' is the label; it cannot be in {option} too")
            elif tables and name not in there:
                problems.add(f"{option} names a column '{name}'; no file has it")
    for name in (token.rpartition("=")[0].strip() for token in reading.missing):
        if tables and name and name not in there:
            problems.add(f"missing names a column '{name}'; no file has it")
    if both := set(reading.ignore) & set(reading.categorical):
        problems.add(f"'{min(both)}' is in ignore and in categorical; name it once")


def _shared(tables: Sequence[Table], reading: Reading, problems: Problems) -> list[str]:
    unused = {reading.label, *reading.ignore}
    names = [[n for n in (*table.columns, *table.unusable) if n not in unused] for table in tables]
    count: dict[str, int] = {}
    for name in (n for own in names for n in own):
        count[name] = count.get(name, 0) + 1
    for table, own in zip(tables, names):
        lacking = [n for n, times in count.items() if n not in own and 2 * times >= len(tables)]
        for name in lacking:
            problems.add(f"it lacks the column '{name}' of other files; add it, if need be empty, or ignore it",
                         source=table.source)  # fmt: skip
        for name in own:
            if 2 * count[name] < len(tables):
                where = [*table.columns, *table.unusable].index(name) + 1
                problems.add(f"column {where} is in few of the other files; rename or ignore it", source=table.source)
        for name in table.unusable:
            if name not in unused:
                problems.add("neither numbers nor texts; change or ignore it", source=table.source, column=name)
    return [n for n in (names[0] if names else []) if all(n in table.columns for table in tables)]


def _column(name: str, tables: Sequence[Table], read: Sequence[_Read], reading: Reading, problems: Problems) -> Column:
    declared = name in reading.categorical
    texts, numbers = sum(int(r.text.sum()) for r in read), sum(int(np.isfinite(r.values).sum()) for r in read)
    if not declared and not texts:
        for table, r in zip(tables, read):
            _check_size(name, table, r, problems)
        return Column(name, "number")
    if not declared and numbers:
        for table, r in zip(tables, read):
            # the minority is the mistake: texts among numbers, or numbers among texts
            wrong = r.text if texts <= numbers else np.isfinite(r.values)
            if wrong.any():
                problems.add(
                    f"{'not a number' if texts <= numbers else 'a number'}, unlike the other cells; correct it, or "
                    f"call the column categorical (categorical='{name}', --categorical {name}), or say which text "
                    "means missing (missing='…', --missing …)",
                    source=table.source,
                    column=name,
                    rows=table.rows[wrong],
                )
    levels = sorted({level for r in read for level, gone in zip(r.levels, r.missing) if not gone}, key=level_order)
    most = MOST_CLASSES if declared else min(MOST_LEVELS, max(FEW, (texts + numbers) // 2))
    if len(levels) > most:
        problems.add(
            f"column '{name}' has {len(levels)} different texts. Is it an identifier, a date or a comment? Ignore it "
            f"(ignore='{name}', --ignore {name}), or call it categorical"
        )
    if not declared:
        _check_case(name, tables, read, problems)
    return Column(name, "category", tuple(levels))


def _check_size(name: str, table: Table, read: _Read, problems: Problems) -> None:
    huge = np.abs(np.nan_to_num(read.values)) > LARGEST
    if isinstance(cells := table.columns[name], np.ndarray):
        huge |= np.isinf(cells)
    if huge.any():
        problems.add(f"larger than {LARGEST:g}; correct it, or say which number means missing (missing='…')",
                     source=table.source, column=name, rows=table.rows[huge])  # fmt: skip


def _check_case(name: str, tables: Sequence[Table], read: Sequence[_Read], problems: Problems) -> None:
    """Report levels such as Male and male, which differ only by mistake."""
    seen: dict[str, str] = {}
    for table, r in zip(tables, read):
        other = [
            not gone and seen.setdefault(" ".join(level.casefold().split()), level) != level
            for level, gone in zip(r.levels, r.missing)
        ]
        if any(other):
            problems.add("spelled elsewhere with other capitals or spaces; use one spelling everywhere",
                         source=table.source, column=name, rows=table.rows[np.array(other)])  # fmt: skip


def codes(table: Table, columns: Sequence[Column], reading: Reading, problems: Problems) -> Floats:
    """[examples, columns]: numbers, or indexes of levels; NaN where a cell is missing or its level is unknown."""
    out = np.full((len(table), len(columns)), np.nan)
    for k, column in enumerate(columns):
        if column.name not in table.columns:
            problems.add(f"there is no column '{column.name}'", source=table.source)
            continue
        read = _read(table, column.name, reading, problems)
        if column.kind == "category":
            index = {level: float(i) for i, level in enumerate(column.levels)}
            out[:, k] = [np.nan if gone else index.get(level, np.nan) for level, gone in zip(read.levels, read.missing)]
            continue
        _check_size(column.name, table, read, problems)
        if read.text.any():
            problems.add("not a number", source=table.source, column=column.name, rows=table.rows[read.text])
        out[:, k] = read.values
    return out


# ---- labels
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
    name = reading.label
    usable = [table for table in tables if name in table.columns]
    for table in tables:
        if name in table.unusable:
            problems.add("the label is neither a number nor a text", source=table.source, column=name)
    read = [_read(table, name, reading, problems) for table in usable]
    for table, r in zip(usable, read):
        if r.missing.any():
            problems.add("the label is missing; fill it in or remove the row", source=table.source, column=name,
                         rows=table.rows[r.missing])  # fmt: skip
    values = np.concatenate([r.values for r in read]) if read else np.empty(0)
    if task == "regression":
        for table, r in zip(usable, read):
            _check_size(name, table, r, problems)
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


def _classes(
    tables: Sequence[Table], read: Sequence[_Read], found: list[str], name: str, problems: Problems, *, alone: bool
) -> list[str]:
    distinct = sorted(set(found), key=level_order)
    numbers = np.concatenate([r.values[~r.missing] for r in read])
    if np.isfinite(numbers).any() and not np.isfinite(numbers).all():
        for table, r in zip(tables, read):
            if r.text.any():
                problems.add("the label is a text, elsewhere it is a number", source=table.source, column=name,
                             rows=table.rows[r.text])  # fmt: skip
        return []
    if not np.isfinite(numbers).any():
        _check_case(name, tables, read, problems)
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
