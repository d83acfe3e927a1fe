"""Sites, processes and the superlink die in mid-round and come back: no round is lost, none is applied twice.

The method keeps a model at each client that changes in every round. A round that was lost, applied twice or started
from another state would give other numbers than the undisturbed run in one process.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedkin[flower]'")

import fedkin
from tests.deploy.sites import NAMES, Sites
from tests.deploy.test_deployment import write_digits
from tests.processes import needs_linux

pytestmark = [pytest.mark.slow, pytest.mark.sites, pytest.mark.processes, needs_linux, pytest.mark.timeout(1200)]
ROUNDS = 3
SETTINGS = {"run__evaluate_every": 0, "training__epochs": 2}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("digits") / "data"
    write_digits(folder)
    return folder


@pytest.fixture(scope="module")
def undisturbed(data):
    federation = fedkin.federate(fedkin.from_folder(data), partition="by_group")
    return fedkin.run("ditto", federation, rounds=ROUNDS, evaluate_every=0, epochs=2).history


def started(folder: Path, data: Path, *, tls: bool = False) -> Sites:
    """Three sites in the middle of round 2, north's process at work."""
    sites = Sites(folder, method="ditto", rounds=ROUNDS, tls=tls)
    sites.__enter__()
    for name in NAMES:
        sites.own_data(name, data / f"{name}.npz")
        if tls:
            sites.register(name)
        sites.supernode(name)
    sites.run(**SETTINGS)
    sites.until(lambda: sites.rounds() == 1)
    before = sites.at_work("north")  # round 1's process may still be on its way out
    sites.until(lambda: sites.at_work("north") not in (None, before))
    return sites


def assert_the_same(sites: Sites, undisturbed, *, notes: str, capsys) -> None:
    sites.until_finished()
    history = sites.history()
    unknown = {"mean_kld", "labels", "majority_rate", "name", "note"}
    there = {(r.round, r.client, r.metric, r.scope): r.value for r in history.records if r.metric not in unknown}
    here = {(r.round, r.client, r.metric, r.scope): r.value for r in undisturbed.records if r.metric not in unknown}
    assert there.keys() == here.keys()
    for key, value in here.items():
        assert np.allclose(there[key], value, atol=1e-5, rtol=0), (key, value, there[key])
    noted = [(r.round, r.client, r.value) for r in history.select("note")]
    with capsys.disabled():
        print(f"\n  rounds {sites.rounds()}, dropped {len(list(history.select('dropped')))}, notes: {noted}")
    assert any(notes in text for _, _, text in noted), noted
    for name in NAMES:
        about = json.loads(sites.personal(name).with_suffix(".json").read_text())
        assert about["after_round"] == ROUNDS
    states = [p.name for p in (sites.folder / "sites").glob("*/*/*/client-*")]
    assert len([s for s in states if f"-{ROUNDS:06d}-" in s]) == 3, states


def test_a_supernode_killed_in_mid_round_comes_back_as_another_node(tmp_path, data, undisturbed, capsys):
    sites = started(tmp_path / "sites", data)
    try:
        sites.kill("north")
        sites.supernode("north")
        assert_the_same(sites, undisturbed, notes="it came back as another node", capsys=capsys)
    finally:
        sites.__exit__()


def test_a_supernode_with_a_key_killed_in_mid_round_comes_back_as_itself(tmp_path, data, undisturbed, capsys):
    sites = started(tmp_path / "sites", data, tls=True)
    try:
        sites.kill("north")
        while not sites.until_online("north"):  # it is refused as long as the superlink takes it to be online
            pass
        assert_the_same(sites, undisturbed, notes="asked again", capsys=capsys)
    finally:
        sites.__exit__()


def test_a_client_process_that_is_killed_is_started_again(tmp_path, data, undisturbed, capsys):
    sites = started(tmp_path / "sites", data)
    try:
        process = sites.at_work("north")
        assert process is not None
        os.kill(process, signal.SIGKILL)
        assert_the_same(sites, undisturbed, notes="Flower's code 8", capsys=capsys)
    finally:
        sites.__exit__()


@pytest.mark.parametrize("seconds", [5, 80], ids=["briefly", "for longer"])
def test_the_superlink_is_stopped_and_restarted_on_its_database(tmp_path, data, undisturbed, capsys, seconds):
    """Flower ends the run's server together with the superlink, unless it is started apart; the next one goes on."""
    sites = started(tmp_path / "sites", data)
    try:
        sites.unwatch()
        sites.stop("superlink")
        time.sleep(seconds)  # what is tested is an outage of this length: nothing is waited for
        sites.superlink()
        sites.until(lambda: sites.finished() or not sites.serving())
        survived = sites.finished()
        with capsys.disabled():
            print(f"\n  the superlink was away for {seconds} s; the run {'went on' if survived else 'was given up'}")
        if not survived:
            assert sites.rounds() < ROUNDS
            sites.run(**SETTINGS)
        note = "the superlink did not answer" if survived else "the server was started again after round 1"
        assert_the_same(sites, undisturbed, notes=note, capsys=capsys)
    finally:
        sites.__exit__()


def test_the_server_is_killed_and_the_run_goes_on_with_the_next_one(tmp_path, data, undisturbed, capsys):
    sites = started(tmp_path / "sites", data)
    try:
        (server,) = sites.serving()
        os.kill(server, signal.SIGKILL)
        sites.unwatch()
        assert sites.rounds() == 1
        sites.run(**SETTINGS)
        assert_the_same(sites, undisturbed, notes="the server was started again after round 1", capsys=capsys)
        sites.processes["run"].wait()
        assert "1 of 3 rounds are done" in sites.log("run")
    finally:
        sites.__exit__()


def test_a_site_that_stays_away_is_left_out_and_comes_back(tmp_path, data, capsys):
    sites = Sites(tmp_path / "sites", method="ditto", rounds=4)
    with sites:
        for name in NAMES:
            sites.own_data(name, data / f"{name}.npz")
            sites.supernode(name)
        sites.run(run__evaluate_every=0, run__time_limit=100.0)
        sites.until(lambda: sites.rounds() == 1)
        sites.kill("north")
        sites.until(lambda: sites.rounds() == 2)
        sites.supernode("north")
        sites.until_finished()
        history = sites.history()
        dropped = [(r.round, r.client, r.value) for r in history.select("dropped")]
        with capsys.disabled():
            print(f"\n  dropped: {dropped}")
        assert [(round, client) for round, client, _ in dropped] == [(2, 0)]
        assert "did not answer within 100 s (it is not connected)" in dropped[0][2]
        assert set(history.values("personal", round=4)) == {0, 1, 2}
        states = sorted(p.name for p in (sites.folder / "sites" / "north").glob("*/*/client-*"))
        assert states[-1] == "client-000000-000004-1.safetensors"
