"""Every method that does not need classes learns a regression; the others refuse it in one line, before round 1."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import fedkin
from fedkin.data.arrays import Arrays
from fedkin.data.federation import Federation
from fedkin.methods import METHODS, method

SETTINGS = {"rounds": 6, "lr": 0.05, "epochs": 2, "batch_size": 8, "engine": "serial", "model": "mlp"}


@cache
def federation() -> Federation:
    """Five clients of unlike sizes, with a line that differs a little from client to client."""
    rng = np.random.default_rng(2)
    sizes = [30, 36, 42, 48, 54]
    x = rng.normal(size=(sum(sizes), 4)).astype(np.float32)
    group = np.repeat(np.arange(5), sizes)
    slopes = np.array([1.0, -1.0, 0.5, 0.0]) + 0.2 * rng.normal(size=(5, 4))
    y = ((x * slopes[group]).sum(1) + 0.1 * rng.normal(size=len(x))).astype(np.float32)
    return fedkin.federate(Arrays(x, y, 0, group=group), partition="by_group")


@pytest.mark.parametrize("name", METHODS)
def test_a_regression(name, tmp_path):
    if method(name).needs_classes:
        with pytest.raises(ValueError, match=r"^\w+ needs classes; it cannot learn a regression\.$"):
            fedkin.run(name, federation(), **SETTINGS, out=tmp_path / "run")
        assert not (tmp_path / "run").exists(), "before anything is written"
        return
    rounds = 12 if name == "pfedhn" else 6  # whose momentum swings at first
    run = fedkin.run(name, federation(), **{**SETTINGS, "rounds": rounds}, evaluate_every=1)
    assert not list(run.history.select("unmeasured"))
    assert not list(run.history.select("dropped"))
    losses = [run.history.values("personal_loss", round=round) for round in (1, rounds)]
    assert all(value is not None and np.isfinite(value) for table in losses for value in table.values())
    first, last = (np.mean(list(table.values())) for table in losses)
    assert last != first, "the models move"
    assert last < 1.5, "always predicting the mean has a squared error of 2.6"
    assert run.summary["headline"] == {"metric": "rmse", "higher_is_better": False, "percent": False}
