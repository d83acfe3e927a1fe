"""Small real runs of the four systems and the baselines, for all tests of the report."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedkin

METHODS = [
    "local",
    "fedavg",
    "fedcedar,clusters=2",
    "pflic,clusters=2,restarts=1,stable_rounds=2",
    "pfedgat-v2",
    "dcpfl,tau=1,start_rounds=2,window=1,patience=1",
]


@pytest.fixture(scope="session")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six methods on digits turned four ways, so that hidden groups are known."""
    out = tmp_path_factory.mktemp("comparison")

    def fed(seed: int) -> fedkin.Federation:
        return fedkin.federate("digits", partition="rotated", clients=8, samples_per_client=40, seed=seed)

    fedkin.compare(METHODS, fed, rounds=8, lr=0.1, evaluate_every=3, out=out, save_models=False, engine="serial")
    return out


@pytest.fixture(scope="session")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods at three clients of a user's own data, with names of clients and classes."""
    out = tmp_path_factory.mktemp("hospitals")
    rng = np.random.default_rng(0)
    disease = np.array(["healthy", "ill"])[rng.integers(0, 2, 90)]
    arrays = fedkin.from_arrays(
        rng.normal(size=(90, 4)).astype(np.float32), disease, client=np.repeat(["north", "south", "west"], 30)
    )
    fed = fedkin.federate(arrays)
    fedkin.compare(["local", "fedavg"], fed, rounds=2, lr=0.1, out=out, save_models=False, engine="serial")
    return out
