"""Own tables, hospitals and feature shift from the command line."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedkin.cli.main import main
from fedkin.results.run import load


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
        ([], "none of the 4 columns is called 'y'"),
    ],
)
def test_what_a_folder_is_refused_for(hospitals, capsys, words, text):
    code = fedkin("run", "fedavg", "--data", str(hospitals), *words)
    error = capsys.readouterr().err
    assert code == 2
    assert text in error


def test_metrics_with_commas(hospitals, tmp_path, capsys):
    words = ["--data", str(hospitals), "--label", "disease", "--ignore", "patient_id", "--out", str(tmp_path / "run")]
    assert fedkin("run", "fedavg", *words, "--metrics", "auc,f1", "--headline", "auc") == 0
    assert json.loads((tmp_path / "run" / "config.json").read_text())["task"]["metrics"] == ["auc", "f1"]
    capsys.readouterr()
    assert fedkin("run", "fedavg", *words, "--metrics", "mae") == 2
    assert "mae is for a regression: task='regression', --task regression." in capsys.readouterr().err


def test_a_regression_from_a_table_whatever_its_unit(tmp_path, capsys):
    """Days in one folder, seconds in the other: without a scale of its own, the second would diverge."""
    rng = np.random.default_rng(1)
    found = {}
    for unit, factor in {"days": 1, "seconds": 86400}.items():
        folder = tmp_path / unit
        folder.mkdir()
        for name in ("north", "south"):
            age = rng.permutation(40) + 30.5
            rows = [f"{a},{factor * (3 + a / 10)}" for a in np.sort(age)]
            (folder / f"{name}.csv").write_text("age,stay\n" + "\n".join(rows))
        out = tmp_path / f"run {unit}"
        words = ["--data", str(folder), "--label", "stay", "--task", "regression", "--metrics", "mae,r2"]
        assert fedkin("run", "fedavg", *words, "--epochs", "20", "--out", str(out)) == 0
        run = load(out)
        (tmp_path / "new.csv").write_text("age\n40\n60\n")
        found[unit] = run.summary["personal"]["mean"], run.predict("north", tmp_path / "new.csv") / factor
        np.testing.assert_allclose(run.predict_scores("north", tmp_path / "new.csv")[:, 0] / factor, found[unit][1])
        np.testing.assert_allclose(
            run.model("north")(run.inputs(tmp_path / "new.csv", "north")).detach()[:, 0] / factor, found[unit][1]
        )
    capsys.readouterr()
    assert found["seconds"][0] / 86400 == pytest.approx(found["days"][0], rel=1e-3)
    assert found["days"][0] < 1, "in days: the ages alone would give it exactly"
    np.testing.assert_allclose(found["days"][1], [7, 9], atol=1)
    np.testing.assert_allclose(found["seconds"][1], found["days"][1], rtol=1e-3)


def test_several_labels_of_a_table(tmp_path, capsys):
    folder = tmp_path / "hospitals"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name, order in {"north": "age,stroke,fall", "south": "fall,age,stroke"}.items():
        rows = [{"age": str(a), "stroke": "yes" if a > 60 else "no", "fall": str(i % 2)}
                for i, a in enumerate(rng.normal(60, 9, 50).round(1))]  # fmt: skip
        lines = [",".join(row[column] for column in order.split(",")) for row in rows]
        (folder / f"{name}.csv").write_text("\n".join([order, *lines]))
    words = ["--data", str(folder), "--label", "stroke", "fall"]
    out = tmp_path / "run"
    assert fedkin("run", "fedavg", *words, "--task", "multilabel", "--metrics", "f1,auc", "--out", str(out)) == 0
    (tmp_path / "new.csv").write_text("age\n40\n80\n")
    run = load(out)
    np.testing.assert_array_equal(run.predict("north", tmp_path / "new.csv").shape, (2, 2))
    _, y = run.examples_of(folder / "south.csv")
    assert y[:2, 1].tolist() == [0, 1]
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["predict", str(out), "--client", "north", "--data", str(tmp_path / "new.csv")])
    head = capsys.readouterr().out.splitlines()[0]
    assert head == "prediction of stroke,prediction of fall,probability of stroke,probability of fall"
    assert fedkin("run", "fedavg", *words) == 2
    assert "several labels: say whether each is there or not" in capsys.readouterr().err
    assert fedkin("run", "fedavg", "--data", str(folder), "--label", "age", "--task", "multilabel") == 2
    assert (
        "column 'age', rows 2, 3, 4, 5, 6 and 45 more: one label of several must be 0 or 1" in capsys.readouterr().err
    )
    assert fedkin("compare", "local", "knnper", *words, "--task", "multilabel", "--out", str(tmp_path / "all")) == 2
    assert "KNNPer needs classes" in capsys.readouterr().err
    assert not (tmp_path / "all" / "local").exists(), "before any method has run"


def test_table_flags_are_for_folders(capsys):
    assert fedkin("run", "fedavg", "--data", "digits", "--label", "disease") == 2
    assert "--label is for a folder of your own data; --data digits is a built-in data set" in capsys.readouterr().err


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
