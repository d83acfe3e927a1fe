"""The command line, as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from fedkin.cli import main

pytestmark = pytest.mark.processes

SMALL = ["--clients", "5", "--rounds", "2", "--samples-per-client", "40", "--quiet"]


def call(capsys, *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(list(words))
    out, err = capsys.readouterr()
    return int(caught.value.code or 0), out, err


@pytest.mark.parametrize("words", [["--help"], ["list"], ["list", "methods"]])
def test_help_and_lists_import_nothing_heavy_and_so_are_quick(words):
    command = [sys.executable, "-X", "importtime", "-m", "fedkin", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout
    imported = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert "fedkin" in imported
    assert not imported & {"torch", "scipy", "sklearn", "matplotlib", "pandas", "ray", "flwr", "tyro", "pooch"}


def test_run_prints_a_table(capsys):
    code, out, _ = call(capsys, "run", "fedprox", "--mu", "0.5", *SMALL)
    assert code == 0
    for word in ("fedprox", "personal", "received", "worst 10 %", "5 clients, 2 rounds", "KLD", "simulated time"):
        assert word in out


def test_run_prints_json_and_nothing_else(capsys, tmp_path):
    code, out, err = call(capsys, "run", "fedavg", "--json", "--out", str(tmp_path), *SMALL)
    assert code == 0
    assert err == ""
    summary = json.loads(out)
    assert summary == json.loads((tmp_path / "summary.json").read_text())
    assert summary["method"] == "fedavg"


def test_flags_reach_method_partition_data_and_model(capsys, tmp_path):
    code, _, _ = call(
        capsys, "run", "fedprox", "--mu", "0.25", "--sampling", "size", "--data", "synthetic", "--data.groups", "2",
        "--data.samples", "600", "--partition", "dirichlet", "--partition.alpha", "3", "--model", "fcnn1",
        "--model.width", "0.1", "--lr", "0.2", "--momentum", "0.9", "--out", str(tmp_path), *SMALL,
    )  # fmt: skip
    assert code == 0
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["method"]["mu"] == 0.25
    assert config["method"]["sampling"] == "size"
    assert config["federation"]["data_options"]["groups"] == 2
    assert config["federation"]["partition_options"]["alpha"] == 3
    assert config["model"]["name"] == "fcnn1"
    assert config["model"]["width"] == 0.1
    assert config["training"]["lr"] == 0.2
    assert config["training"]["momentum"] == 0.9


def test_help_of_a_method_names_its_flags(capsys):
    code, out, _ = call(capsys, "run", "fedprox", "--partition", "dirichlet", "--help")
    assert code == 0
    for flag in ("--mu", "--stragglers", "--partition.alpha", "--lr", "--rounds", "--model.width"):
        assert flag in out


def test_compare(capsys, tmp_path):
    names = ["local", "fedavg", "fedprox,mu=1"]
    code, out, _ = call(capsys, "compare", *names, "--seeds", "2", "--out", str(tmp_path), *SMALL)
    assert code == 0
    for word in (*names, "gain over local", "±"):
        assert word in out
    made = json.loads((tmp_path / "comparison.json").read_text())
    assert [line["method"] for line in made["methods"]] == names
    assert made["methods"][0]["gain"] is None
    assert made["methods"][1]["gaining"] + made["methods"][1]["losing"] <= 10
    assert (tmp_path / "fedprox,mu=1" / "seed-1" / "summary.json").exists()
    assert "| fedprox,mu=1 |" in (tmp_path / "comparison.md").read_text()


def test_compare_gain_is_the_mean_difference_of_clients(tmp_path):
    import numpy as np

    import fedkin

    fed = fedkin.federate("digits", clients=6, samples_per_client=60)
    made = fedkin.compare(["local", "fedavg-ft"], fed, rounds=2, lr=0.1, out=tmp_path)
    last = {
        name: fedkin.History.load(tmp_path / name / "seed-0").values("personal", round=2)
        for name in ("local", "fedavg-ft")
    }
    difference = np.array([last["fedavg-ft"][c] - last["local"][c] for c in range(6)])
    line = made.lines[1]
    assert line.gain == pytest.approx(difference.mean())
    assert (line.gaining, line.losing) == ((difference > 0).sum(), (difference < 0).sum())
    assert 0 <= line.p_value <= 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fly"], "There is no command 'fly'"),
        (["run", "fedavgg"], "Did you mean fedavg"),
        (["run", "fedavg", "fedprox"], "fedkin compare"),
        (["run", "fedavg", "--data", "digitz"], "Did you mean digits"),
        (["run", "fedavg", "--partition", "dirichle"], "Did you mean dirichlet"),
        (["run", "fedavg", "--model", "cnn9"], "There is no model 'cnn9'"),
        (["run", "fedavg", "--model", "har"], "har needs windows"),
        (["run", "fedavg", "--rounds", "0"], "rounds=0 must be at least 1"),
        (["run", "fedavg", "--participation", "2"], "participation=2.0 must lie in (0, 1]"),
        (["run", "fedavg", "--clients", "5000"], "take at most"),
        (["run", "fedavg", "--lr", "-1"], "lr=-1.0 must be above 0"),
        (["run", "fedprox", "--mu", "-1"], "mu=-1.0 must be at least 0"),
        (["compare", "local", "local"], "named twice"),
        (["compare", "fedprox,mu"], "field=value"),
        (["compare", "local", "fedprox,muu=1"], "fedprox has no field 'muu'. Did you mean mu? It has mu, stragglers"),
        (["compare", "local,mu=1"], "local has no field 'mu'. It has everyone."),
        (["list", "birds"], "There is no list of 'birds'"),
        (["run", "nowhere.py:Mine"], "There is no file nowhere.py"),
    ],
)
def test_mistakes_are_explained_without_a_stack_trace(capsys, words, said):
    code, out, err = call(capsys, *words)
    assert code == 2
    assert said in err
    assert "Traceback" not in out + err


@pytest.mark.parametrize("label", ["src", "..", "local/..", "fedprox,muu=1", "fedprox,mu=-1", "fedprox,mu"])
def test_a_wrong_method_with_fresh_removes_nothing(capsys, monkeypatch, tmp_path, label):
    project = tmp_path / "project"
    for path in ("src/code.py", "local/mine.txt", "results/notes.txt", "fedprox,muu=1/mine.txt", "fedprox,mu=-1/m.txt"):
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(project)
    for out in (".", "results"):
        code, _, err = call(capsys, "compare", "local", label, "--fresh", "--out", out, *SMALL)
        assert code == 2, err
        assert "Traceback" not in err
        assert sorted(tmp_path.rglob("*")) == before


def test_fresh_compares_again_and_leaves_what_is_not_its_own(capsys, tmp_path):
    words = ["compare", "local", "fedavg", "--out", str(tmp_path / "out"), *SMALL]
    assert call(capsys, *words)[0] == 0
    first = (tmp_path / "out/local/seed-0/history.jsonl").stat().st_mtime_ns
    (tmp_path / "out/local/seed-0/notes.txt").write_text("mine")
    (tmp_path / "out/mine.txt").write_text("mine")
    code, _, err = call(capsys, *words, "--fresh", "--lr", "0.2")
    assert code == 0, err
    assert (tmp_path / "out/local/seed-0/history.jsonl").stat().st_mtime_ns > first
    assert (tmp_path / "out/local/seed-0/notes.txt").read_text() == "mine"
    assert (tmp_path / "out/mine.txt").read_text() == "mine"


def test_own_data_folder(capsys, tmp_path):
    import numpy as np

    rng = np.random.default_rng(0)
    for name in ("north", "south"):
        np.savez(tmp_path / f"{name}.npz", x=rng.normal(size=(40, 3)), y=rng.integers(0, 2, 40))
    out = tmp_path / "run"
    code, _, err = call(capsys, "run", "local", "--data", str(tmp_path), "--rounds", "2", "--out", str(out), "--quiet")
    assert code == 0, err
    assert set(json.loads((out / "models" / "index.json").read_text())) == {"north", "south"}


def test_verify_prints_a_checklist(capsys):
    code, out, _ = call(capsys, "verify", "local")
    assert code == 0
    assert out.count("✓") == 12
    assert "All properties hold." in out


def test_tensorboard(capsys, tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    code, _, err = call(capsys, "run", "fedavg", "--tensorboard", str(tmp_path), *SMALL)
    assert code == 0, err
    assert list(tmp_path.rglob("events.out.*"))


def test_a_tracker_that_is_not_installed_says_how_to_get_it(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    code, _, err = call(capsys, "run", "fedavg", "--wandb", "project", *SMALL[:-1])
    assert code == 2
    assert "pip install 'fedkin[wandb]'" in err


def test_the_flags_that_methods_may_not_use_are_those_of_run():
    from dataclasses import fields

    from fedkin.cli.flags import Setting
    from fedkin.registry import RUN_FLAGS

    assert {f.name for f in fields(Setting)} == set(RUN_FLAGS)
