"""`Table`: named columns of cells, read from .csv, .tsv, .parquet or a data frame. Nothing is interpreted yet.

Error messages name the file, the column and the row number, and list everything that is wrong at once. They never hold
the content of a cell: it may be a person's data, and messages travel.
"""

from __future__ import annotations

import csv
import difflib
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Cells = list[str] | NDArray[np.float64]
"""One column: texts ("" where there is none), or numbers (NaN where there is none)."""

TEXT_FILES = (".csv", ".tsv")
TABLE_FILES = (*TEXT_FILES, ".parquet")
MISSING = frozenset(("", "?", "na", "n/a", "nan", "null", "#n/a", "<na>"))
"""Cells that stand for "not known", in any case. `missing=` adds others."""
LARGEST = 1e30  # beyond this, squares overflow: such a number is a mistake or a code
SHOWN = 5  # row numbers listed for one problem
FILES_SHOWN = 8  # files listed for one problem


class DataError(ValueError):
    """Data that cannot be used as it is. The message contains no cell of it."""


class DataWarning(UserWarning):
    """Something in the data that is probably not meant. The message holds no cell of it."""


@dataclass
class Problems:
    """Everything that is wrong with some data, collected for one message."""

    found: list[tuple[str, str, str]] = field(default_factory=list)
    """Source, column and rows, and what is wrong there."""

    def add(self, what: str, *, source: str = "", column: str | None = None, rows: Iterable[int] = ()) -> None:
        where = []
        if column is not None:
            where.append(f"column '{column}'")
        if numbers := [int(r) for r in rows]:
            shown = ", ".join(map(str, numbers[:SHOWN]))
            more = f" and {len(numbers) - SHOWN} more" if len(numbers) > SHOWN else ""
            where.append(f"row{'s' if len(numbers) > 1 else ''} {shown}{more}")
        self.found.append((source, ", ".join(where), what))

    @property
    def lines(self) -> list[str]:
        """What is wrong, in the order in which it was found; several files with the same problem share a line."""
        sources: dict[tuple[str, str], list[str]] = {}
        for source, at, what in self.found:
            sources.setdefault((at, what), []).append(source)
        return [_line(list(dict.fromkeys(filter(None, s))), at, what) for (at, what), s in sources.items()]

    def check(self, whole: str) -> None:
        """Raise one error with all that was added; `whole` names the data."""
        if len(self.lines) == 1:
            raise DataError(f"{self.lines[0]}.")
        if self.lines:
            listed = "".join(f"\n  {line}" for line in self.lines)
            raise DataError(f"{whole} cannot be used yet; {len(self.lines)} things to change:{listed}")


def _line(files: list[str], at: str, what: str) -> str:
    more = len(files) - FILES_SHOWN
    shown = ", ".join(files[:FILES_SHOWN]) + (f" and {more} more files" if more > 0 else "")
    where = ", ".join(filter(None, (shown, at)))
    return f"{where}: {what}" if where else what


@dataclass(frozen=True)
class Table:
    source: str
    """Name of the file, for messages."""
    columns: dict[str, Cells] = field(repr=False)
    rows: NDArray[np.int64]
    """Row number of each example, as a spreadsheet shows it (the header is row 1)."""
    unusable: tuple[str, ...] = ()
    """Columns that hold neither numbers nor texts, such as dates or lists."""
    categories: tuple[str, ...] = ()
    """Columns that the file or frame itself says are categories, whatever they hold."""
    cache: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    """Cache of the parsed columns."""

    def __len__(self) -> int:
        return len(self.rows)


