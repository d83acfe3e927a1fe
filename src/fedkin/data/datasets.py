"""Data sets of other libraries: torch's and Hugging Face's `Dataset`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """A torch `Dataset` of pairs (x, y), with `client` one name for each example; a dictionary of such data sets by
    client; or a Hugging Face `Dataset`, with `client` and `label` its columns.

    Of a Hugging Face data set, `inputs` is the column of arrays (tokens, images). Without it, all other columns are
    read as a table, with `from_frame`'s options ignore, categorical, missing and decimal.
    """
    if isinstance(dataset, Mapping):
        if client is not None:
            raise ValueError("A dictionary of data sets names the clients itself: leave client out.")
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
    names = list(dataset.column_names)
    wanted = (label,) if isinstance(label, str) else tuple(label)
    for option, name in (*(("label", name) for name in wanted), ("client", client), ("inputs", inputs)):
        if name is not None and name not in names:
            raise ValueError(f"{option}={name!r}: the data set has the columns {', '.join(names)}.")
    if inputs is None:
        unknown = set(options) - {"ignore", "categorical", "missing", "decimal"}
        if unknown:
            raise ValueError(f"from_dataset takes ignore, categorical, missing and decimal; given: {min(unknown)}.")
        several = [options.get(k, ()) for k in ("ignore", "categorical", "missing")]
        reading = make_reading(label, several[0], several[1], several[2], options.get("decimal", "auto"))
        table = from_columns({name: list(dataset[name]) for name in names}, "the data set")
        return from_table(table, client, reading, task, ordered)
    who = None if client is None else [str(v) for v in dataset[client]]
    x = _stacked(list(dataset[inputs]), inputs)
    targets = [np.asarray(list(dataset[name])) for name in wanted]
    y = targets[0] if isinstance(label, str) else np.stack(targets, axis=1)
    return from_arrays(x, y, client=who, ordered=ordered, task=task)
