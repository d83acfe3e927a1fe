"""The user's own data: arrays, data frames, or a folder with one file for each client."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedkin.data.arrays import Arrays, Ints
from fedkin.data.cells import Decimal, Reading
from fedkin.data.encode import Column, codes, infer
from fedkin.data.labels import MOST_CLASSES, Labels, TaskKind, labels
from fedkin.data.npz import read_npz
from fedkin.data.table import TABLE_FILES, Problems, Table, read_table
from fedkin.data.table import from_frame as table_of_frame

FILES = (".npz", *TABLE_FILES)
SHEETS = (".xlsx", ".xls", ".xlsm", ".ods")  # leaving a hospital out would go unnoticed
_WHICH = "; say which column is the label: label='…', --label …"
TASKS = ("classification", "regression", "multilabel")
Names = str | Sequence[str]


def from_arrays(
    x: ArrayLike,
    y: ArrayLike,
    *,
    client: ArrayLike | None = None,
    ordered: bool = False,
    task: TaskKind = "classification",
) -> Arrays:
    """Examples `x` [n, …], labels `y` [n], and the client of each example (any values; None: spread them
    later).

    Images are given as the network takes them: [n, channels, height, width]. Whole numbers of 32 or 64 bits in two or
    three dimensions stay int64, as tokens for an embedding. `ordered`: examples are in time order. With
    `task="regression"` y is numbers, [n] or [n, outputs]; with `task="multilabel"` it is 0 and 1, [n, labels].
    """
    xs = _inputs(np.asarray(x))
    ys = _targets(np.asarray(y), task)
    if len(xs) != len(ys.y):
        raise ValueError(f"x has {len(xs)} examples and y has {len(ys.y)}: give one label or target for each example.")
    group: Ints | None = None
    names: tuple[str, ...] = ()
    if client is not None:
        who = np.asarray(client)
        if who.shape != ys.y.shape[:1]:
            raise ValueError(
                f"client must name a client for each of the {len(ys.y)} examples; its shape is {who.shape}."
            )
        values, group = np.unique(who, return_inverse=True)
        names = tuple(str(v) for v in values)
    return Arrays(
        xs, ys.y, ys.classes, group=group, names=names, ordered=ordered, own_clients=client is not None,
        class_names=ys.names, multilabel=task == "multilabel",
    )  # fmt: skip


def from_folder(
    folder: str | Path,
    *,
    label: Names = "y",
    ignore: Names = (),
    categorical: Names = (),
    missing: Names = (),
    decimal: Decimal = "auto",
    ordered: bool = False,
    task: TaskKind = "classification",
) -> Arrays:
    """One file for each client, whose name is the client's name: `.csv`, `.tsv` or `.parquet` with named columns, or
    `.npz` with the arrays `x` and `label`.

    Columns are matched by name. `ignore` leaves columns out, `categorical` are columns of numbers that stand for
    categories, `missing` are further cells that mean "not known" (empty, ?, NA and NaN always do). `decimal` says how
    numbers are written where the files do not tell. `ordered`: the rows of each file are in time order. With
    `task="regression"` the label is a number to predict; with `task="multilabel"` each of several label columns says
    whether something is there (0 or 1, no or yes, false or true).
    """
    reading = make_reading(label, ignore, categorical, missing, decimal)
    root = Path(folder)
    if not root.is_dir():
        raise ValueError(f"There is no folder {root}.")
    files = sorted(p for p in root.iterdir() if p.suffix.lower() in FILES and not p.name.startswith("."))
    if sheets := sorted(p.name for p in root.iterdir() if p.suffix.lower() in SHEETS and p.name[0] not in ".~"):
        raise ValueError(f"{root} holds {', '.join(sheets[:4])}: spreadsheets are not read; save each as .csv.")
    if not files:
        raise ValueError(f"{root} holds no {', no '.join(FILES)} file: one for each client is expected.")
    if len({path.stem for path in files}) < len(files):
        raise ValueError(f"{root} holds two files of the same name: one file for each client is expected.")
    source = {"folder": str(root.absolute()), **_plain(reading), "ordered": ordered, "task": task}
    names = [path.stem for path in files]
    return _from_files(files, names, reading, task, ordered, str(root), source)


def from_file(
    path: str | Path,
    *,
    name: str | None = None,
    client: str | None = None,
    label: Names = "y",
    ignore: Names = (),
    categorical: Names = (),
    missing: Names = (),
    decimal: Decimal = "auto",
    ordered: bool = False,
    task: TaskKind = "classification",
) -> Arrays:
    """One client's file, in the formats of `from_folder`; the client is called `name`, or like the file. With `client`,
    the file holds the examples of several clients, and that column names the client of each."""
    file = Path(path)
    if file.suffix.lower() not in FILES or not file.is_file():
        raise ValueError(f"There is no .npz or .csv file {file} (.tsv and .parquet files are read too).")
    reading = make_reading(label, ignore, categorical, missing, decimal)
    if client is None:
        return _from_files([file], [name or file.stem], reading, task, ordered, str(file), {}, alone=True)
    problems = Problems()
    if file.suffix.lower() == ".npz":
        raise ValueError(f"{file} has no columns: client='{client}' needs a {' or '.join(TABLE_FILES)} file.")
    table = read_table(file, problems, required=[*reading.labels, client], advice=_WHICH)
    problems.check(str(file))
    assert table is not None
    return from_table(table, client, reading, task, ordered)


def from_frame(
    frame: Any,
    *,
    client: str | None = None,
    label: Names = "y",
    ignore: Names = (),
    categorical: Names = (),
    missing: Names = (),
    decimal: Decimal = "auto",
    ordered: bool = False,
    task: TaskKind = "classification",
) -> Arrays:
    """A pandas `DataFrame`; the column `client` names the client of each example. Options as in `from_folder`."""
    reading = make_reading(label, ignore, categorical, missing, decimal)
    return from_table(table_of_frame(frame), client, reading, task, ordered)


# ---- arrays
def _inputs(xs: NDArray[Any]) -> NDArray[Any]:
    if xs.ndim < 2 or 0 in xs.shape[1:]:
        raise ValueError(f"x must be [examples, features…]; it has shape {xs.shape}.")
    if xs.dtype.kind not in "buif":
        raise ValueError(f"x must be numbers; it is {xs.dtype}. For columns with text use from_frame or a .csv file.")
    if xs.dtype.kind in "ui" and xs.dtype.itemsize >= 4 and xs.ndim < 4:
        return xs.astype(np.int64)
    xs = xs.astype(np.float32)
    if not np.isfinite(xs).all():
        bad = int((~np.isfinite(xs.reshape(len(xs), -1)).all(1)).sum())
        raise ValueError(
            f"{bad} examples of x hold NaN or infinity: remove or fill them first. A table with missing cells is read "
            "by from_frame or from a .csv file."
        )
    return xs


def _targets(ys: NDArray[Any], task: TaskKind) -> Labels:
    _check_task(task)
    numbers = ys.dtype.kind in "buif"
    if task == "multilabel":
        if not numbers or ys.ndim != 2 or not np.isin(ys, (0, 1)).all():
            raise ValueError(
                f"The targets of a multi-label task must be 0 or 1, [examples, labels]; y is {ys.dtype} of shape "
                f"{ys.shape}."
            )
        return Labels(ys.astype(np.float32), 0)
    if task == "regression":
        if ys.ndim not in (1, 2) or not numbers or not np.isfinite(ys).all():
            raise ValueError(
                f"The targets of a regression must be finite numbers; y is {ys.dtype} of shape {ys.shape}."
            )
        return Labels(ys.astype(np.float32), 0)
    if ys.ndim != 1 or not (numbers or ys.dtype.kind in "UT"):
        raise ValueError(
            f"y must be one class per example, a whole number or a text; it is {ys.dtype} of shape {ys.shape}. If each "
            "of several labels is there or not, say task='multilabel'."
        )
    if numbers and not (np.isfinite(ys) & (ys == np.floor(ys))).all():
        raise ValueError("y must be one whole number per example, its class. For a regression use task='regression'.")
    if numbers and (not len(ys) or ys.min() == 0):
        if ys.max(initial=0) >= MOST_CLASSES:
            raise ValueError(
                f"y has whole numbers from 0 beyond {MOST_CLASSES}; a network needs an output for each class. Number "
                "the classes without gaps."
            )
        return Labels(ys.astype(np.int64), int(ys.max(initial=0)) + 1)
    found, y = np.unique(ys.astype(np.int64) if numbers else ys, return_inverse=True)
    if len(found) > MOST_CLASSES:
        raise ValueError(f"y has {len(found)} classes; at most {MOST_CLASSES} are allowed.")
    return Labels(y.astype(np.int64), len(found), tuple(map(str, found)))


# ---- files
def _from_files(
    files: Sequence[Path],
    names: Sequence[str],
    reading: Reading,
    task: TaskKind,
    ordered: bool,
    whole: str,
    source: Mapping[str, Any],
    *,
    alone: bool = False,
) -> Arrays:
    problems = Problems()
    _check_task(task)
    arrays = {p: read_npz(p, reading.labels[0], problems) for p in files if p.suffix.lower() == ".npz"}
    tables = {
        p: table
        for p in files
        if p not in arrays and (table := read_table(p, problems, required=reading.labels, advice=_WHICH)) is not None
    }
    if len(arrays) == len(files):
        return _from_npz(arrays, names, task, ordered, whole, source, problems, alone=alone)
    columns = infer(list(tables.values()), reading, problems, alone=alone)
    tables |= {p: _as_table(p, pair, columns, reading, problems) for p, pair in arrays.items() if pair is not None}
    ordered_tables = [tables[p] for p in files if p in tables]
    made = labels(ordered_tables, reading, task, problems, alone=alone)
    blocks = [] if problems.lines else [codes(table, columns, reading, problems) for table in ordered_tables]
    problems.check(whole)
    group = np.repeat(np.arange(len(files)), [len(table) for table in ordered_tables])
    whole_table = _arrays(np.concatenate(blocks), made, columns, reading, task, ordered, group, tuple(names), source)
    return replace(whole_table, one_of_several=alone)


def _from_npz(
    arrays: Mapping[Path, tuple[NDArray[Any], NDArray[Any]] | None],
    names: Sequence[str],
    task: TaskKind,
    ordered: bool,
    whole: str,
    source: Mapping[str, Any],
    problems: Problems,
    *,
    alone: bool,
) -> Arrays:
    shapes = {x.shape[1:]: path for path, (x, _) in reversed([(p, a) for p, a in arrays.items() if a is not None])}
    if len(shapes) > 1:
        found = ", ".join(f"{path.name} {shape}" for shape, path in shapes.items())
        problems.add(f"the examples have different shapes: {found}; give all of them one shape")
    problems.check(whole)
    pairs = [pair for pair in arrays.values() if pair is not None]
    who = np.repeat(np.arange(len(pairs)), [len(y) for _, y in pairs])
    x, y = (np.concatenate([pair[k] for pair in pairs]) for k in (0, 1))
    kept = alone and task == "classification" and y.dtype.kind in "buif" and y.min(initial=0) >= 0
    if kept:  # one site's examples: class 0 may be at the others
        y = np.append(y, y.dtype.type(0))
    ys = _targets(y, task)
    made = Labels(ys.y[: len(who)], ys.classes, ys.names)
    return Arrays(
        _inputs(x), made.y, made.classes, group=who, names=tuple(names), ordered=ordered, own_clients=True,
        class_names=made.names, source=source, multilabel=task == "multilabel",
    )  # fmt: skip


def _as_table(
    path: Path,
    pair: tuple[NDArray[Any], NDArray[Any]],
    columns: Sequence[Column],
    reading: Reading,
    problems: Problems,
) -> Table:
    """An .npz beside tables: its features are their columns, in their order."""
    x, y = pair
    single = reading.labels[0]
    if any(c.kind == "category" for c in columns) or x.ndim != 2 or x.shape[1] != len(columns) or y.ndim != 1:
        problems.add(
            f"the other files are tables of {len(columns)} columns, so it must hold as many features, all numbers; "
            "make it a table too",
            source=path.name,
        )
        return Table(path.name, {single: y.reshape(len(y), -1)[:, 0].astype(np.float64)}, np.arange(len(y)))
    own = {c.name: x[:, k].astype(np.float64) for k, c in enumerate(columns)}
    return Table(path.name, {**own, single: y.astype(np.float64)}, np.arange(len(y)))


# ---- tables
def make_reading(label: Names, ignore: Names, categorical: Names, missing: Names, decimal: Decimal) -> Reading:
    if decimal not in ("auto", ".", ","):
        raise ValueError(f"decimal='{decimal}' must be 'auto', '.' or ','.")
    several = [_named("ignore", ignore), _named("categorical", categorical), _named("missing", missing)]
    labels = _named("label", label)
    if not labels or len(set(labels)) < len(labels):
        raise ValueError("label must name at least one column, and each once.")
    return Reading(labels[0] if len(labels) == 1 else labels, several[0], several[1], several[2], decimal)


def _named(option: str, given: Any) -> tuple[str, ...]:
    """One name or several. Whoever gives a column itself must not see its cells in a message."""
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, list | tuple | set) else (None,)
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"{option} must be a name or a list of names; it is a {type(given).__name__}.")
    return tuple(map(str, names))


def _check_task(task: str) -> None:
    if task not in TASKS:
        raise ValueError(f"task='{task}' must be one of {', '.join(TASKS)}.")


def _plain(reading: Reading) -> dict[str, Any]:
    several = {k: list(getattr(reading, k)) for k in ("ignore", "categorical", "missing")}
    label = reading.label if isinstance(reading.label, str) else list(reading.label)
    return {"label": label, **several, "decimal": reading.decimal}


def from_table(
    table: Table, client: Any, reading: Reading, task: TaskKind, ordered: bool, *, classes: Sequence[str] = ()
) -> Arrays:
    """One table with the examples of all clients; the column `client` names the client of each. `classes` are the
    names of the classes in their order, if the data says so."""
    problems = Problems()
    _check_task(task)
    if client is not None and not isinstance(client, str):
        raise ValueError(f"client must be the name of a column; it is a {type(client).__name__}.")
    for option, name in (*(("label", name) for name in reading.labels), ("client", client)):
        if name is not None and name not in (*table.columns, *table.unusable):
            near = difflib.get_close_matches(str(name), table.columns, n=1)
            problems.add(f"{option}='{name}': there is no such column" + (f"; there is '{near[0]}'" if near else ""),
                         source=table.source)  # fmt: skip
    if client in table.unusable:
        problems.add("the client is neither a number nor a text", source=table.source, column=client)
    if not len(table):
        problems.add("there are no examples in it", source=table.source)
    problems.check(table.source)
    group: Ints | None = None
    names: tuple[str, ...] = ()
    if client is not None:
        whose = table.columns[client]
        absent = np.isnan(whose) if isinstance(whose, np.ndarray) else np.array([not cell for cell in whose])
        if absent.any():
            problems.add("the client is missing", source=table.source, column=client, rows=table.rows[absent])
        else:
            values, group = np.unique(np.asarray(whose), return_inverse=True)
            names = tuple(f"{v:g}" if isinstance(v, float) else str(v) for v in values.tolist())
        own = {k: v for k, v in table.columns.items() if k != client}
        table = Table(table.source, own, table.rows, table.unusable, table.categories)
    columns = infer([table], reading, problems)
    made = labels([table], reading, task, problems, known=classes)
    encoded = codes(table, columns, reading, Problems())
    problems.check(table.source)
    return _arrays(encoded, made, columns, reading, task, ordered, group, names, {})


def _arrays(
    encoded: NDArray[np.float64],
    made: Labels,
    columns: tuple[Column, ...],
    reading: Reading,
    task: TaskKind,
    ordered: bool,
    group: Ints | None,
    names: tuple[str, ...],
    source: Mapping[str, Any],
) -> Arrays:
    return Arrays(
        encoded,
        made.y,
        made.classes,
        group=group,
        names=names,
        ordered=ordered,
        own_clients=group is not None,
        columns=columns,
        reading=reading,
        class_names=made.names,
        multilabel=task == "multilabel",
        source=source,
    )