def read_table(
    path: Path, problems: Problems, *, required: Sequence[str] = (), names: Sequence[str] = (), advice: str = ""
) -> Table | None:
    """Read the table of a file. Return None if it cannot be read; `problems` then says why.

    `names` are the columns of a file that has no header. `required` are columns that a header must have; `advice` says
    what to do if one is missing.
    """
    if path.suffix == ".parquet":
        return _parquet(path, problems, required, advice)
    lines = _lines(path, problems)
    if lines is None:
        return None
    if not names:
        if not lines or not any(lines[0]):
            problems.add("the file is empty; its first row must be a header", source=path.name)
            return None
        names, lines = lines[0], [[], *lines[1:]]
        last = len(names) - 1
        if last and not names[last] and not any("".join(line[last:]) for line in lines):
            names, lines = names[:last], [line[:last] for line in lines]  # every row ends with a delimiter
        if not _is_header(names, lines, required, advice, path.name, problems):
            return None
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line]
    uneven = [number for number, line in numbered if len(line) != len(names)]
    if uneven:
        problems.add(f"the row does not have {len(names)} cells, one for each column", source=path.name, rows=uneven)
        return None
    if not numbered:
        problems.add("there are no examples below the header", source=path.name)
        return None
    cells = zip(*(line for _, line in numbered))
    rows = np.array([number for number, _ in numbered], np.int64)
    return Table(path.name, {name: list(column) for name, column in zip(names, cells)}, rows)


def from_frame(frame: Any, source: str = "the frame") -> Table:
    """A pandas `DataFrame`. Row numbers are positions from 0."""
    columns: dict[str, Cells] = {}
    unusable = []
    if len({str(name) for name in frame.columns}) < len(frame.columns):
        raise DataError(f"{source} has a column name twice.")
    categories = tuple(str(name) for name, kind in frame.dtypes.items() if str(kind) == "category")
    for name in frame.columns:
        series = frame[name]
        kind = getattr(series.dtype, "kind", "O")
        if kind in "buif":
            columns[str(name)] = series.astype("float64").to_numpy(dtype=np.float64, na_value=np.nan)
            continue
        cells = _cells(series.tolist()) if kind in "OUT" else None
        if cells is None:
            unusable.append(str(name))
        else:
            columns[str(name)] = cells
    return Table(source, columns, np.arange(len(frame)), tuple(unusable), categories)


def from_columns(given: dict[str, Sequence[Any]], source: str) -> Table:
    """Columns of plain Python values. Row numbers are positions from 0."""
    columns: dict[str, Cells] = {}
    unusable = []
    for name, values in given.items():
        cells = _cells(values)
        if cells is None:
            unusable.append(name)
        else:
            columns[name] = cells
    count = len(next(iter(given.values()), ()))
    return Table(source, columns, np.arange(count), tuple(unusable))


def _cells(values: Sequence[Any]) -> Cells | None:
    """Values as numbers if all of them are, else as texts; None if they are neither."""
    if all(v is None or isinstance(v, bool | int | float | np.number | np.bool_) for v in values):
        return np.array([np.nan if v is None else float(v) for v in values], np.float64)
    return _texts(values)


def _texts(values: Iterable[Any]) -> list[str] | None:
    """Values as texts, or None if they are not single texts and numbers."""
    out = []
    for value in values:
        if isinstance(value, str):
            out.append(value.strip())
        elif isinstance(value, bool | int | np.integer | np.bool_):
            out.append(str(value))
        elif isinstance(value, float | np.floating):
            out.append("" if np.isnan(value) else repr(float(value)))
        elif value is None or str(value) in ("<NA>", "NaT"):
            out.append("")
        else:
            return None
    return out


