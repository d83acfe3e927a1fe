"""scikit-learn's digits: small, real, and installed with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedkin.data.arrays import Arrays


def load(folder: str | Path | None = None) -> Arrays:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x = bunch.images.astype(np.uint8)[..., None]
    return Arrays(x, bunch.target.astype(np.int64), classes=10, image=True, mean=(4.884,), std=(6.017,))
