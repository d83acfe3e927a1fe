"""Predictions as a table, with columns of the input beside them."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

import fedkin
from fedkin.cli import main

IDS = ["007", "1e5", "-0", "9007199254740993", "a, b"]  # what a number would not keep


def write(path: Path, rows: int, seed: int, *, ids: bool = True, order: str = "age sex") -> None:
    rng = np.random.default_rng(seed)
    lines = []
    for k in range(rows):
        cells = {"age": f"{rng.normal(50, 9):.1f}", "sex": "fm"[k % 2], "y": ["no", "yes"][k % 3 == 0]}
        own = [cells[name] for name in order.split()] + ([f'"{IDS[k % len(IDS)]}"'] if ids else [])
        lines.append(",".join(own))
    path.write_text(",".join([*order.split(), *(["patient_id"] if ids else [])]) + "\n" + "\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    for seed, name in enumerate(("north", "south")):
        write(folder / f"{name}.csv", 30, seed, order="age sex y")
    clients = fedkin.federate(fedkin.from_folder(folder, ignore="patient_id"))
    return fedkin.run("fedavg", clients, rounds=1, engine="serial", out=tmp_path_factory.mktemp("run") / "run")


def predict(*words: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["predict", *map(str, words)])
    return int(ended.value.code or 0)


def test_a_column_that_training_ignored_stands_beside_the_predictions(run, tmp_path):
    write(tmp_path / "new.csv", 5, 9, order="sex age")
    out = tmp_path / "found.csv"
    assert predict(run.out, "--client", "north", "--data", tmp_path / "new.csv", "--keep", "patient_id", "sex",
                   "--out", out) == 0  # fmt: skip
    found = list(csv.DictReader(out.read_text().splitlines()))
    assert list(found[0]) == ["patient_id", "sex", "prediction", "probability of no", "probability of yes"]
    assert [line["patient_id"] for line in found] == IDS
    assert [line["sex"] for line in found] == list("fmfmf")
    assert [line["prediction"] for line in found] == run.predict("north", tmp_path / "new.csv").tolist()


def test_kept_columns_in_python_from_frames_and_parquet(run, tmp_path):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    frame = pandas.DataFrame({
        "sex": ["f", "m"], "patient_id": [9007199254740993, 2], "age": [40.5, 61.0],
        "seen": pandas.to_datetime(["2024-01-02", "2024-01-03"]),
    })  # fmt: skip
    frame.to_parquet(tmp_path / "new.parquet")
    for given in (frame, tmp_path / "new.parquet", str(tmp_path / "new.parquet")):
        table = run.predictions("south", given, keep=["patient_id", "seen"])
        assert table["patient_id"] == [9007199254740993, 2]
        assert [str(value)[:10] for value in table["seen"]] == ["2024-01-02", "2024-01-03"]
        assert table["prediction"] == run.predict("south", given).tolist()
        assert list(run.predictions("south", given)) == ["prediction", "probability of no", "probability of yes"]
    assert run.predictions("south", frame, keep="patient_id")["patient_id"] == [9007199254740993, 2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--keep", "patient"), "new.csv: there is no column 'patient' to keep"),
        (("--keep", "patient_id,sex"), "give several names with spaces between them"),
    ],
)
def test_a_column_that_is_not_there_is_named_and_no_cell_is_shown(run, tmp_path, capsys, words, message):
    write(tmp_path / "new.csv", 5, 9)
    assert predict(run.out, "--client", "north", "--data", tmp_path / "new.csv", *words) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert not any(name in printed.out + printed.err for name in IDS)


def test_what_cannot_be_kept_is_refused(run, tmp_path):
    (tmp_path / "new.csv").write_text("age,sex,prediction\n1,f,mine\n")
    with pytest.raises(ValueError, match="keep names a column 'prediction'"):
        run.predictions("north", tmp_path / "new.csv", keep="prediction")
    with pytest.raises(ValueError, match="these examples are an array"):
        run.predictions("north", np.zeros((1, 3), np.float32), keep="age")


def test_a_file_of_the_users_is_not_replaced_and_predictions_are(run, tmp_path, capsys):
    write(tmp_path / "new.csv", 5, 9, order="sex age")
    out, words = tmp_path / "table.csv", (run.out, "--client", "north", "--data", tmp_path / "new.csv", "--out")
    out.write_text("age,sex\n1,f\n")
    assert predict(*words, out) == 2
    assert "table.csv is there, and fedkin did not write it. Name another file." in capsys.readouterr().err
    assert out.read_text() == "age,sex\n1,f\n"
    assert predict(*words, tmp_path) == 2
    out.unlink()
    assert [predict(*words, out), predict(*words, out)] == [0, 0]
