"""The user's own data: arrays in memory, or a folder with one file a client."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedkin.data.arrays import Arrays, Ints
from fedkin.data.files import readable


def from_arrays(x: ArrayLike, y: ArrayLike, *, client: ArrayLike | None = None, ordered: bool = False) -> Arrays:
    """Rows `x` [n, …], labels `y` [n], and to which client each row belongs (any values; None: spread them later).

    Images are given as the network takes them: [n, channels, height, width]. `ordered`: rows are in time order.
    """
    xs, ys = np.asarray(x), np.asarray(y)
    if xs.ndim < 2 or 0 in xs.shape[1:]:
        raise ValueError(f"x must be [rows, features…]; it has shape {xs.shape}.")
    if ys.ndim != 1 or ys.dtype.kind not in "buif" or not (np.isfinite(ys) & (ys == np.floor(ys))).all():
        raise ValueError(f"y must be one whole number a row (a class from 0); it is {ys.dtype} of shape {ys.shape}.")
    if xs.dtype.kind not in "buif":
        raise ValueError(f"x must be numbers; it is {xs.dtype}.")
    xs = xs.astype(np.float32)
    if not np.isfinite(xs).all():
        bad = int((~np.isfinite(xs.reshape(len(xs), -1)).all(1)).sum())
        raise ValueError(f"{bad} rows of x hold NaN or infinity: remove or fill them first.")
    ys = ys.astype(np.int64)
    group: Ints | None = None
    names: tuple[str, ...] = ()
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
    if len({path.stem for path in files}) < len(files):
        raise ValueError(f"{place} holds a .npz and a .csv of the same name: one file for each client is expected.")
    xs: list[NDArray[Any]] = []
    ys: list[NDArray[Any]] = []
    who: list[str] = []
    columns: list[str] = []
    for path in files:
        x, y, header = _rows(path, label)
        if header:
            columns = columns or header
            if header != columns:
                raise ValueError(f"{path} has the columns {', '.join(header)}; another file has {', '.join(columns)}.")
        if xs and x.shape[1:] != xs[0].shape[1:]:
            raise ValueError(
                f"{path} has rows of shape {x.shape[1:]}, {files[0]} of {xs[0].shape[1:]}: make them alike."
            )
        xs.append(x)
        ys.append(y)
        who += [path.stem] * len(y)
    return from_arrays(np.concatenate(xs), np.concatenate(ys), client=who, ordered=True)


def from_file(path: str | Path, *, label: str = "y") -> Arrays:
    """One client's file, as `from_folder` takes many."""
    place = Path(path)
    if place.suffix not in (".npz", ".csv") or not place.is_file():
        raise ValueError(f"There is no .npz or .csv file {place}.")
    x, y, _ = _rows(place, label)
    return from_arrays(x, y, client=[place.stem] * len(y), ordered=True)


def columns(path: str | Path, *, label: str = "y") -> tuple[str, ...]:
    """Names of a .csv's columns, in their order, without the label's; a .npz has none."""
    place = Path(path)
    return tuple(name for name in _rows(place, label)[2] if name != label)


def _rows(path: Path, label: str) -> tuple[NDArray[Any], NDArray[Any], list[str]]:
    """Rows, labels, and the header of a .csv."""
    x, y, header = (*_npz(path, label), []) if path.suffix == ".npz" else _csv(path, label)
    if x.ndim < 2 or not x.size or y.shape != x.shape[:1]:
        raise ValueError(f"{path} must hold rows and a label for each; x has shape {x.shape}, {label} {y.shape}.")
    return x, y, header


def _npz(path: Path, label: str) -> tuple[NDArray[Any], NDArray[Any]]:
    # no pickle: numpy refuses arrays of objects with a ValueError
    with (
        readable(
            path, (ValueError, EOFError, TypeError, zlib.error, zipfile.BadZipFile), "it must be an .npz of numbers"
        ),
        np.load(path, allow_pickle=False) as stored,
    ):
        arrays = {name: stored[name] for name in ("x", label) if name in stored}
        names = stored.files
    if len(arrays) < 2:
        raise ValueError(f"{path} must hold arrays 'x' and '{label}'; it holds {', '.join(names)}.")
    return arrays["x"], arrays[label]


def _csv(path: Path, label: str) -> tuple[NDArray[Any], NDArray[Any], list[str]]:
    with open(path, encoding="utf-8-sig") as f:  # -sig: spreadsheets write a byte order mark
        header = [name.strip().strip('"') for name in f.readline().split(",")]
        if label not in header:
            raise ValueError(f"{path} must have a column '{label}'; its columns are {', '.join(header)}.")
        try:
            table = np.loadtxt(f, delimiter=",", ndmin=2)
        except ValueError as error:
            raise ValueError(f"{path}: {error}. All columns must be numbers.") from None
    if not table.size:
        raise ValueError(f"{path} has no rows below its header.")
    if table.shape[1] != len(header):
        raise ValueError(f"{path} names {len(header)} columns in its header and has {table.shape[1]} below it.")
    at = header.index(label)
    return np.delete(table, at, axis=1), table[:, at], header
