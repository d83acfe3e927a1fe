"""The machine's own faults: full disks, damaged files. The run stops and says so; what is damaged is never used."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

import fedkin
from fedkin.engine import checkpoint as checkpoints
from fedkin.engine.checkpoint import Checkpoint, Damaged
from fedkin.results import files, store
from fedkin.results.checksums import Altered
from fedkin.results.files import StorageError
from fedkin.results.history import History


@pytest.fixture(scope="module")
def fed() -> fedkin.Federation:
    return fedkin.federate("digits", clients=4, samples_per_client=40, seed=2)


SETTINGS = {"checkpoint_every": 2, "evaluate_every": 3, "workers": 2}


def play(fed, out, rounds=6, **settings):
    return fedkin.run("ditto", fed, rounds=rounds, out=out, **{**SETTINGS, **settings})


def results(folder: Path) -> dict[str, bytes]:
    files = ["history.jsonl", "summary.json", *(f"models/{p.name}" for p in (folder / "models").iterdir())]
    return {name: (folder / name).read_bytes() for name in files}


@pytest.fixture(scope="module")
def whole(fed, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    play(fed, out)
    return out


@pytest.fixture(scope="module")
def stopped(fed, tmp_path_factory) -> Path:
    """A run that was killed in round 6: its checkpoints are those after rounds 2 and 4."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    play(fed, out, rounds=4)
    for name in ("summary.json", "checksums.json"):
        (out / name).unlink()
    return out


@pytest.fixture
def copy(stopped, tmp_path) -> Path:
    shutil.copytree(stopped, tmp_path / "run")
    return tmp_path / "run"


# ---- damage


