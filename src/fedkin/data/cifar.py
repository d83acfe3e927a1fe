"""CIFAR-10 and CIFAR-100 from their binary version. The Python version is a pickle and is never read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedkin.data.arrays import Arrays
from fedkin.data.files import data_dir, fetch, unpack

_ADDRESS = "https://www.cs.toronto.edu/~kriz/"


def cifar10(folder: str | Path | None = None) -> Arrays:
    names = [f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)] + ["cifar-10-batches-bin/test_batch.bin"]
    parts = _read(data_dir(folder), names, "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", labels=1)
    return _arrays(parts, 10, mean=(125.307, 122.950, 113.865), std=(62.993, 62.089, 66.705))


def cifar100(folder: str | Path | None = None) -> Arrays:
    names = ["cifar-100-binary/train.bin", "cifar-100-binary/test.bin"]
    parts = _read(data_dir(folder), names, "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", labels=2)
    return _arrays(parts, 100, mean=(129.304, 124.070, 112.434), std=(68.170, 65.392, 70.418))


def _read(folder: Path, names: list[str], archive: str, md5: str, *, labels: int) -> list[NDArray[np.uint8]]:
    if not all((folder / name).exists() for name in names):
        fetch(folder, {archive: (_ADDRESS + archive, f"md5:{md5}")}, what=f"{names[0].split('/')[0]}")
        unpack(folder / archive, folder, names)
    parts = []
    for name in names:
        raw = np.fromfile(folder / name, np.uint8)
        record = 3072 + labels
        if not raw.size or raw.size % record:
            raise ValueError(f"{folder / name} is cut short: {raw.size} bytes are not whole records of {record}.")
        parts.append(raw.reshape(-1, record))
    return parts


def _arrays(parts: list[NDArray[np.uint8]], classes: int, *, mean: tuple[float, ...], std: tuple[float, ...]) -> Arrays:
    raw = np.concatenate(parts)
    x = np.ascontiguousarray(raw[:, -3072:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    y = raw[:, -3073].astype(np.int64)  # the byte before the image is the (fine) label
    return Arrays(x, y, classes=classes, image=True, mean=mean, std=std, train=len(y) - len(parts[-1]))
