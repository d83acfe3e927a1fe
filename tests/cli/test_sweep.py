"""`fedkin sweep`: chosen on validation examples, never on test examples."""

from __future__ import annotations

import json
import shlex

import pytest

import fedkin
from fedkin.cli import sweep
from tests.cli.conftest import SMALL


def test_the_best_on_validation_is_chosen_and_can_be_run(call, tmp_path):
    words = ["--grid", "mu=0.1,1", "--grid", "lr=0.001,0.3", "--seeds", "2", *SMALL, "--validation", "0.3"]
    code, out, err = call("sweep", "fedprox", *words, "--out", tmp_path / "all", "--lr", "0.7")
    assert code == 0, err
    trials = json.loads((tmp_path / "all" / "sweep.json").read_text())["trials"]
    assert len(trials) == 4
    for trial in trials:
        config = json.loads((tmp_path / "all" / trial["folder"] / "seed-1" / "config.json").read_text())
        assert (config["method"]["mu"], config["training"]["lr"]) == (trial["fields"]["mu"], trial["training"]["lr"])
    assert "test" not in trials[0], "nobody should choose by test examples"
    # by hand: the mean over seeds of the mean over clients, after the last round
    best = max(trials, key=lambda trial: trial["validation"])
    again = []
    for seed in (0, 1):
        clients = fedkin.federate("digits", clients=5, samples_per_client=40, validation=0.3, seed=seed)
        method = fedkin.method("fedprox", **best["fields"])
        result = fedkin.run(method, clients, rounds=2, seed=seed, **best["training"])
        values = list(result.history.values("validation", round=2).values())
        again.append(sum(values) / len(values))
    assert best["validation"] == pytest.approx(sum(again) / 2)
    command = shlex.split(out.split("To run it: ")[1].splitlines()[0])
    assert command[:3] == ["fedkin", "run", f"fedprox,mu={best['fields']['mu']}"]
    assert command[-2:] == ["--lr", str(best["training"]["lr"])]
    assert command.count("--lr") == 1
    assert "--grid" not in command
    assert call(*command[1:], "--quiet")[0] == 0


def test_the_choice_follows_validation_even_where_test_disagrees(call, monkeypatch):
    trials = [
        sweep.Trial({"mu": 1.0}, {}, validation=0.5, test=0.9),
        sweep.Trial({"mu": 2.0}, {}, validation=0.7, test=0.1),
    ]
    monkeypatch.setattr(sweep, "_trials", lambda label, plans, flags: trials)
    code, out, _ = call("sweep", "fedprox", "--grid", "mu=1,2")
    assert code == 0
    assert "Best on validation: mu=2.0. Its test accuracy: 10.00 %." in out
    assert "90.00" not in out
    made = json.loads(call("sweep", "fedprox", "--grid", "mu=1,2", "--json")[1])
    assert made["best"]["fields"] == {"mu": 2.0}
    assert made["command"] == "fedkin run fedprox,mu=2.0"


def test_a_loss_is_minimized(call, tmp_path):
    words = [
        "--grid",
        "lr=0.0001,0.1",
        "--metrics",
        "log_loss",
        "--json",
        "--epochs",
        "2",
        *SMALL,
        "--validation",
        "0.3",
    ]
    code, out, err = call("sweep", "local", *words)
    assert code == 0, err
    made = json.loads(out)
    assert made["best"]["metric"] == "log_loss"
    assert made["best"]["training"] == {"lr": 0.1}, "training lowers the loss"
    values = [trial["validation"] for trial in made["trials"]]
    assert values == sorted(values)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "sweep takes one METHOD"),
        (["local", "fedavg"], "sweep takes one METHOD before the flags; given: local fedavg."),
        (["fedprox"], "needs at least one --grid"),
        (["fedprox", "--grid", "muu=1"], "--grid has no field 'muu'. Did you mean mu?"),
        (["fedprox", "--grid", "mu"], "form field=value,value"),
        (["fedprox", "--grid", "mu=x"], "mu in --grid must be a number; it is 'x'."),
        (["fedprox", "--grid", "mu=1,-1"], "mu=-1.0 must be at least 0"),
        (["fedprox", "--grid", "mu=1", "--validation", "0"], "chooses on validation examples"),
        (["fedprox", "--grid", "mu=1", "--seeds", "0"], "at least one seed"),
    ],
)
def test_mistakes(fails, tmp_path, words, said):
    assert said in fails("sweep", *words, *(["--out", tmp_path / "out"] if words[1:] else []))
    assert not (tmp_path / "out").exists()


def test_the_choice_can_be_named_in_a_comparison(call):
    words = ["--grid", "lr=0.01,0.2", *SMALL, "--validation", "0.3"]
    code, out, err = call("sweep", "fedprox,mu=0.5,epochs=2,lr=0.5", *words)
    assert code == 0, err
    rate = out.split("Best on validation: lr=")[1].split(".  ")[0].split(". ")[0]
    assert "To run it: fedkin run fedprox,mu=0.5,epochs=2 --clients 5" in out
    assert f"In a comparison: fedkin compare local fedprox,mu=0.5,epochs=2,lr={rate} …" in out
