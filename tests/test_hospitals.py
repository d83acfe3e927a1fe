"""The way of a person with tables at several hospitals: from the files to a model in use."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedkin

COLUMNS = ["age", "sex", "pressure", "pain", "patient_id", "disease"]


def patients(count: int, seed: int, shift: float) -> list[list[str]]:
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(count):
        age, pressure = rng.normal(55 + shift, 9), rng.normal(130 + 3 * shift, 15)
        sex, pain = rng.choice(["female", "male"]), rng.choice(["none", "typical", "atypical"])
        risk = 0.12 * (age - 55 - shift) + 0.03 * (pressure - 130) + 1.5 * (pain == "typical") - 0.6
        sick = rng.random() < 1 / (1 + np.exp(-risk))
        cell = "?" if rng.random() < 0.1 else f"{pressure:.0f}"
        rows.append([f"{age:.1f}", str(sex), cell, str(pain), f"secret-{seed}-{i}", "yes" if sick else "no"])
    return rows


def write(path: Path, rows: list[list[str]], order: list[str] = COLUMNS) -> None:
    index = [COLUMNS.index(name) for name in order]
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(order)
        writer.writerows([[row[i] for i in index] for row in rows])


def fedkin_command(*words: object, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "fedkin", *map(str, words)], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "secret-" not in done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow  # tests/test_tutorial.py walks the same way in one process
@pytest.mark.processes
def test_the_whole_way(tmp_path):
    (tmp_path / "hospitals").mkdir()
    for seed, (name, count) in enumerate({"north": 120, "south": 90, "west": 70}.items()):
        order = COLUMNS if name != "west" else COLUMNS[::-1]
        write(tmp_path / "hospitals" / f"{name}.csv", patients(count, seed, 4.0 * seed), order)
    table = ("--label", "disease", "--ignore", "patient_id")
    shown = fedkin_command(
        "compare", "local", "fedavg", "fedper", "--data", "hospitals", *table, "--metrics", "auc", "accuracy",
        "--headline", "auc", "--rounds", "4", "--out", "results", "--quiet", cwd=tmp_path,
    )  # fmt: skip
    assert "auc" in shown
    for name in ("north", "south", "west"):  # a line for each hospital, chosen on validation
        line = next(line for line in shown.splitlines() if line.startswith(f"{name}: "))
        assert "chosen on " in line
        assert line in (tmp_path / "results" / "comparison.md").read_text()
    assert "Which method at which client" in shown
    again = ["compare", "local", "fedavg", "fedper", "--data", "hospitals", *table, "--metrics", "auc", "accuracy",
             "--headline", "auc", "--rounds", "4", "--out", "results", "--quiet", "--format"]  # fmt: skip
    assert fedkin_command(*again, "latex", cwd=tmp_path) == (tmp_path / "results" / "comparison.tex").read_text()
    assert fedkin_command(*again, "clients-csv", cwd=tmp_path) == (tmp_path / "results" / "clients.csv").read_text()
    run = fedkin.load(tmp_path / "results" / "fedper" / "seed-0")
    assert run.clients == ("north", "south", "west")
    assert run.summary["headline"]["metric"] == "auc"
    assert 0 <= run.summary["personal"]["mean"] <= 1
    assert "accuracy" in run.summary["metrics"]

    # next week's patients, in another column order, without labels; a level nobody has seen
    new = patients(7, 99, 0.0)
    new[3][3] = "strange"
    write(tmp_path / "new.csv", new, ["pain", "pressure", "sex", "age", "patient_id"])
    folder = "results/fedper/seed-0"
    fedkin_command("predict", folder, "--client", "north", "--data", "new.csv", "--out", "found.csv", cwd=tmp_path)
    found = list(csv.DictReader((tmp_path / "found.csv").read_text().splitlines()))
    assert [line["prediction"] for line in found] == run.predict("north", tmp_path / "new.csv").tolist()
    assert {line["prediction"] for line in found} <= {"yes", "no"}
    for line in found:
        assert float(line["probability of no"]) + float(line["probability of yes"]) == pytest.approx(1, abs=1e-4)

    # a fourth hospital
    write(tmp_path / "east.csv", patients(60, 7, 2.0))
    shown = fedkin_command("join", folder, "--data", "east.csv", "--out", "east", cwd=tmp_path)
    assert "east: expect auc " in shown
    fedkin_command("predict", "east", "--client", "east", "--data", "new.csv", "--out", "east.out.csv", cwd=tmp_path)
    assert len((tmp_path / "east.out.csv").read_text().splitlines()) == 8
    assert run.clients == fedkin.load(tmp_path / folder).clients, "the run stays as it is"

    # the same numbers outside fedkin
    fedkin_command("export", folder, "--client", "north", "--out", "north.onnx", cwd=tmp_path)
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    session = runtime.InferenceSession(str(tmp_path / "north.onnx"))
    x = run.inputs(tmp_path / "new.csv", "north").numpy()
    scores = session.run(None, {session.get_inputs()[0].name: x})[0]
    np.testing.assert_allclose(scores, run.predict_scores("north", tmp_path / "new.csv"), atol=1e-5)
    assert "secret-" not in json.dumps(run.config)


def test_hospitals_are_the_clients_and_keep_their_names(real_data):
    real_data("heart/processed.cleveland.data")
    heart = fedkin.federate("heart")
    assert heart.names == ("cleveland", "hungarian", "switzerland", "va")
    run = fedkin.run("fedavg-ft", heart, rounds=3, engine="serial", task=fedkin.Classification(metrics=("auc", "f1")))
    assert set(run.clients) == set(heart.names)
    assert run.summary["headline"]["metric"] == "auc"
