"""MNIST and Fashion-MNIST from their idx files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedkin.data.arrays import Arrays
from fedkin.data.files import data_dir, fetch, read_idx

_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_MNIST = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    (
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
)
_FASHION = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    (
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
)
DEBIAN_FASHION = Path("/usr/share/datasets/fashion-mnist")  # of the Debian package of that name


def mnist(folder: str | Path | None = None) -> Arrays:
    return _load(data_dir(folder) / "mnist", _MNIST, "MNIST", mean=33.318, std=78.567)


def fashion_mnist(folder: str | Path | None = None) -> Arrays:
    own = data_dir(folder) / "fashion-mnist"
    folder = DEBIAN_FASHION if not _found(own) and _found(DEBIAN_FASHION) else own
    return _load(folder, _FASHION, "Fashion-MNIST", mean=72.940, std=90.021)


def _found(folder: Path) -> list[Path] | None:
    """The four files, gzipped or not."""
    paths = [next((p for p in (folder / f"{f}.gz", folder / f) if p.exists()), None) for f in _FILES]
    return [p for p in paths if p] if all(paths) else None


def _load(folder: Path, source: tuple[str, tuple[str, ...]], what: str, *, mean: float, std: float) -> Arrays:
    if _found(folder) is None:
        address, sums = source
        fetch(folder, {f"{f}.gz": (f"{address}{f}.gz", f"md5:{s}") for f, s in zip(_FILES, sums)}, what=what)
    found = _found(folder)
    assert found is not None
    x_train, y_train, x_test, y_test = (read_idx(path) for path in found)
    x = np.concatenate([x_train, x_test])[..., None]
    y = np.concatenate([y_train, y_test]).astype(np.int64)
    return Arrays(x, y, classes=10, image=True, mean=(mean,), std=(std,), train=len(y_train))
