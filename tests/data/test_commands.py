"""Own tables, hospitals and feature shift from the command line."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedkin.cli.main import main


def fedkin(*words: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main([*words, "--quiet", "--rounds", "1"])
    return int(caught.value.code or 0)


@pytest.fixture
def hospitals(tmp_path):
    rng = np.random.default_rng(0)
    folder = tmp_path / "hospitals"
    folder.mkdir()
    for name in ("north", "south"):
        rows = [
            f"P{rng.integers(10**6)};{rng.normal(50, 9):.1f}".replace(".", ",") + f";{rng.integers(1, 3)};{label}"
            for label in ["no", "yes"] * 20
        ]
        (folder / f"{name}.csv").write_text("patient_id;age;sex;disease\n" + "\n".join(rows))
    return folder


def test_a_folder_of_tables(hospitals, tmp_path, capsys):
    out = tmp_path / "run"
    words = ["--data", str(hospitals), "--label", "disease", "--ignore", "patient_id", "--categorical", "sex"]
    assert fedkin("run", "fedavg", *words, "--fit", "sites", "--out", str(out)) == 0
    capsys.readouterr()
    stored = json.loads((out / "config.json").read_text())["federation"]
    assert stored["partition"] == "by_group"
    assert stored["fit"] == "sites"
    assert stored["data_options"]["ignore"] == ["patient_id"]
    columns = stored["preprocessing"]["columns"]
    assert [(c["name"], c["levels"]) for c in columns] == [("age", []), ("sex", ["1", "2"])]
    assert stored["preprocessing"]["classes"] == ["no", "yes"]
    names = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    assert any("north" in str(record) for record in names)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--label", "disease", "--ignore", "patient_id", "--clients", "8"], "the data has 2 clients (north, south)"),
        (["--label", "disease", "--ignore", "patient_id", "--partition", "iid"], "partition='iid' would spread"),
        (["--label", "disease"], "column 'patient_id' has 80 different texts"),
        ([], "none of its 4 columns is called 'y'"),
    ],
)
def test_what_a_folder_is_refused_for(hospitals, capsys, words, text):
    code = fedkin("run", "fedavg", "--data", str(hospitals), *words)
    error = capsys.readouterr().err
    assert code == 2
    assert text in error


def test_table_flags_are_for_folders(capsys):
    assert fedkin("run", "fedavg", "--data", "digits", "--label", "disease") == 2
    assert "--label is for a folder of your own data; --data digits is not one" in capsys.readouterr().err


def test_hospitals_by_name(real_data, capsys):
    folder = real_data("heart/processed.va.data")
    assert fedkin("run", "fedavg", "--data", "heart", "--data-dir", str(folder), "--json") == 0
    assert json.loads(capsys.readouterr().out)["clients"] == 4
    assert fedkin("run", "fedavg", "--data", "heart", "--data-dir", str(folder), "--clients", "8") == 2
    assert "clients=8: the data has 4 clients (cleveland, hungarian, switzerland, va)" in capsys.readouterr().err


def test_feature_shift_and_batch_norm(capsys):
    words = [
        "--partition",
        "feature_shift",
        "--partition.labels",
        "dirichlet",
        "--partition.alpha",
        "1",
        "--clients",
        "3",
    ]
    assert fedkin("run", "fedbn", *words, "--model", "cnn_bn", "--model.width", "0.25", "--json") == 0
    assert json.loads(capsys.readouterr().out)["clients"] == 3
