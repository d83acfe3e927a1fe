"""Data sets of other libraries: torch's and Hugging Face's `Dataset`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedkin.data.arrays import Arrays
from fedkin.data.labels import TaskKind
from fedkin.data.own import from_arrays, from_table, make_reading
from fedkin.data.table import from_columns


def from_dataset(
    dataset: Any,
    *,
    client: str | ArrayLike | None = None,
    label: str | Sequence[str] = "label",
    inputs: str | None = None,
    ordered: bool = False,
    task: TaskKind = "classification",
    **reading: Any,
) -> Arrays:
    """A torch `Dataset` of pairs (x, y), with `client` one name for each example; a Hugging Face `Dataset`, with
    `client` and `label` its columns; or a dictionary of either by client.

    Of a Hugging Face data set, `inputs` is the column of arrays (tokens, images). Without it, all other columns are
    read as a table, with `from_frame`'s options ignore, categorical, missing and decimal. A `ClassLabel` gives classes,
    clients and categories their names.
    """
    if isinstance(dataset, Mapping):
        if hasattr(dataset, "column_names"):
            raise ValueError(
                f"A DatasetDict holds splits ({', '.join(map(str, dataset))}), not clients: give one of them, "
                "dataset['train'], or all of them as one with datasets.concatenate_datasets."
            )
        if client is not None:
            raise ValueError("A dictionary of data sets names the clients itself: leave client out.")
        if dataset and all(hasattr(part, "column_names") for part in dataset.values()):
            return _from_hugging_face(_Joined(dataset), CLIENT, label, inputs, ordered, task, reading)
        parts = {str(name): _pairs(part) for name, part in dataset.items()}
        who = [name for name, (_, y) in parts.items() for _ in range(len(y))]
        x, y = (np.concatenate([part[k] for part in parts.values()]) for k in (0, 1))
        return from_arrays(x, y, client=who, ordered=ordered, task=task)
    if hasattr(dataset, "column_names"):
        return _from_hugging_face(dataset, client, label, inputs, ordered, task, reading)
    if reading or inputs is not None:
        raise ValueError(f"{', '.join(reading) or 'inputs'}: a torch data set has no columns.")
    x, y = _pairs(dataset)
    return from_arrays(x, y, client=client, ordered=ordered, task=task)


def _pairs(dataset: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """All pairs (x, y) of a torch data set."""
    items = [dataset[i] for i in range(len(dataset))] if hasattr(dataset, "__len__") else list(dataset)
    if not items or not all(isinstance(item, tuple | list) and len(item) == 2 for item in items):
        raise ValueError("Each item of the data set must be a pair (x, y), and there must be at least one.")
    x, y = zip(*items)
    return _stacked(x, "x"), np.stack([np.asarray(v) for v in y])


def _stacked(values: Sequence[Any], what: str) -> NDArray[Any]:
    images = hasattr(values[0], "getbands")  # Pillow's
    arrays = [np.asarray(v) for v in values]
    if len({a.shape for a in arrays}) > 1:
        raise ValueError(f"{what}: the examples have different shapes; pad or crop them to one.")
    x = np.stack(arrays)
    if not images:
        return x
    x = x[..., None] if x.ndim == 3 else x
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2)).astype(np.float32) / 255


def _from_hugging_face(
    dataset: Any,
    client: Any,
    label: str | Sequence[str],
    inputs: str | None,
    ordered: bool,
    task: TaskKind,
    options: Mapping[str, Any],
) -> Arrays:
    if hasattr(dataset, "with_format"):
        dataset = dataset.with_format(None)  # plain values, whatever the user has set
    names = list(dataset.column_names)
    wanted = (label,) if isinstance(label, str) else tuple(label)
    if not (client is None or isinstance(client, str)):
        raise ValueError("client must be the name of the column that names the client of each example.")
    for option, name in (*(("label", name) for name in wanted), ("client", client), ("inputs", inputs)):
        if name is not None and name not in names:
            raise ValueError(f"{option}={name!r}: the data set has the columns {', '.join(names)}.")
    if inputs is None:
        unknown = set(options) - {"ignore", "categorical", "missing", "decimal"}
        if unknown:
            raise ValueError(f"from_dataset takes ignore, categorical, missing and decimal; given: {min(unknown)}.")
        several = [options.get(k, ()) for k in ("ignore", "categorical", "missing")]
        reading = make_reading(label, several[0], several[1], several[2], options.get("decimal", "auto"))
        table = from_columns({name: _values(dataset, name) for name in names}, "the data set")
        return from_table(table, client, reading, task, ordered, classes=_class_names(dataset, wanted[0]))
    columns = {name: _values(dataset, name) for name in (inputs, *wanted, *([client] if client else []))}
    for name, values in columns.items():
        if empty := sum(value is None for value in values):
            raise ValueError(f"Column '{name}' is empty in {empty} examples: fill it in or remove them.")
    who = None if client is None else [str(v) for v in columns[client]]
    x = _stacked(columns[inputs], inputs)
    targets = [np.asarray(columns[name]) for name in wanted]
    y = targets[0] if isinstance(label, str) else np.stack(targets, axis=1)
    classes = _class_names(dataset, wanted[0])
    if not classes or task != "classification":
        return from_arrays(x, y, client=who, ordered=ordered, task=task)
    index = np.array([classes.index(name) for name in y.tolist()])
    made = from_arrays(x, np.zeros_like(index), client=who, ordered=ordered)
    return replace(made, y=index, classes=len(classes), class_names=classes)


CLIENT = "client of fedkin"  # a column that no data set has


class _Joined:
    """Hugging Face data sets by client, as one data set with a column of clients."""

    def __init__(self, parts: Mapping[Any, Any]) -> None:
        self._parts = {
            str(name): part.with_format(None) if hasattr(part, "with_format") else part for name, part in parts.items()
        }
        first = next(iter(self._parts.values()))
        for name, part in self._parts.items():
            if other := set(part.column_names) ^ set(first.column_names):
                raise ValueError(f"The data set of {name} has other columns than the first one: {', '.join(other)}.")
        self.features = getattr(first, "features", None)
        self.column_names = [CLIENT, *first.column_names]

    def __getitem__(self, name: str) -> list[Any]:
        if name == CLIENT:
            return [client for client, part in self._parts.items() for _ in range(len(part))]
        return [value for part in self._parts.values() for value in part[name]]


def _class_names(dataset: Any, column: str) -> tuple[str, ...]:
    """The names that a `ClassLabel` of the data set gives its numbers."""
    feature = (getattr(dataset, "features", None) or {}).get(column)
    return tuple(getattr(feature, "names", None) or ())


def _values(dataset: Any, column: str) -> list[Any]:
    values, names = list(dataset[column]), _class_names(dataset, column)
    if not names:
        return values
    return [None if value is None or value < 0 else names[value] for value in values]  # -1 stands for "no label"
