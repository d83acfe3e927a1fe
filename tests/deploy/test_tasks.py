"""Deployment follows the run's task: regression and several labels as well as classes."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedkin[flower]'")

import fedkin
from fedkin.cli import main
from fedkin.deploy import codec
from fedkin.deploy.codec import Answer, Malformed, SiteInfo
from fedkin.deploy.plan import read
from fedkin.deploy.scaffold import Init, init
from fedkin.deploy.site import SiteConfig
from fedkin.engine.runner import ClientError
from fedkin.task import MultiLabel, Regression
from tests.deploy.test_server import NAMES, World, _clock, assert_same  # noqa: F401  (a fixture)

pytestmark = pytest.mark.processes
SECRET = "73123.25"  # a target in one row of one site


@pytest.fixture(scope="module")
def numbers(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("numbers")
    rng = np.random.default_rng(0)
    for part, name in enumerate(NAMES):
        x = rng.normal(size=(60 + 10 * part, 4)).astype(np.float32)
        np.savez(folder / f"{name}.npz", x=x, y=x[:, 0] - x[:, part % 2])
    return folder


@pytest.fixture(scope="module")
def several(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("several")
    rng = np.random.default_rng(0)
    for name in NAMES:
        x = rng.normal(size=(60, 4)).astype(np.float32)
        np.savez(folder / f"{name}.npz", x=x, y=(x[:, :3] > 0.3).astype(int))
    return folder


@pytest.fixture(scope="module")
def costs(tmp_path_factory) -> Path:
    """Tables whose targets are in the ten thousands."""
    folder = tmp_path_factory.mktemp("costs")
    rng = np.random.default_rng(0)
    for part, name in enumerate(NAMES):
        rows = []
        for k in range(60):
            age = rng.normal(50, 10)
            cost = SECRET if (name, k) == ("south", 7) else f"{70_000 + 1000 * part + 300 * (age - 50):.2f}"
            rows.append(f"{age:.3f},{'fm'[k % 2]},{cost}")
        (folder / f"{name}.csv").write_text("age,sex,cost\n" + "\n".join(rows) + "\n")
    return folder


def world(tmp: Path, data: Path, task: str, *, site: dict[str, Any] | None = None, **config: Any) -> World:
    made = World(tmp, data, task__kind=task, **{"method__name": "fedavg", **config})
    for name in NAMES:
        path = next(data.glob(f"{name}.*"))
        made.grid.homes[made.node[name]] |= {"task": task, "data": str(path), **(site or {})}
    return made


def inside(data: Path, kind: str, **settings: Any):
    federation = fedkin.federate(fedkin.from_folder(data, task=kind), partition="by_group")
    return fedkin.run("fedavg", federation, rounds=2, evaluate_every=0, **settings)


def test_a_regression_gives_the_same_numbers_as_in_process(tmp_path, numbers, capsys):
    task = Regression(metrics=("mae", "r2"))
    there = world(tmp_path, numbers, "regression", task__metrics="mae r2").serve()
    assert_same(there.history, inside(numbers, "regression", task=task).history)
    assert there.summary["headline"] == {"metric": "mae", "higher_is_better": False, "percent": False}
    assert "mae: personal" in capsys.readouterr().out


def test_several_labels_give_the_same_numbers_as_in_process(tmp_path, several):
    task = MultiLabel(metrics=("f1", "auc"))
    there = world(tmp_path, several, "multilabel", task__metrics="f1 auc").serve()
    assert_same(there.history, inside(several, "multilabel", task=task).history)
    assert there.config["inputs"]["outputs"] == 3


def test_sites_agree_on_the_units_of_a_regression(tmp_path, costs, capsys):
    made = world(tmp_path, costs, "regression", site={"label": "cost", "share": "sites"}, run__fit="sites",
                 run__rounds=15)  # fmt: skip
    there = made.serve()
    whole = fedkin.federate(fedkin.from_folder(costs, label="cost", task="regression"), fit="sites")
    here = fedkin.run("fedavg", whole, rounds=2, evaluate_every=0).task
    assert there.task.center == pytest.approx(here.center)
    assert there.task.scale == pytest.approx(here.scale)
    assert there.summary["personal"]["mean"] < 0.7 * there.task.scale[0], "it learned something, in the targets' units"
    # the model on the site's disk predicts in these units too, and no target is where it should not be
    (folder,) = (tmp_path / "south").glob("*/south")
    found = fedkin.load(folder).predict("south", costs / "south.csv")
    assert 60_000 < found.mean() < 80_000
    printed = capsys.readouterr()
    kept = "".join(p.read_text() for p in (tmp_path / "out").rglob("*.json*"))
    assert SECRET not in printed.out + printed.err + kept


def test_means_of_targets_stay_at_sites_that_share_no_means(tmp_path, costs, capsys):
    made = world(tmp_path, costs, "regression", site={"label": "cost", "share": "each"}, run__fit="each")
    with pytest.raises(ClientError, match="NaN or infinity"):  # numbers of 70,000 without a scale
        made.serve()
    assert "targets" not in json.loads((tmp_path / "out" / "preprocessing.json").read_text())
    assert "the targets are learned in their own units" in capsys.readouterr().out


def test_center_and_scale_may_be_given_by_the_run(tmp_path, costs, capsys):
    given = {"task__center": "70000", "task__scale": "3000"}
    run = world(tmp_path, costs, "regression", site={"label": "cost"}, **given).serve()
    assert (run.task.center, run.task.scale) == ((70000.0,), (3000.0,))
    (folder,) = (tmp_path / "south").glob("*/south")
    assert 60_000 < fedkin.load(folder).predict("south", costs / "south.csv").mean() < 80_000
    assert "own units" not in capsys.readouterr().out


# ---- sites that disagree
def test_a_site_with_another_task_is_named_at_once(tmp_path, several):
    made = world(tmp_path, several, "multilabel", run__wait=300)
    made.grid.homes[made.node["south"]]["task"] = "regression"
    with pytest.raises(RuntimeError, match=r"south cannot take part: its targets are those of a regression"):
        made.serve()


def test_sites_with_other_numbers_of_targets_are_refused(tmp_path, several):
    made = world(tmp_path, several, "multilabel")
    with np.load(several / "west.npz") as arrays:
        np.savez(tmp_path / "west.npz", x=arrays["x"], y=arrays["y"][:, :2])
    made.grid.homes[made.node["west"]]["data"] = str(tmp_path / "west.npz")
    with pytest.raises(ValueError, match=r"different targets .*west: multilabel, 2"):
        made.serve()


def test_targets_in_another_order_are_refused(tmp_path):
    for name in NAMES:
        header = "x,a,b" if name != "west" else "x,b,a"
        rows = "\n".join(f"{k},{k % 2},{k % 3 > 0:d}" for k in range(40))
        (tmp_path / f"{name}.csv").write_text(f"{header}\n{rows}\n")
    for fit in ("", "each"):
        made = world(tmp_path / f"at {fit}", tmp_path, "multilabel", site={"label": "a, b", "share": fit}, run__fit=fit)
        made.grid.homes[made.node["west"]]["label"] = "b, a"
        with pytest.raises(ValueError, match=r"columns differ in name or order|other names or another order"):
            made.serve()


def test_a_site_does_nothing_for_a_run_of_another_task(tmp_path, numbers):
    """The server asks all the same: the site looks for itself."""
    made = world(tmp_path, numbers, "regression", run__rounds=1)
    made.grid.config = {key: value for key, value in made.config.items() if key != "task.kind"}  # as the sites get it
    with pytest.raises(Exception, match=r"has the targets of a regression; the run's task is classification"):
        made.serve()


def test_a_task_of_ones_own_must_be_allowed_by_the_site(tmp_path, numbers):
    made = world(tmp_path, numbers, "regression", run__rounds=1)
    made.grid.config = {**made.config, "task.kind": "fedkin.task:Regression"}
    with pytest.raises(Exception, match=r"task\.kind='fedkin\.task:Regression' is not fedkin's own"):
        made.serve()


# ---- ranges
@pytest.mark.parametrize(
    ("task", "scores"),
    [
        (Regression(metrics=("rmse", "r2")), {"personal": -0.5}),
        (Regression(metrics=("rmse", "r2")), {"personal_r2": 1.5}),
        (Regression(metrics=("rmse", "r2")), {"personal": 1e31}),
        (Regression(), {"personal_accuracy": 0.5}),
        (MultiLabel(), {"personal": 1.5}),
    ],
)
def test_scores_outside_the_metrics_range_are_refused(task, scores):
    answer = Answer("north", False, 0.0, 0.0, "", "", "")
    with pytest.raises(Malformed, match="score"):
        codec.decode_answer(codec.encode_answer(answer, (), scores), task)
    fine = {"personal": 0.5, **({"personal_r2": -3.0} if "r2" in task.metrics else {})}
    assert codec.decode_answer(codec.encode_answer(answer, (), fine), task)[2] == fine


@pytest.mark.parametrize(
    "changes", [{"classes": 3}, {"outputs": 0}, {"outputs": 10**6}, {"task": "ranking"}, {"task": "classification"}]
)
def test_a_regressions_card_out_of_range_is_refused(changes):
    info = SiteInfo("west", "own", "6", "", 0, 60, 5, 10, task="regression", outputs=2)
    assert codec.decode_info(codec.encode_info(info)) == info
    with pytest.raises(Malformed):
        codec.decode_info(codec.encode_info(info._replace(**changes)))


def test_a_targets_statistics_are_checked():
    column = {"name": "size", "kind": "number", "levels": [], "known": 3, "missing": 0}
    target = {"name": "cost", "known": 3, "mean": 1.0, "variance": 2.0}
    statistics = {"columns": [column], "classes": [], "task": "regression", "targets": [target]}
    assert codec.decode_statistics(codec.encode_text(json.dumps(statistics))) == statistics
    for change in ({"variance": -1.0}, {"mean": float("inf")}, {"rows": [1]}, {"known": 10**12}):
        with pytest.raises(Malformed, match="statistics"):
            codec.decode_statistics(codec.encode_text(json.dumps({**statistics, "targets": [{**target, **change}]})))


# ---- init and check
def test_init_writes_an_app_of_the_task(tmp_path):
    from flwr.common.config import flatten_dict

    init(Init(tmp_path / "new", method="fedavg", task="regression", metrics=("mae", "r2")))
    project = tomllib.loads((tmp_path / "new/app/pyproject.toml").read_text())
    assert read(flatten_dict(project["tool"]["flwr"]["app"]["config"])).task == Regression(metrics=("mae", "r2"))
    site = SiteConfig.read(tomllib.loads((tmp_path / "new/sites/north.toml").read_text()))
    assert (site.task, site.data) == ("regression", "/path/to/patients.csv")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--task", "ranking"), "must be one of classification, regression, multilabel"),
        (("--task", "regression", "--metrics", "auc"), "There is no metric auc for regression"),
        (("--task", "regression", "--method", "knnper"), "needs classes"),
    ],
)
def test_init_refuses_what_the_task_cannot_be(tmp_path, capsys, words, message):
    with pytest.raises(SystemExit) as stop:
        main(["deploy", "init", str(tmp_path / "new"), *words])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_check_says_what_the_targets_are(tmp_path, numbers, capsys):
    path = tmp_path / "west.toml"
    text = f'name = "west"\ndata = "{numbers / "west.npz"}"\nstate = "{tmp_path / "state"}"\n'
    path.write_text(text + 'task = "regression"\n')
    with pytest.raises(SystemExit) as stop:
        main(["deploy", "check", str(path)])
    assert not stop.value.code
    assert "targets of a regression: 1" in capsys.readouterr().out
    path.write_text(text + 'task = "ranking"\n')
    with pytest.raises(SystemExit):
        main(["deploy", "check", str(path)])
    assert "task='ranking' must be one of" in capsys.readouterr().err


def test_a_networks_state_is_that_of_the_regression(tmp_path, numbers):
    there = world(tmp_path, numbers, "regression").serve()
    torch.testing.assert_close(there.state["model"], inside(numbers, "regression").state["model"])
