"""UCI HAR: windows of smartphone sensor data of 30 people; each person is a natural client."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from fedkin.data.arrays import Arrays
from fedkin.data.files import data_dir, fetch, readable, unpack

_ADDRESS = "https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip"
_FOLDER = "UCI HAR Dataset"
_SIGNALS = [f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"]
_WINDOWS = 10299


def load(folder: str | Path | None = None) -> Arrays:
    """From `har/har.npz` (x [n, 128, 9], y from 0, subject), or from the text files of UCI's archive."""
    root = data_dir(folder) / "har"
    if (root / "har.npz").exists():
        broken = (KeyError, ValueError, EOFError, zlib.error, zipfile.BadZipFile)
        with readable(root / "har.npz", broken), np.load(root / "har.npz", allow_pickle=False) as stored:
            x, y, subject = stored["x"], stored["y"], stored["subject"]
    else:
        x, y, subject = _from_text(root)
    people, group = np.unique(subject, return_inverse=True)
    # Channels first, as conv1d takes them. A person's windows are in time order and overlap by half.
    x = np.ascontiguousarray(x.transpose(0, 2, 1)).astype(np.float32)
    scale = x.std(axis=(0, 2), keepdims=True)
    x = (x - x.mean(axis=(0, 2), keepdims=True)) / scale
    names = tuple(f"subject {p}" for p in people)
    return Arrays(x, y.astype(np.int64), classes=6, group=group.astype(np.int64), ordered=True, names=names)


def _from_text(root: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    parts = ("train", "test")
    files = [
        [f"{_FOLDER}/{p}/Inertial Signals/{s}_{p}.txt" for s in _SIGNALS]
        + [f"{_FOLDER}/{p}/{kind}_{p}.txt" for kind in ("y", "subject")]
        for p in parts
    ]
    if not all((root / name).exists() for name in files[0] + files[1]):
        # The publisher gives no checksum of the archive; its content is checked below.
        fetch(root, {"har.zip": (_ADDRESS, None)}, what="UCI HAR (or its har.npz)")
        inner = "UCI HAR Dataset.zip"  # the archive holds an archive
        unpack(root / "har.zip", root, [inner])
        unpack(root / inner, root, files[0] + files[1])
    xs, ys, subjects = [], [], []
    for names in files:
        *signals, y, subject = (_table(root / name) for name in names)
        if len({len(table) for table in (*signals, y, subject)}) > 1:
            raise ValueError(f"The files in {(root / names[0]).parent.parent} differ in their number of windows.")
        xs.append(np.stack(signals, axis=-1))
        ys.append(y.astype(np.int64) - 1)
        subjects.append(subject.astype(np.int64))
    x = np.concatenate(xs)
    if len(x) != _WINDOWS:
        raise ValueError(f"UCI HAR has {_WINDOWS} windows; the files in {root} have {len(x)}.")
    return x, np.concatenate(ys), np.concatenate(subjects)


def _table(path: Path) -> np.ndarray:
    with readable(path, (ValueError,)):
        return np.loadtxt(path, dtype=np.float32)