# ---- files
def _parquet(path: Path, problems: Problems, required: Sequence[str], advice: str) -> Table | None:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise ImportError("Reading .parquet files needs pyarrow: pip install 'fedkin[parquet]'.") from None
    try:
        content = parquet.read_table(path)
    except (arrow.ArrowException, OSError):
        problems.add("this is not a parquet file, or it is broken", source=path.name)
        return None
    columns: dict[str, Cells] = {}
    written = (content.schema.pandas_metadata or {}).get("columns", ())  # a file of pandas says what is a category
    categories = {str(column["name"]) for column in written if column.get("pandas_type") == "categorical"}
    unusable = []
    for name, column in zip(content.column_names, content.columns):
        if re.fullmatch(r"__index_level_\d+__", name):
            continue  # pandas' row numbers
        kind = column.type
        if arrow.types.is_dictionary(kind):
            kind = kind.value_type
            categories.add(name)
        if arrow.types.is_integer(kind) or arrow.types.is_floating(kind) or arrow.types.is_boolean(kind):
            columns[name] = np.array([np.nan if v is None else float(v) for v in column.to_pylist()], np.float64)
        elif arrow.types.is_string(kind) or arrow.types.is_large_string(kind):
            columns[name] = [(v or "").strip() for v in column.to_pylist()]
        else:
            unusable.append(name)
    if not content.num_rows:
        problems.add("there are no examples in it", source=path.name)
        return None
    names = [*columns, *unusable]
    if absent := [name for name in required if name not in names]:
        problems.add(_without(absent, names, advice), source=path.name)
        return None
    return Table(path.name, columns, np.arange(1, content.num_rows + 1), tuple(unusable), tuple(sorted(categories)))


def _lines(path: Path, problems: Problems) -> list[list[str]] | None:
    """All rows of a text file as stripped cells; blank rows are empty lists, so that row numbers stay true."""
    raw = path.read_bytes()
    encoding = "utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"  # spreadsheets write both
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        row = raw.count(b"\n", 0, error.start) + 1
        problems.add("this is not UTF-8 text; save the file as UTF-8", source=path.name, rows=[row])
        return None
    lines: list[list[str]] = []
    mark = re.match(r"sep=(.)\r?\n", text)  # a spreadsheet's own remark, which it counts as no row
    if mark is not None:
        text = text[mark.end() :]
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark[1] if mark is not None else _delimiter(text))
    try:
        for line in reader:
            cells = [cell.strip() for cell in line]
            lines.append([] if cells == [""] else cells)
    except csv.Error:
        problems.add("the row cannot be read; look for a quote that is never closed", source=path.name,
                     rows=[len(lines) + 1])  # fmt: skip
        return None
    while lines and not any(lines[-1]):
        lines.pop()  # spreadsheets leave rows of delimiters at the end
    return lines


def _delimiter(text: str) -> str:
    """The one of , tab ; | that cuts the first row into most cells."""
    first = text[: text.find("\n")] if "\n" in text else text

    def count(mark: str) -> int:
        try:
            return len(next(csv.reader([first.rstrip("\r")], delimiter=mark), []))
        except csv.Error:
            return 0

    return max(",\t;|", key=count)


def _is_header(
    names: list[str],
    lines: Sequence[Sequence[str]],
    required: Sequence[str],
    advice: str,
    source: str,
    problems: Problems,
) -> bool:
    """Is the first row a header? If it is an example, its cells must not be shown as names."""
    digits = [name for name in names if name not in required]
    numbered = any(digits == [str(i + start) for i in range(len(digits))] for start in (0, 1))
    odd = [k + 1 for k, name in enumerate(names) if name not in required and not numbered and _is_cell(name)]
    again = sum(any(name == line[k] for line in lines if k < len(line)) for k, name in enumerate(names))
    repeated = [number for number, line in enumerate(lines, start=1) if list(line) == list(names)]
    if repeated and again:
        other = ", or, if it is an example, put a row with the columns' names on top" if len(repeated) > 1 else ""
        problems.add(f"the row repeats the header; remove it{other}", source=source, rows=repeated)
    elif odd and not any(names[k - 1] for k in odd) and 2 * again <= len(names):
        problems.add(f"its column {', '.join(map(str, odd[:SHOWN]))} has no name; give it one, or remove the column "
                     "(row numbers that another program wrote, say)", source=source)  # fmt: skip
    elif odd or 2 * again > len(names):
        which = f": its cell in column {', '.join(map(str, odd[:SHOWN]))} is a number or empty" if odd else ""
        problems.add(f"the first row is not a header{which}. Put a row with the columns' names on top", source=source)
    elif len(set(names)) < len(names):
        twice = [str(k + 1) for k, name in enumerate(names) if names.count(name) > 1]
        problems.add(f"the header has a name twice, in columns {', '.join(twice[:SHOWN])}; rename one", source=source)
    elif absent := [name for name in required if name not in names]:
        problems.add(_without(absent, names, advice), source=source)
    else:
        return True
    return False


