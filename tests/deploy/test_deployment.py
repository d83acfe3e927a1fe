"""A superlink and three supernodes on loopback, with TLS and node keys: the same numbers as in one process."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedkin[flower]'")

from safetensors.torch import load_file

import fedkin
from tests.deploy.sites import NAMES, Sites
from tests.processes import needs_linux

pytestmark = pytest.mark.processes
SETTINGS = {"rounds": 2, "evaluate_every": 0}


def write_digits(folder) -> None:
    """A file for each site: its part of digits."""
    whole = fedkin.federate("digits", clients=3, samples_per_client=150)
    folder.mkdir()
    for part, name in enumerate(NAMES):
        split = whole.splits[part]
        rows = np.concatenate([split.train, split.validation, split.test])
        x = whole.arrays.x[rows].astype(np.float32).transpose(0, 3, 1, 2) / 16
        np.savez(folder / f"{name}.npz", x=x, y=whole.arrays.y[rows])


@needs_linux
@pytest.mark.timeout(900)  # the last resort: a shared machine may be slow
def test_fedcedar_over_tls_is_the_same_as_in_process_and_strangers_are_refused(tmp_path):
    data = tmp_path / "data"
    write_digits(data)
    federation = fedkin.federate(fedkin.from_folder(data), partition="by_group")
    method = fedkin.method("fedcedar", clusters=2)
    inside = fedkin.run(method, federation, out=tmp_path / "inside", **SETTINGS)
    with Sites(tmp_path / "sites", tls=True, rounds=2) as sites:
        for name in NAMES:
            sites.own_data(name, data / f"{name}.npz")
        for name in NAMES[:2]:
            sites.register(name)
            sites.supernode(name)
        sites.supernode("west")  # its key is not registered yet
        stranger = sites.processes["west"]
        assert stranger.wait() != 0
        assert "2004" in sites.log("superlink") + sites.log("west"), sites.log("west")
        sites.register("west")
        sites.supernode("west")
        sites.run(run__evaluate_every=0, run__bind_keys=True, method__clusters=2)
        sites.until_finished()

        # Every number of the history, but for what a server cannot know.
        unknown = {"mean_kld", "labels", "majority_rate"}
        there = {(r.round, r.client, r.metric, r.scope): r.value for r in sites.history().records}
        here = {
            (r.round, r.client, r.metric, r.scope): r.value for r in inside.history.records if r.metric not in unknown
        }
        assert there.keys() == here.keys()
        for key, value in here.items():
            close = value == there[key] if isinstance(value, str) else np.allclose(there[key], value, atol=1e-5, rtol=0)
            assert close, (key, value, there[key])

        # The personal models are on the sites' disks, and there alone.
        index = json.loads((tmp_path / "inside" / "models" / "index.json").read_text())
        for name in NAMES:
            mine, simulated = load_file(sites.personal(name)), load_file(tmp_path / "inside" / "models" / index[name])
            assert mine.keys() == simulated.keys()
            for part, value in simulated.items():
                assert np.allclose(mine[part], value, atol=1e-5, rtol=0), (name, part)
        assert not list(sites.out.glob("models/*.safetensors"))


@needs_linux
@pytest.mark.sites
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_secure_aggregation_over_flower_gives_the_same_model(tmp_path):
    data = tmp_path / "data"
    write_digits(data)
    federation = fedkin.federate(fedkin.from_folder(data), partition="by_group")
    inside = fedkin.run("fedavg", federation, **SETTINGS)
    with Sites(tmp_path / "sites", method="fedavg", rounds=2) as sites:
        for name in NAMES:
            sites.own_data(name, data / f"{name}.npz")
            sites.supernode(name)
        sites.run(run__evaluate_every=0, run__secure=True)
        sites.until_finished()
        there = fedkin.load(sites.out)
        assert there.config["federation"]["secure"] is True
        assert np.allclose(there.state["model"], inside.state["model"], atol=1e-5, rtol=0)
        assert len(list(sites.folder.rglob("secure.json"))) == len(NAMES)
