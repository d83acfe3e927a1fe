"""SVHN, cropped digits, from its .mat files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedkin.data.arrays import Arrays
from fedkin.data.files import data_dir, fetch, readable

_ADDRESS = "http://ufldl.stanford.edu/housenumbers/"
_FILES = {
    "train_32x32.mat": (_ADDRESS + "train_32x32.mat", "md5:e26dedcc434d2e4c54c9b2d4a06d8373"),
    "test_32x32.mat": (_ADDRESS + "test_32x32.mat", "md5:eb5a983be6a315427106f1b164d9cef3"),
}


def at_hand(folder: str | Path | None = None) -> bool:
    """Are the files present, so that nothing has to be downloaded?"""
    return all((data_dir(folder) / "svhn" / name).exists() for name in _FILES)


def load(folder: str | Path | None = None) -> Arrays:
    from scipy.io import loadmat

    root = data_dir(folder) / "svhn"
    fetch(root, _FILES, what="SVHN")
    images, labels = [], []
    for name in _FILES:
        # scipy raises all kinds of errors for a broken file
        with readable(root / name, (Exception,)):
            content = loadmat(root / name, variable_names=["X", "y"])
            images.append(content["X"].transpose(3, 0, 1, 2))
            labels.append(content["y"].ravel().astype(np.int64) % 10)  # SVHN writes the digit 0 as class 10
    return Arrays(
        np.ascontiguousarray(np.concatenate(images)),
        np.concatenate(labels),
        classes=10,
        image=True,
        mean=(111.609, 113.161, 120.565),
        std=(50.498, 51.258, 50.244),
        train=len(labels[0]),
    )