def damaged(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif how == "flipped":
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    elif how == "emptied":
        path.write_bytes(b"")
    else:
        path.unlink()


@pytest.mark.parametrize("how", ["truncated", "flipped", "emptied", "removed"])
@pytest.mark.parametrize("which", ["manifest.json", "server-000004.safetensors", "client-000002-000004-1.safetensors"])
def test_the_checkpoint_before_is_used_where_the_newest_is_damaged(fed, copy, whole, which, how, capsys):
    damaged(copy / "checkpoint" / which, how)
    play(fed, copy)
    shown = capsys.readouterr().err
    assert "the newest checkpoint is damaged (manifest.json: " in shown
    assert "resumes from the one before, after round 2" in shown
    assert results(copy) == results(whole)


@pytest.mark.parametrize("how", ["truncated", "flipped"])
def test_a_damaged_end_of_the_history(fed, copy, whole, how, capsys):
    """The damage is behind what the older checkpoint needs."""
    older = json.loads((copy / "checkpoint/previous.json").read_text())["history"]
    history = (copy / "history.jsonl").read_bytes()
    at = older + 200
    end = b"" if how == "truncated" else bytes([history[at] ^ 1]) + history[at + 1 :]
    (copy / "history.jsonl").write_bytes(history[:at] + end)
    play(fed, copy)
    assert "the newest checkpoint is damaged" in capsys.readouterr().err
    assert results(copy) == results(whole)


@pytest.mark.parametrize("how", ["truncated", "flipped", "emptied"])
def test_where_nothing_can_be_used_nothing_is_changed(fed, copy, how):
    (copy / "history.jsonl").write_bytes(b"x" + (copy / "history.jsonl").read_bytes()[1:])
    damaged(copy / "checkpoint/server-000004.safetensors", how)
    before = {p: p.read_bytes() for p in copy.rglob("*") if p.is_file() and p.name != ".fedkin"}
    with pytest.raises(Damaged, match=r"No checkpoint in .* can be used \(manifest.json: .*; previous.json: .*--fresh"):
        play(fed, copy)
    assert {p: p.read_bytes() for p in copy.rglob("*") if p.is_file() and p.name != ".fedkin"} == before
    play(fed, copy, fresh=True)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe"])
def test_a_damaged_config(fed, copy, content):
    (copy / "config.json").write_bytes(content)
    with pytest.raises(Damaged, match=r"config\.json is damaged"):
        play(fed, copy)
    (copy / "config.json").unlink()
    with pytest.raises(Damaged, match=r"has lost its config\.json"):
        play(fed, copy)


@pytest.mark.parametrize("name", ["history.jsonl", "summary.json", "models/index.json", "checksums.json"])
@pytest.mark.parametrize("how", ["flipped", "emptied"])
def test_a_finished_run_is_verified_when_it_is_read(fed, whole, tmp_path, name, how):
    shutil.copytree(whole, tmp_path / "run")
    damaged(tmp_path / "run" / name, how)
    with pytest.raises((Altered, Damaged)):
        play(fed, tmp_path / "run")
    if name in ("history.jsonl", "checksums.json"):
        with pytest.raises(Altered, match=rf"{name} changed after the run had finished"):
            History.load(tmp_path / "run")


def test_a_finished_run_whose_files_were_removed_is_finished_again(fed, whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run/summary.json").unlink()
    shutil.rmtree(tmp_path / "run/models")
    play(fed, tmp_path / "run")
    assert results(tmp_path / "run") == results(whole)


def test_checkpoints_of_fedkin_01_are_read(fed, copy, whole):
    """They have no digests."""
    for name in ("manifest.json", "previous.json"):
        manifest = json.loads((copy / "checkpoint" / name).read_text())
        (copy / "checkpoint" / name).write_text(
            json.dumps({k: v for k, v in manifest.items() if k not in ("digests", "digest")} | {"version": 1})
        )
    play(fed, copy)
    assert results(copy) == results(whole)


def test_a_checkpoint_from_the_future_is_refused(fed, copy):
    for name in ("manifest.json", "previous.json"):
        manifest = json.loads((copy / "checkpoint" / name).read_text())
        (copy / "checkpoint" / name).write_text(json.dumps({**manifest, "version": 9}))
    with pytest.raises(Damaged, match="it has version 9; this fedkin reads 1 and 2"):
        play(fed, copy)


def test_more_rounds_there_than_asked_for(fed, whole):
    with pytest.raises(ValueError, match="holds 6 rounds of this run, more than the 4 asked for"):
        play(fed, whole, rounds=4)


# ---- kills in the middle of a write


def test_a_kill_before_the_first_checkpoint(fed, tmp_path, whole):
    """history.jsonl is there, config.json is not; or a file is half written."""
    out = tmp_path / "run"
    play(fed, out, rounds=1)
    for name in ("config.json", "summary.json", "checksums.json"):
        (out / name).unlink()
    shutil.rmtree(out / "checkpoint")
    (out / f".{'a' * 16}").write_bytes(b"half")
    (out / "models" / f".{'b' * 16}").write_bytes(b"half")
    play(fed, out)
    assert results(out) == results(whole)
    assert not (out / f".{'a' * 16}").exists()


class Killed(BaseException):
    pass


@pytest.mark.parametrize("write", range(1, 40, 3))
def test_a_kill_at_any_write(fed, tmp_path, whole, monkeypatch, write):
    """The process ends at its n-th write, before or after the new file has its name."""
    count = 0
    replace = os.replace

    def dying(source, target, **kwargs):
        nonlocal count
        count += 1
        if count == write and write % 2:
            raise Killed
        replace(source, target, **kwargs)
        if count == write:
            raise Killed

    monkeypatch.setattr(files.os, "replace", dying)
    with pytest.raises(Killed):
        fedkin.run("ditto", fed, rounds=6, out=tmp_path / "run", **{**SETTINGS, "engine": "serial"})
    monkeypatch.setattr(files.os, "replace", replace)
    play(fed, tmp_path / "run")
    assert results(tmp_path / "run") == results(whole)


def test_states_and_history_are_on_the_disk_before_the_manifest_names_them(fed, tmp_path, monkeypatch):
    synced: list[str] = []
    fsync = os.fsync

    def noting(handle: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        fsync(handle)

    order: list[tuple[str, set[str]]] = []
    write_json = checkpoints.write_json

    def writing(path, value, **kwargs):
        if path.name == "manifest.json":
            order.append((path.name, set(synced)))
        write_json(path, value, **kwargs)

    monkeypatch.setattr(os, "fsync", noting)
    monkeypatch.setattr(checkpoints, "write_json", writing)
    fedkin.run("ditto", fed, rounds=2, out=tmp_path, engine="serial", checkpoint_every=1)
    for round, (_, before) in enumerate(order, start=1):
        names = {f"client-{c:06d}-{round:06d}-1.safetensors" for c in range(4)}
        assert {*names, "history.jsonl", "checkpoint"} <= before


# ---- full disks


@pytest.mark.parametrize("engine", ["serial", "pool"])
@pytest.mark.parametrize("name", ["client-000002-000003-1", "server-000004", "manifest.json", "models/"])
def test_a_full_disk_stops_the_run_and_no_client_is_blamed(fed, tmp_path, whole, monkeypatch, name, engine):
    replace = os.replace
    full = tmp_path / "full"
    full.touch()  # seen by the workers too, which are forked

    def no_space(source, target, **kwargs):
        if full.exists() and name in f"{Path(target).parent.name}/{Path(target).name}":
            if name == "manifest.json" and not Path(target).exists():
                return replace(source, target, **kwargs)  # the first one fits
            raise OSError(28, "No space left on device")
        return replace(source, target, **kwargs)

    monkeypatch.setattr(files.os, "replace", no_space)
    with pytest.raises(StorageError, match="No space left on device"):
        play(fed, tmp_path / "run", engine=engine)
    assert not any(
        record.metric in ("dropped", "unmeasured") for record in History.load(tmp_path / "run" / "history.jsonl")
    )
    assert not [p for p in (tmp_path / "run").rglob(".*") if p.name != ".fedkin"], "nothing half-written is left"
    full.unlink()
    play(fed, tmp_path / "run", engine=engine)
    assert results(tmp_path / "run") == results(whole)


def test_a_history_that_cannot_be_written(tmp_path):
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    (tmp_path / "history.jsonl").symlink_to("/dev/full")
    history = History.__new__(History)
    History.__init__(history)
    history._path, history._file = tmp_path / "history.jsonl", open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    with pytest.raises(StorageError, match=r"Cannot write .*history\.jsonl: No space left"):
        history.add(1, 0, "personal", 0.5)
    history._file.close()
    history._file = None


def test_a_client_state_that_cannot_be_read_stops_the_run(fed, tmp_path, monkeypatch):
    """It was damaged after the checkpoint was opened."""
    load = store.load_state

    def damaged_state(path):
        if "client-000001-000002" in path.name:
            raise StorageError(f"Cannot read the state in {path}: bad header")
        return load(path)

    from fedkin.engine import runner

    monkeypatch.setattr(runner, "load_state", damaged_state)
    with pytest.raises(StorageError, match=r"client 1.*Cannot read the state.*repeat the command"):
        play(fed, tmp_path / "run")


# ---- measuring


def test_clients_that_could_not_be_measured_are_said(fed):
    from dataclasses import dataclass

    from fedkin.methods.fedavg import FedAvg

    @dataclass(frozen=True)
    class Fails(FedAvg):
        """Two of the clients cannot make a personal model."""

        def send(self, state, ids):
            return super().send(state, ids)._replace(own=(ids,))

        def received(self, client, message):
            return message.shared[0]

        def personal(self, client, message, trained):
            if int(message.own[0]) in (1, 2):
                raise RuntimeError("no memory for a personal model")
            return message.shared[0]

    result = fedkin.run(Fails(), fed, rounds=3, evaluate_every=0, workers=2)
    assert (result.summary["clients"], result.summary["measured"], result.summary["incomplete"]) == (4, 2, True)
    assert result.summary["unmeasured"] == 2
    assert not list(result.history.select("dropped")), "their replies count all the same"
    during = [(r.round, r.client) for r in result.history.select("unmeasured", scope="participants")]
    assert sorted(during) == [(round, client) for round in range(3) for client in (1, 2)]
    whole = fedkin.run("fedavg", fed, rounds=3, evaluate_every=0, workers=2)
    assert store.equal(result.state, whole.state)
    assert not whole.summary["incomplete"]
    left = fedkin.run("fedavg", fed, rounds=3, leave={0: 3}, arrive={1: 2}, workers=2)
    assert (left.summary["measured"], left.summary["incomplete"]) == (3, False), "who has left is not missing"


def test_the_manifest_verifies_itself(copy):
    manifest = json.loads((copy / "checkpoint/manifest.json").read_text())
    assert checkpoints._signed(manifest) == manifest
    assert checkpoints._signed({**manifest, "round": 3}) != {**manifest, "round": 3}
    assert Checkpoint(copy, manifest).done == 4


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("fedkin", "run", "fedavg", "--lr", "0.1"), "fedkin run fedavg --lr 0.1"),
        (("flwr-serverapp", "--token", "abc", "--insecure"), "flwr-serverapp --token '***' --insecure"),
        (("flwr-serverapp", "--token=abc", "--insecure"), "flwr-serverapp '--token=***' --insecure"),
        (("flwr-serverapp", "--token"), "flwr-serverapp --token"),
    ],
)
def test_the_command_that_is_kept_has_no_secrets(words, shown):
    assert checkpoints.command(words) == shown