def _is_cell(name: str) -> bool:
    return name.casefold() in MISSING or is_number(name)


def _without(absent: Sequence[str], names: Sequence[str], advice: str) -> str:
    """No list of the names found: without a header they would be somebody's data."""
    alike = [n for n in names if n.casefold() in {name.casefold() for name in absent}]
    alike = alike or (difflib.get_close_matches(absent[0], names, n=1, cutoff=0.8) if len(absent) == 1 else [])
    hint = f"; there is {quoted(alike)}" if alike else ""
    return f"none of the {len(names)} columns is called {quoted(absent)}{hint}{advice}"


def quoted(names: Sequence[str]) -> str:
    return " or ".join(f"'{name}'" for name in names)


# ---- numbers
_SPACES = " '’\u00a0\u202f\u2009"
_EXPONENT = r"(?:[eE][+-]?\d{1,3})?"


def _pattern(point: str, comma: str) -> re.Pattern[str]:
    grouped = rf"[1-9]\d{{0,2}}(?:[{_SPACES}{re.escape(comma)}]\d{{3}})+"
    point = re.escape(point)
    return re.compile(rf"[+-]?(?:(?:{grouped}|\d+)(?:{point}\d*)?|{point}\d+){_EXPONENT}", re.ASCII)


_FORMATS = {".": _pattern(".", ","), ",": _pattern(",", ".")}


def is_number(cell: str, decimal: str | None = None) -> bool:
    cell = cell.replace("−", "-")
    return any(_FORMATS[mark].fullmatch(cell) for mark in ((decimal,) if decimal else _FORMATS))


def to_number(cell: str, decimal: str) -> float:
    """The number in a cell, NaN if there is none. Infinity counts as none."""
    cell = cell.replace("−", "-")
    if not _FORMATS[decimal].fullmatch(cell):
        return np.nan
    for mark in (*_SPACES, "," if decimal == "." else "."):
        cell = cell.replace(mark, "")
    value = float(cell.replace(",", "."))
    return np.nan if np.isinf(value) else value


def plain_numbers(cells: Sequence[str]) -> NDArray[np.float64] | None:
    """All cells at once, NaN for empty ones and ?; None where a cell is anything but digits, sign, point, exponent."""
    if not set("".join(cells)) <= set("0123456789+-.eE?"):
        return None
    texts = np.array(cells, dtype=str)
    texts = np.where((texts == "") | (texts == "?"), "nan", texts)
    try:
        values = texts.astype(np.float64)
    except ValueError:
        return None
    return np.where(np.isinf(values), np.nan, values)


def decimal_evidence(cells: Sequence[str]) -> set[str]:
    """How a column shows that a file writes numbers: 1.5 and 1,234.5 have a decimal point, 1,5 and 1.234,5 a decimal
    comma; 1,234 is "unclear". A column of texts shows nothing."""
    distinct = {cell for cell in set(cells) if cell.casefold() not in MISSING}
    found = set()
    for cell in distinct:
        if "." not in found and "." in cell and is_number(cell, ".") and not is_number(cell, ","):
            found.add(".")
        elif "," in cell or cell.count(".") > 1:
            as_point, as_comma = is_number(cell, "."), is_number(cell, ",")
            if as_point or as_comma:
                found.add("unclear" if as_point and as_comma else "." if as_point else ",")
    if found and plain_numbers(cells) is None and 2 * sum(map(is_number, distinct)) < len(distinct):
        return set()
    return found
