"""`fedkin tune`: the search space from the annotations, the choice on validation, and going on after a stop."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from fedkin.cli import tune
from fedkin.methods import method
from fedkin.protocol import Training

optuna = pytest.importorskip("optuna", reason="Optuna is not installed: pip install 'fedkin[tune]'")

SMALL = ["--clients", "3", "--samples-per-client", "40", "--rounds", "1", "--engine", "serial", "--quiet"]
WORDS = ["tune", "fedprox", "--budget", "3", *SMALL]


def test_ranges_come_from_the_annotations():
    space = tune.search_space(method("fedprox"), Training(), ())
    assert space["lr"] == tune.Range(0.005, 0.5, log=True)
    assert space["mu"].log
    assert (space["mu"].low, space["mu"].high) == pytest.approx((method("fedprox").mu / 10, method("fedprox").mu * 10))
    every = {name: tune.search_space(method(name), Training(), ()) for name in ("ifca", "fedfomo", "dcpfl", "fedamp")}
    assert every["ifca"] == {"lr": space["lr"], "clusters": tune.Range(2, 8, whole=True)}, "choices are left alone"
    assert every["fedfomo"]["explore"] == tune.Range(0.0, 1.0)
    assert "tau" not in every["dcpfl"], "0 means something else there"
    with pytest.raises(Exception, match=r"--fields has no field 'muu'. Did you mean mu\?"):
        tune.search_space(method("fedprox"), Training(), ("muu",))
    asked = tune.search_space(method("ifca"), Training(), ("averaging", "batch-size"))
    assert asked["averaging"].choices == ("model", "gradient")
    assert asked["batch_size"] == tune.Range(8, 32, whole=True)


@pytest.mark.parametrize("name", ["local", "fedavg", "fedamp", "clusterfl", "pfedgat", "dcpfl", "pflic", "fedcedar"])
def test_every_range_holds_its_default_and_is_allowed(name):
    made = method(name)
    for field, values in tune.search_space(made, Training(), ()).items():
        now = getattr(made, field) if hasattr(made, field) else getattr(Training(), field)
        assert values.low <= now <= values.high
        for end in (values.low, values.high):
            if hasattr(made, field) and name != "clusterfl":  # whose fields must fit together
                type(made)(**{field: int(end) if values.whole else end})


def test_it_chooses_on_validation_and_prints_the_command(call, tmp_path):
    code, out, err = call(*WORDS, "--out", str(tmp_path / "t"), "--json")
    assert code == 0, err
    found = json.loads(out)
    assert len(found["trials"]) == 3
    assert found["best"]["validation"] == max(trial["validation"] for trial in found["trials"])
    assert all("test" not in trial for trial in found["trials"])
    default = {"fields": {"mu": method("fedprox").mu}, "training": {"lr": 0.05}}
    assert any(
        t["training"] == default["training"] and t["fields"]["mu"] == default["fields"]["mu"] for t in found["trials"]
    )
    words = shlex.split(found["command"])
    assert words[:2] == ["fedkin", "run"]
    assert "--budget" not in words
    assert "--out" not in words
    code, shown, err = call(*words[1:], "--json")
    assert code == 0, err
    assert json.loads(shown)["personal"]["mean"] == pytest.approx(found["best"]["test"])


def test_a_stopped_search_goes_on_and_gives_the_same(call, tmp_path, monkeypatch):
    whole = json.loads(call(*WORDS, "--out", str(tmp_path / "whole"), "--json")[1])
    stop, runs = tune._objective.__call__, []

    def stopping(self, values, number):
        runs.append(dict(values))
        if len(runs) == 2:
            raise KeyboardInterrupt
        return stop(self, values, number)

    monkeypatch.setattr(tune._objective, "__call__", stopping)
    assert call(*WORDS, "--out", str(tmp_path / "t"))[0] == 130
    code, out, err = call(*WORDS, "--out", str(tmp_path / "t"), "--json")
    assert code == 0, err
    assert len(runs) == 4, "one before the stop, the stopped one twice, one after"
    assert runs[1] == runs[2]
    assert json.loads(out)["trials"] == whole["trials"]
    call(*WORDS, "--out", str(tmp_path / "t"), "--json")
    assert len(runs) == 4, "a finished search is not done again"


def test_the_folder_is_checked(call, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    code, _, err = call(*WORDS, "--out", str(tmp_path))
    assert code == 2
    assert "holds files that fedkin did not write" in err
    assert [path.name for path in Path(tmp_path).iterdir()] == ["mine.txt"]


def test_what_is_wrong_is_said(call, monkeypatch):
    assert "takes one METHOD" in call("tune", "a", "b")[2]
    assert "--budget 0 must be at least 1" in call("tune", "fedprox", "--budget", "0")[2]
    assert "chooses on validation examples" in call("tune", "fedprox", "--validation", "0")[2]
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    code, _, err = call(*WORDS)
    assert (code, err.strip()) == (
        2,
        "fedkin: tune needs Optuna: pip install 'fedkin[tune]'. Without it: fedkin sweep METHOD --grid …",
    )
