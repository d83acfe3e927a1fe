"""The cells of a table as they are written: which are missing, which are numbers, which level a text is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedkin.data.table import LARGEST, MISSING, Cells, Problems, Table, decimal_evidence, plain_numbers, to_number

Floats = NDArray[np.float64]
Decimal = Literal["auto", ".", ","]


@dataclass(frozen=True)
class Reading:
    """How the cells of a table are read. The same for training examples and for new ones."""

    label: str | tuple[str, ...] = "y"
    """Column of the labels; several in a multi-label task, or in a regression with several outputs."""
    ignore: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    decimal: Decimal = "auto"

    @property
    def labels(self) -> tuple[str, ...]:
        return (self.label,) if isinstance(self.label, str) else self.label

    def missing_in(self, column: str) -> frozenset[str]:
        """Cells of this column that mean "not known". `missing` names them for all columns, or for one: chol=0."""
        parts = [token.strip().rpartition("=") for token in self.missing]
        given = {token.strip() for name, _, token in parts if name.strip() in ("", column)}
        return MISSING | {t.casefold() for t in given} | {level_of(t, ".") for t in given}


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
class ReadColumn:
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


def read_column(table: Table, name: str, reading: Reading, problems: Problems) -> ReadColumn:
    """A column as numbers and levels. The table caches it, because it is needed several times."""
    key = (name, reading)
    if key not in table.cache:
        decimal = _decimal(table, reading, problems)
        table.cache[key] = _read_cells(table.columns[name], decimal, reading.missing_in(name))
    made: ReadColumn = table.cache[key]
    return made


def _read_cells(cells: Cells, decimal: str, missing: frozenset[str]) -> ReadColumn:
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
    return ReadColumn(cells, np.where(gone, np.nan, values), gone, decimal)


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
        both = [name for name in found["."] if name in found[","]]
        if both:
            what, how = f"some numbers of column '{both[0]}' have a decimal point, others", ""
        else:
            what = f"the numbers of column '{found['.'][0]}' have a decimal point, those of '{found[','][0]}'"
            how = ", or say which it is: decimal='.', --decimal ."
        problems.add(f"{what} a decimal comma; use one of them throughout{how}", source=table.source)
    elif set(found) == {"unclear"}:
        problems.add(
            "a comma before three digits may be a decimal comma or may separate thousands; say which it is: "
            "decimal=',' or decimal='.', --decimal …",
            source=table.source,
            column=found["unclear"][0],
        )
    table.cache[key] = "," if "," in found else "."
    return str(table.cache[key])


def check_size(name: str, table: Table, read: ReadColumn, problems: Problems) -> None:
    huge = np.abs(np.nan_to_num(read.values)) > LARGEST
    if isinstance(cells := table.columns[name], np.ndarray):
        huge |= np.isinf(cells)
    if huge.any():
        problems.add(f"larger than {LARGEST:g}; correct it, or say which number means missing (missing='…')",
                     source=table.source, column=name, rows=table.rows[huge])  # fmt: skip


def check_case(name: str, tables: Sequence[Table], read: Sequence[ReadColumn], problems: Problems) -> None:
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
