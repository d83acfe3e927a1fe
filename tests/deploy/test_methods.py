"""The four systems and the first circle of baselines, each run once at three real sites: the same numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedkin[flower]'")

import fedkin
import fedkin.deploy.scaffold
from tests.deploy.sites import FIRST_CIRCLE, NAMES, Sites
from tests.deploy.test_deployment import write_digits
from tests.processes import needs_linux

pytestmark = [pytest.mark.slow, pytest.mark.processes, needs_linux, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def sites(tmp_path_factory) -> Iterator[Sites]:
    folder = tmp_path_factory.mktemp("methods")
    write_digits(folder / "data")
    with Sites(folder / "sites") as made:
        for name in NAMES:
            made.own_data(name, folder / "data" / f"{name}.npz")
            made.supernode(name)
        yield made


@pytest.mark.parametrize("method", FIRST_CIRCLE)
def test_a_method_gives_the_same_numbers_as_in_process(method, sites):
    federation = fedkin.federate(fedkin.from_folder(sites.folder.parent / "data"), partition="by_group")
    inside = fedkin.run(method, federation, rounds=2, evaluate_every=0)
    app = sites.folder / "apps" / method
    fedkin.deploy.scaffold.init(fedkin.deploy.scaffold.Init(app, method=method, clients=NAMES, rounds=2))
    sites.method = method
    sites.run(f"apps/{method}/app", run__evaluate_every=0, run__out=str(sites.out))
    sites.until_finished()
    unknown = {"mean_kld", "labels", "majority_rate"}
    there = {
        (r.round, r.client, r.metric, r.scope): r.value for r in sites.history().records if r.metric not in unknown
    }
    here = {(r.round, r.client, r.metric, r.scope): r.value for r in inside.history.records if r.metric not in unknown}
    assert there.keys() == here.keys()
    assert {key for key, value in here.items() if not close(value, there[key])} == set()
    sites.processes.pop("run").wait()
    (sites.folder / "run.log").unlink()


def close(a: object, b: object) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(close(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(close, a, b))
    if isinstance(a, int | float) and isinstance(b, int | float):
        return bool(np.isclose(a, b, atol=1e-5, rtol=1e-5))
    return a == b
