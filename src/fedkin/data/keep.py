"""Cells of a table as they are written, to stand beside predictions: a patient's number, a date."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedkin.data.table import DataError, Problems, Table, read_table
from fedkin.registry import hint


def kept(table: str | Path | Any, names: Sequence[str]) -> dict[str, list[Any]]:
    """The named columns of a file or a pandas frame, one value for each example, as they are written: 007 stays 007."""
    source = Path(table).name if isinstance(table, str | Path) else "the frame"
    if not isinstance(table, str | Path):
        given = {str(name): name for name in table.columns}
        _check(names, given, source)
        return {name: table[given[name]].tolist() for name in names}
    path = Path(table)
    if path.suffix == ".parquet":  # numbers as they are: a long one loses digits as a float
        from pyarrow import parquet

        stored = parquet.read_table(path)
        _check(names, stored.column_names, source)
        return {name: ["" if v is None else v for v in stored[name].to_pylist()] for name in names}
    problems = Problems()
    read = read_table(path, problems)
    problems.check(source)
    assert isinstance(read, Table)
    _check(names, read.columns, source)
    return {name: list(read.columns[name]) for name in names}


def _check(names: Sequence[str], given: Any, source: str) -> None:
    if absent := [name for name in names if name not in given]:
        apart = "; give several names with spaces between them" if any("," in name for name in absent) else ""
        quoted = " and ".join(f"'{name}'" for name in absent)
        raise DataError(f"{source}: there is no column {quoted} to keep{apart}.{hint(absent[0], given)}")
