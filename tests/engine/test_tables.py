"""Runs whose servers keep clients' models in a file: the same outcome, bits after a resume, and nothing left behind."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

import fedkin
from fedkin.engine import evaluation
from fedkin.engine.trackers import Tracker
from fedkin.maths import table as tables
from fedkin.maths.table import ClientTable
from fedkin.methods.pfedgat import method as pfedgat
from fedkin.results.store import equal

METHODS = ["kin", "pfedgat", "fedamp", "fedamp-heuristic", "sfl", "sfl-last", "pfedgraph", "fedfomo", "fedsem-last",
           "clusterfl-kmeans"]  # fmt: skip


def made(name: str):
    named = {
        "fedamp-heuristic": ("fedamp", {"heuristic": True}),
        "sfl-last": ("sfl", {"average": "last", "similarity": "changes"}),
        "fedsem-last": ("fedsem", {"average": "last"}),
    }
    name, settings = named.get(name, (name, {}))
    return fedkin.method(name, **settings)


@pytest.fixture(scope="module")
def fed():
    return fedkin.federate("digits", partition="shards", clients=8, samples_per_client=40, seed=1)


def run(name, fed, **options):
    settings = {"rounds": 4, "participation": 0.4, "evaluate_every": 2, "engine": "serial", "trackers": []}
    return fedkin.run(made(name), fed, **{**settings, **options})


@pytest.fixture
def in_file(monkeypatch, tmp_path_factory):
    """A temporary folder; every table keeps its rows in a file."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tables, "IN_MEMORY", 0)
    monkeypatch.setattr(tables, "BLOCK", 1 << 14)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("name", METHODS)
def test_in_a_file_as_in_memory_up_to_rounding(name, fed, monkeypatch, tmp_path):
    usual = run(name, fed)
    monkeypatch.setattr(tables, "IN_MEMORY", 0)
    monkeypatch.setattr(tables, "BLOCK", 1 << 14)  # two models
    monkeypatch.setattr(pfedgat, "WHOLE_R", 2)
    filed = run(name, fed)
    found = [value for value in filed.state.values() if isinstance(value, ClientTable)]
    assert found
    assert not any(value.in_memory for value in found)
    for metric in ("personal_loss", "received_loss"):
        ours, theirs = ({(r.round, r.client): r.value for r in x.history.select(metric)} for x in (filed, usual))
        assert ours.keys() == theirs.keys()
        np.testing.assert_allclose(list(ours.values()), list(theirs.values()), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["kin", "pfedgat"])
def test_a_run_that_was_stopped_has_the_same_bits(name, fed, in_file, tmp_path):
    straight = run(name, fed, out=tmp_path / "straight")
    run(name, fed, rounds=2, out=tmp_path / "stopped")
    resumed = run(name, fed, out=tmp_path / "stopped")
    assert equal(straight.state, resumed.state)
    histories = [(tmp_path / out / "history.jsonl").read_bytes() for out in ("straight", "stopped")]
    assert histories[0] == histories[1]
    assert equal(fedkin.load(tmp_path / "stopped").state, straight.state)
    x, y = fed.data(0).train
    assert fedkin.load(tmp_path / "straight").join("east", x, y).expected


@pytest.mark.parametrize("name", ["kin", "fedavg"])
def test_very_many_clients_are_measured_a_few_at_a_time(name, fed, monkeypatch):
    whole = run(name, fed)
    monkeypatch.setattr(evaluation, "MANY", 0)
    monkeypatch.setattr(evaluation, "AT_ONCE", 3 * 4 * 1000)  # a model or a few
    parts = run(name, fed)
    for metric in ("personal", "personal_loss", "received_loss"):
        ours, theirs = ({(r.round, r.client): r.value for r in x.history.select(metric)} for x in (parts, whole))
        assert ours.keys() == theirs.keys()
        np.testing.assert_allclose(list(ours.values()), list(theirs.values()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("participation", [0.4, 1.0])
def test_fedamp_in_a_file_has_the_weights_of_all_and_takes_a_newcomer(participation, fed, monkeypatch, tmp_path):
    usual = run("fedamp", fed, participation=participation, rounds=2)
    monkeypatch.setattr(tables, "IN_MEMORY", 0)
    filed = run("fedamp", fed, participation=participation, rounds=2, out=tmp_path)
    np.testing.assert_allclose(made("fedamp").mixing(filed.state), made("fedamp").mixing(usual.state), atol=1e-4)
    x, y = fed.data(0).train
    assert filed.join("east", x, y).expected


def nameless() -> int:
    """Number of files without a name that this process has open."""
    gc.collect()
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found += "(deleted)" in os.readlink(entry) and "/dev/shm" not in os.readlink(entry)
        except OSError:
            continue
    return found


class Stop(Tracker):
    def __init__(self, after: int) -> None:
        self._after = after

    def round(self, round: int, metrics: dict[str, float]) -> None:
        if round == self._after:
            raise KeyboardInterrupt


@pytest.mark.parametrize("stopped", [False, True])
def test_nothing_is_left_on_the_disk(stopped, fed, in_file):
    before = nameless()
    if stopped:
        with pytest.raises(KeyboardInterrupt):
            run("kin", fed, engine="pool", workers=2, trackers=[Stop(2)])
    else:
        run("kin", fed, engine="pool", workers=2)
    assert nameless() == before
    assert not [path for path in in_file.iterdir() if path.name.startswith("fedkin-")]


def test_a_large_run_of_a_quadratic_method_says_so(fed, monkeypatch):
    monkeypatch.setattr("fedkin.protocol.MANY_PAIRS", 100)
    texts = [r.value for r in run("fedamp", fed, rounds=1).history.select("warning")]
    assert any("One matrix of clients × clients takes" in text for text in texts)
    assert not [r for r in run("kin", fed, rounds=1).history.select("warning") if "clients × clients" in r.value]


LARGE = """
import sys
import scale
scale.ROUNDS = 99
class Enough(scale.Rounds):
    def round(self, round, metrics):
        super().round(round, metrics)
        if round == 3:
            print(f"PEAK {self._peak()}")
            sys.exit()
scale.Rounds = Enough
scale.measure(10_000, sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kin", "pfedgat"])
@pytest.mark.processes
def test_ten_thousand_clients_take_less_than_2_gb(name):
    folder = Path(__file__).parents[2] / "benchmarks"
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run([sys.executable, "-c", LARGE, name], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    peak = int(done.stdout.split("PEAK ")[1].split()[0])
    assert 2e8 < peak < 2e9
