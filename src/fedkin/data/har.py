"""UCI HAR: windows of 30 people's smartphone sensors; each person is a natural client."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedkin.data.arrays import Arrays
from fedkin.data.files import data_dir, fetch, unpack

_ADDRESS = "https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip"
_FOLDER = "UCI HAR Dataset"
_SIGNALS = [f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"]
_WINDOWS = 10299


def load(folder: str | Path | None = None) -> Arrays:
    """From `har/har.npz` (x [n, 128, 9], y from 0, subject), or from the text files of UCI's archive."""
    place = data_dir(folder) / "har"
    if (place / "har.npz").exists():
        with np.load(place / "har.npz", allow_pickle=False) as stored:
            x, y, subject = stored["x"], stored["y"], stored["subject"]
    else:
        x, y, subject = _from_text(place)
    people, group = np.unique(subject, return_inverse=True)
    # Channels first, as conv1d takes them. Windows of a person overlap by half: their order is time.
    x = np.ascontiguousarray(x.transpose(0, 2, 1)).astype(np.float32)
    scale = x.std(axis=(0, 2), keepdims=True)
    x = (x - x.mean(axis=(0, 2), keepdims=True)) / scale
    names = tuple(f"subject {p}" for p in people)
    return Arrays(x, y.astype(np.int64), classes=6, group=group.astype(np.int64), ordered=True, names=names)


def _from_text(place: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    parts = ("train", "test")
    signals = [f"{_FOLDER}/{p}/Inertial Signals/{s}_{p}.txt" for p in parts for s in _SIGNALS]
    labels = [f"{_FOLDER}/{p}/{kind}_{p}.txt" for p in parts for kind in ("y", "subject")]
    if not all((place / name).exists() for name in signals + labels):
        # The archive's publisher gives no checksum; its content is checked below.
        fetch(place, {"har.zip": (_ADDRESS, None)}, what="UCI HAR (or its har.npz)")
        inner = "UCI HAR Dataset.zip"  # the archive holds an archive
        unpack(place / "har.zip", place, [inner])
        unpack(place / inner, place, signals + labels)
    read = [np.loadtxt(place / name, dtype=np.float32) for name in signals]
    x = np.concatenate([np.stack(read[:9], axis=-1), np.stack(read[9:], axis=-1)])
    y, subject = (
        np.concatenate([np.loadtxt(place / name, dtype=np.int64) for name in labels if f"/{kind}_" in name])
        for kind in ("y", "subject")
    )
    if len(x) != _WINDOWS or len(y) != _WINDOWS:
        raise ValueError(f"UCI HAR has {_WINDOWS} windows; the files in {place} have {len(x)} and {len(y)} labels.")
    return x, y - 1, subject
