"""From the cells of tables to numbers: which columns are numbers, which are categories, and the codes of both."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedkin.data.cells import Floats, ReadColumn, Reading, check_case, check_size, level_order, read_column
from fedkin.data.labels import FEW, MOST_CLASSES
from fedkin.data.table import DataWarning, Problems, Table
from fedkin.registry import hint

MOST_LEVELS = 100  # of a text column that was not declared categorical: more look like an identifier
DATE = re.compile(r"\d{1,4}([-./])\d{1,2}\1\d{1,4}(?:[ T].*)?")
MEASURE = re.compile(r"[<>≤≥~]?\s*[+-]?\d+(?:[.,]\d+)?\s*\D{0,12}")  # 120 mmHg, 30%, <5
MANY = 50  # so many whole numbers, all different, look like an identifier


@dataclass(frozen=True)
class Column:
    name: str
    kind: Literal["number", "category"]
    levels: tuple[str, ...] = ()
    """Values of a category column, as text. A code is an index into them."""


def infer(tables: Sequence[Table], reading: Reading, problems: Problems, *, alone: bool = False) -> tuple[Column, ...]:
    """The columns that all tables share, in the order of the first table. Levels are those of all examples.

    `alone`: the table is one site's of several, which may have what is empty here.
    """
    _check_names(tables, reading, problems)
    out = []
    for name in _shared(tables, reading, problems):
        read = [read_column(table, name, reading, problems) for table in tables]
        if not alone and all(r.missing.all() for r in read):
            problems.add(f"column '{name}' is empty in every file; ignore it (ignore='{name}', --ignore {name})")
            continue
        out.append(_column(name, tables, read, reading, problems))
    if tables and not out and not problems.lines:
        given = ", ".join(f"'{name}'" for name in reading.labels)
        problems.add(f"there is no column beside {given} to learn from", source=tables[0].source)
    return tuple(out)


def _near(name: str, there: Iterable[str]) -> str:
    found = hint(name, there)
    return f".{found}" if found else ""


def _check_names(tables: Sequence[Table], reading: Reading, problems: Problems) -> None:
    there = {name for table in tables for name in (*table.columns, *table.unusable)}
    for option in ("ignore", "categorical"):
        for name in getattr(reading, option):
            if name in reading.labels:
                problems.add(f"'{name}' is the label; it cannot be in {option} too")
            elif tables and name not in there:
                apart = "; give several names with spaces between them" if "," in name else ""
                problems.add(f"{option} names a column '{name}'; no file has it{apart}{_near(name, there)}")
    for name in (token.rpartition("=")[0].strip() for token in reading.missing):
        if tables and name and name not in there:
            problems.add(f"missing names a column '{name}'; no file has it{_near(name, there)}")
    if both := set(reading.ignore) & set(reading.categorical):
        problems.add(f"'{min(both)}' is in ignore and in categorical; name it once")


def _shared(tables: Sequence[Table], reading: Reading, problems: Problems) -> list[str]:
    unused = {*reading.labels, *reading.ignore}
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
                problems.add(
                    f"column {where} is in few of the other files; rename it, or ignore it by its name (ignore='…', "
                    "--ignore …)",
                    source=table.source,
                )
        for name in table.unusable:
            if name not in unused:
                problems.add("neither numbers nor texts; change or ignore it", source=table.source, column=name)
    return [n for n in (names[0] if names else []) if all(n in table.columns for table in tables)]


def _column(
    name: str, tables: Sequence[Table], read: Sequence[ReadColumn], reading: Reading, problems: Problems
) -> Column:
    declared = name in reading.categorical or any(name in table.categories for table in tables)
    texts, numbers = sum(int(r.text.sum()) for r in read), sum(int(np.isfinite(r.values).sum()) for r in read)
    if not declared and not texts:
        for table, r in zip(tables, read):
            check_size(name, table, r, problems)
        _check_identifier(name, read)
        return Column(name, "number")
    mixed = not declared and numbers > 0
    if mixed:
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
    if not declared and (looks := _looks(levels)) and not mixed:
        problems.add(
            f"column '{name}' {looks}, or ignore it (ignore='{name}', --ignore {name}), or call it categorical"
        )
    elif len(levels) > most and not mixed:
        problems.add(
            f"column '{name}' has {len(levels)} different texts. Is it an identifier, a date or a comment? Ignore it "
            f"(ignore='{name}', --ignore {name}), or call it categorical"
        )
    if not declared:
        check_case(name, tables, read, problems)
    return Column(name, "category", tuple(levels))


def _looks(levels: Sequence[str]) -> str:
    """What texts are instead of categories, and what to do about it; empty if they may be categories."""

    def most(pattern: re.Pattern[str]) -> bool:
        return 10 * sum(pattern.fullmatch(level) is not None for level in levels) >= 9 * len(levels) > 0

    if most(DATE):
        return "holds dates; make a number of them (an age, days since a visit)"
    if len(levels) > FEW and most(MEASURE):
        return "holds numbers with a unit or a sign; write the numbers alone"
    return ""


def _check_identifier(name: str, read: Sequence[ReadColumn]) -> None:
    """Warn of whole numbers that are different in every row of all files, as patients' numbers are."""
    values = np.concatenate([r.values for r in read])
    if len(values) < MANY or np.isnan(values).any() or (values != np.floor(values)).any():
        return
    if len(np.unique(values)) == len(values):
        warnings.warn(
            f"Column '{name}' has another whole number in every row. If it is an identifier, ignore it "
            f"(ignore='{name}', --ignore {name}): it would be learned from.",
            DataWarning,
            stacklevel=2,
        )


def codes(table: Table, columns: Sequence[Column], reading: Reading, problems: Problems) -> Floats:
    """[examples, columns]: numbers, or indexes of levels; NaN where a cell is missing or its level is unknown."""
    out = np.full((len(table), len(columns)), np.nan)
    unknown = Problems()
    for k, column in enumerate(columns):
        if column.name not in table.columns:
            problems.add(f"there is no column '{column.name}'", source=table.source)
            continue
        read = read_column(table, column.name, reading, problems)
        if column.kind == "category":
            index = {level: float(i) for i, level in enumerate(column.levels)}
            out[:, k] = [np.nan if gone else index.get(level, np.nan) for level, gone in zip(read.levels, read.missing)]
            if (new := ~read.missing & np.isnan(out[:, k])).any():
                unknown.add("no training example has this category; it counts as missing", source=table.source,
                            column=column.name, rows=table.rows[new])  # fmt: skip
            continue
        check_size(column.name, table, read, problems)
        if read.text.any():
            problems.add("not a number", source=table.source, column=column.name, rows=table.rows[read.text])
        out[:, k] = read.values
    if unknown.lines:
        warnings.warn("\n".join(f"{line}." for line in unknown.lines), DataWarning, stacklevel=2)
    return out
