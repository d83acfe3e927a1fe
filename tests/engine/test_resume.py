"""A run that was stopped, even by SIGKILL, goes on with the same bits."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import fedkin

pytestmark = pytest.mark.processes

COMMAND = [sys.executable, "-m", "fedkin", "run"]
FLAGS = ["--data", "digits", "--partition", "dirichlet", "--clients", "12", "--lr", "0.1", "--epochs", "3", "--json"]


def files(folder: Path) -> dict[str, bytes]:
    """What a run leaves behind that must not depend on how it came about."""
    out = {"history.jsonl": (folder / "history.jsonl").read_bytes(), "summary": (folder / "summary.json").read_bytes()}
    out |= {p.name: p.read_bytes() for p in (folder / "models").iterdir()}
    return out


# A client kills the process that runs fedkin while other clients are at work. Of two workers, each of which is its
# parent's copy, one trains a client for the 30th time in round 3, 4 or 5.
KILLED = """
import functools, itertools, os, signal, sys
import fedkin
from fedkin.cli import main

method = type(fedkin.method(sys.argv[2]))
local, count = method.local, itertools.count(1)

@functools.wraps(local)
def last(self, client, message):
    if next(count) == 30:
        os.kill(os.getppid(), signal.SIGKILL)
    return local(self, client, message)

method.local = last
main()
"""


@pytest.mark.parametrize("method", ["fedavg", pytest.param("local", marks=pytest.mark.slow)])
def test_killed_in_mid_run_and_run_again(tmp_path, spawn, method):
    flags = [method, *FLAGS, "--rounds", "12", "--checkpoint-every", "2"]
    subprocess.run([*COMMAND, *flags, "--out", tmp_path / "a"], check=True, capture_output=True)
    killed = [sys.executable, "-c", KILLED, "run", *flags, "--workers", "2", "--out", tmp_path / "b"]
    process = spawn(killed, stdout=subprocess.PIPE)
    assert process.stdout.read() == b"", "it ends when the run and all its workers have, since they share it"
    assert process.wait() == -signal.SIGKILL
    assert json.loads((tmp_path / "b/checkpoint/manifest.json").read_text())["round"] in (2, 4)
    subprocess.run([*COMMAND, *flags, "--workers", "1", "--out", tmp_path / "b"], check=True, capture_output=True)
    assert files(tmp_path / "a") == files(tmp_path / "b")


@pytest.fixture
def fed():
    return fedkin.federate("digits", clients=5, samples_per_client=40)


def test_a_finished_run_is_not_run_again(fed, tmp_path):
    first = fedkin.run("fedavg", fed, rounds=3, out=tmp_path)
    stamp = (tmp_path / "history.jsonl").stat().st_mtime_ns
    again = fedkin.run("fedavg", fed, rounds=3, out=tmp_path)
    assert (tmp_path / "history.jsonl").stat().st_mtime_ns == stamp
    assert again.summary == first.summary
    assert again.history.records == first.history.records


def test_a_run_can_be_made_longer(fed, tmp_path):
    fedkin.run("local", fed, rounds=3, out=tmp_path / "a", evaluate_every=0)
    fedkin.run("local", fed, rounds=5, out=tmp_path / "a", evaluate_every=0)
    fedkin.run("local", fed, rounds=5, out=tmp_path / "b", evaluate_every=0)
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_fresh_starts_over_and_leaves_other_files_alone(fed, tmp_path):
    fedkin.run("fedavg", fed, rounds=2, out=tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    fedkin.run("fedavg", fed, rounds=2, lr=0.2, out=tmp_path, fresh=True)
    assert json.loads((tmp_path / "config.json").read_text())["training"]["lr"] == 0.2
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_another_run_in_the_folder_is_refused_and_kept(fed, tmp_path):
    fedkin.run("fedavg", fed, rounds=2, out=tmp_path)
    before = files(tmp_path)
    with pytest.raises(ValueError, match=r"training\.lr: 0\.05 there, 0\.2 now") as caught:
        fedkin.run("fedavg", fed, rounds=2, lr=0.2, out=tmp_path)
    assert "--fresh" in str(caught.value)
    other = fedkin.federate("digits", clients=5, samples_per_client=40, seed=9)
    with pytest.raises(ValueError, match="fingerprint"):
        fedkin.run("fedavg", other, rounds=2, out=tmp_path)
    assert files(tmp_path) == before


def test_another_start_or_other_data_is_another_run(fed, tmp_path):
    from torch import nn

    first, second = (nn.Sequential(nn.Flatten(), nn.Linear(64, 10)) for _ in range(2))
    fedkin.run("fedavg", fed, model=first, rounds=1, out=tmp_path)
    with pytest.raises(ValueError, match=r"model\.start"):
        fedkin.run("fedavg", fed, model=second, rounds=1, out=tmp_path)
    x = fed.arrays.x.copy()
    x[1] += 1
    other = replace(fed, arrays=replace(fed.arrays, x=x))
    with pytest.raises(ValueError, match="fingerprint"):
        fedkin.run("fedavg", other, model=first, rounds=1, out=tmp_path)


def test_stopped_between_the_last_checkpoint_and_the_end(fed, tmp_path):
    """Everything after the last checkpoint is done again."""
    fedkin.run("local", fed, rounds=3, out=tmp_path, evaluate_every=0)
    before = files(tmp_path)
    (tmp_path / "summary.json").unlink()
    for model in (tmp_path / "models").iterdir():
        model.unlink()
    fedkin.run("local", fed, rounds=3, out=tmp_path, evaluate_every=0)
    assert files(tmp_path) == before


def test_models_on_disk_are_what_was_measured(fed, tmp_path):
    from safetensors.torch import load_file

    from fedkin.client.evaluate import evaluate
    from fedkin.models.build import maker
    from fedkin.models.network import Network

    result = fedkin.run("local", fed, rounds=2, lr=0.2, out=tmp_path)
    net = Network(maker("mlp", fed.shape, fed.classes, 0, {})(0), fed.example)
    index = json.loads((tmp_path / "models" / "index.json").read_text())
    assert set(index) == {f"client {i}" for i in range(5)}
    for client, accuracy in result.history.values("personal", round=2).items():
        row = net.layout.flatten(load_file(tmp_path / "models" / index[f"client {client}"]))
        assert evaluate(net, row, fed.test(client))[0] == pytest.approx(accuracy)


def test_checkpoint_leaves_no_litter(fed, tmp_path):
    fedkin.run("local", fed, rounds=7, out=tmp_path, checkpoint_every=2)
    names = sorted(p.name for p in (tmp_path / "checkpoint").iterdir())
    assert len(names) == 2 * (5 + 2)  # a state for each client, the server's, the manifest: of the last two checkpoints
