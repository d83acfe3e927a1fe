"""The user's own data: arrays in memory, or a folder with one file a client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedkin.data.arrays import Arrays


def from_arrays(x: ArrayLike, y: ArrayLike, *, client: ArrayLike | None = None, ordered: bool = False) -> Arrays:
    """Rows `x` [n, …], labels `y` [n], and to which client each row belongs (any values; None: spread them later).

    Images are given as the network takes them: [n, channels, height, width]. `ordered`: rows are in time order.
    """
    xs, ys = np.asarray(x), np.asarray(y)
    if xs.ndim < 2:
        raise ValueError(f"x must be [rows, features…]; it has shape {xs.shape}.")
    if ys.ndim != 1 or not (np.issubdtype(ys.dtype, np.integer) or np.all(ys == np.floor(ys.astype(float)))):
        raise ValueError(f"y must be one whole number a row (a class from 0); it is {ys.dtype} of shape {ys.shape}.")
    if not (np.issubdtype(xs.dtype, np.floating) or np.issubdtype(xs.dtype, np.integer) or xs.dtype == bool):
        raise ValueError(f"x must be numbers; it is {xs.dtype}.")
    xs = xs.astype(np.float32)
    if not np.isfinite(xs).all():
        bad = int((~np.isfinite(xs.reshape(len(xs), -1)).all(1)).sum())
        raise ValueError(f"{bad} rows of x hold NaN or infinity: remove or fill them first.")
    ys = ys.astype(np.int64)
    group, names = None, ()
    if client is not None:
        who = np.asarray(client)
        if who.shape != ys.shape:
            raise ValueError(f"client must name a client for each of the {len(ys)} rows; its shape is {who.shape}.")
        values, group = np.unique(who, return_inverse=True)
        names = tuple(str(v) for v in values)
    return Arrays(xs, ys, classes=int(ys.max(initial=0)) + 1, group=group, names=names, ordered=ordered)


def from_folder(folder: str | Path, *, label: str = "y") -> Arrays:
    """One `.npz` (arrays `x` and `y`) or `.csv` (a header, one column `label`) for each client; the file's name is
    the client's name. Rows are taken to be in time order."""
    place = Path(folder)
    if not place.is_dir():
        raise ValueError(f"There is no folder {place}.")
    files = sorted(p for p in place.iterdir() if p.suffix in (".npz", ".csv"))
    if not files:
        raise ValueError(f"{place} holds no .npz and no .csv file: one for each client is expected.")
    xs, ys, who = [], [], []
    for path in files:
        x, y = _npz(path, label) if path.suffix == ".npz" else _csv(path, label)
        if xs and x.shape[1:] != xs[0].shape[1:]:
            raise ValueError(f"{path} has rows of shape {x.shape[1:]}, {files[0]} of {xs[0].shape[1:]}: they must agree.")
        xs.append(x)
        ys.append(y)
        who += [path.stem] * len(y)
    return from_arrays(np.concatenate(xs), np.concatenate(ys), client=who, ordered=True)


def _npz(path: Path, label: str) -> tuple[NDArray[Any], NDArray[Any]]:
    with np.load(path, allow_pickle=False) as stored:
        if "x" not in stored or label not in stored:
            raise ValueError(f"{path} must hold arrays 'x' and '{label}'; it holds {', '.join(stored.files)}.")
        return stored["x"], stored[label]


def _csv(path: Path, label: str) -> tuple[NDArray[Any], NDArray[Any]]:
    with open(path) as f:
        header = [name.strip().strip('"') for name in f.readline().split(",")]
        if label not in header:
            raise ValueError(f"{path} must have a column '{label}'; its columns are {', '.join(header)}.")
        try:
            table = np.loadtxt(f, delimiter=",", ndmin=2)
        except ValueError as error:
            raise ValueError(f"{path}: {error}. All columns must be numbers.") from None
    if not table.size:
        raise ValueError(f"{path} has no rows below its header.")
    at = header.index(label)
    return np.delete(table, at, axis=1), table[:, at]
