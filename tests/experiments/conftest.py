"""Made data in the shapes of the real sets."""

from __future__ import annotations

import numpy as np
import pytest

from fedkin.data.arrays import Arrays
from fedkin.experiments import carry_out, federations


@pytest.fixture
def made_data(monkeypatch):
    """Pictures of noise with a class-dependent brightness."""

    def arrays(data: str) -> Arrays:
        rng = np.random.default_rng(0)
        side, channels, classes = (28, 1, 10) if "mnist" in data else (32, 3, 100 if data == "cifar100" else 10)
        count = 8000
        y = np.arange(count) % classes
        x = rng.integers(0, 100, (count, side, side, channels)) + (155 * y // classes)[:, None, None, None]
        return Arrays(
            x.astype(np.uint8), y.astype(np.int64), classes, image=True, mean=(100.0,), std=(60.0,), train=7000
        )

    kept: dict[str, Arrays] = {}
    monkeypatch.setattr(federations, "arrays", lambda data: kept.setdefault(data, arrays(data)))
    monkeypatch.setattr(federations.svhn, "at_hand", lambda: True)
    for cached in (carry_out._federation, federations.draws):
        cached.cache_clear()
    yield
    for cached in (carry_out._federation, federations.draws):
        cached.cache_clear()
