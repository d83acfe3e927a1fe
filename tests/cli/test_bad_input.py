"""Input that once ended in a traceback, or in a wrong result without a word: now one line and exit code 2."""

from __future__ import annotations

import json

import numpy as np
import pytest

import fedkin
from fedkin.registry import convert
from tests.cli.conftest import SMALL


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "fedavg", "--model.width", "1e12", *SMALL], "The model mlp would take"),
        (["run", "fedavg", "--model.width", "inf", *SMALL], "width=inf"),
        (["run", "fedavg", "--device-rate", "1e-320", *SMALL], "device_rate=1e-320 must lie in [1, 1e+18]"),
        (["run", "fedavg", "--spread", "1e12", *SMALL], "spread=1000000000000.0 must lie in [0, 10]"),
        (["run", "fedavg", "--lr", "nan", *SMALL], "lr=nan must be finite"),
        (["compare", "fedprox,mu=inf", *SMALL], "mu=inf must be finite"),
        (["compare", "fedprox,mu=[1]", *SMALL], "mu of fedprox must be a number; it is a list"),
        (["compare", "fedprox,mu=" + "[" * 100_000, *SMALL], "mu of fedprox must be a number"),
        (["compare", "local", "--seeds", "0", *SMALL], "at least one seed"),
        (["watch", ".", "--port", "99999"], "port=99999 must lie in [0, 65535]"),
    ],
)
def test_one_line(fails, words, said):
    assert said in fails(*words)


@pytest.mark.parametrize("value", [[1], {}, None])
def test_values_from_json_of_another_type(value):
    with pytest.raises(ValueError, match="--rounds must be a whole number; it is"):
        convert(int, value, "--rounds")


@pytest.mark.parametrize("content", ["[" * 100_000, "{", "[1]", '{"federation": 1, "options": 2, "method": 3}'])
def test_a_damaged_config_file(fails, tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    assert "config.json" in fails("run", "--config", tmp_path / "config.json")


def test_clients_that_all_fail(fails):
    """The traceback at the client is shown where one asks for it."""
    said = fails("run", "fedavg", "--lr", "1e30", "--engine", "serial", *SMALL)
    assert "NaN or infinity" in said
    assert "FEDKIN_TRACEBACK=1" in said


def test_rows_of_a_csv_that_begin_with_a_hash_are_examples(tmp_path):
    for name in ("north", "south"):
        rows = [f"#{i % 3},{i},{i % 2}" for i in range(12)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["kind,height,y", *rows, ""]))
    assert len(fedkin.from_folder(tmp_path).y) == 24


def test_labels_of_an_npz_that_are_texts(tmp_path):
    for name, labels in (("north", np.arange(12) % 3), ("south", np.full(12, "other"))):
        np.savez(tmp_path / f"{name}.npz", x=np.zeros((12, 4), "float32"), y=labels)
    assert fedkin.from_folder(tmp_path).classes == 4


def test_a_report_of_a_history_that_somebody_wrote(fails, call, tmp_path):
    code, _, _ = call("run", "cfl,eps2=inf", "--out", tmp_path / "run", *SMALL)
    assert code == 0
    assert call("report", tmp_path / "run")[0] == 0, "a setting may be infinite"
    (tmp_path / "run" / "checksums.json").unlink()
    history = tmp_path / "run" / "history.jsonl"
    sound = history.read_text()
    for record, said in (
        ({"round": 0, "client": 10**12, "metric": "labels", "value": 1}, "clients or rounds that do not exist"),
        ({"round": 10**12, "client": 0, "metric": "flops", "value": 1}, "clients or rounds that do not exist"),
        ({"round": "x", "client": 0, "metric": "flops", "value": 1}, "is damaged: it is not a record"),
        ({"round": 1, "client": None, "metric": "mixing", "value": 3}, "content that fedkin did not write"),
    ):
        history.write_text(sound + json.dumps(record) + "\n")
        assert said in fails("report", tmp_path / "run")


def test_a_run_is_verified_when_it_is_used(fails, call, tmp_path):
    call("run", "fedavg", "--out", tmp_path / "run", *SMALL)
    np.save(tmp_path / "new.npy", np.zeros((2, 1, 8, 8), "float32"))
    words = ("predict", tmp_path / "run", "--client", "client 0", "--data", tmp_path / "new.npy")
    assert call(*words)[0] == 0
    for name in ("config.json", "models/index.json", next((tmp_path / "run/models").glob("*.safetensors")).name):
        path = next((tmp_path / "run").rglob(name.split("/")[-1]))
        content = path.read_bytes()
        path.write_bytes(content.replace(b" ", b"  ", 1) if path.suffix == ".json" else content[:-1] + b"\x01")
        assert "changed after the run had finished" in fails(*words)
        path.write_bytes(content)
    config = json.loads((tmp_path / "run/config.json").read_text())
    (tmp_path / "run/checksums.json").unlink()
    config["method"] = {"class": "subprocess:getoutput", "cmd": "true"}
    (tmp_path / "run/config.json").write_text(json.dumps(config))
    assert "is not a method" in fails(*words)
