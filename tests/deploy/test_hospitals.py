"""Four hospitals with tables of their own, over a real superlink and real supernodes: `fedkin init`, `fedkin deploy
init`, a run of each kind of task, and the model in use at a hospital."""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedkin[flower]'")

import fedkin
from fedkin.cli import main
from tests.deploy.sites import Sites
from tests.deploy.test_server import assert_same
from tests.processes import needs_linux

pytestmark = pytest.mark.processes
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
LABELS = {"classification": ("disease",), "regression": ("cost",), "multilabel": ("disease", "diabetes")}
METRICS = {"classification": ("auc", "accuracy"), "regression": ("mae", "r2"), "multilabel": ("f1", "auc")}


def write_tables(folder: Path, targets: tuple[str, ...]) -> None:
    rng = np.random.default_rng(3)
    folder.mkdir()
    for part, name in enumerate(HOSPITALS):
        order = ["age", "pain", "pressure", "ward", *targets][:: 1 if part % 2 else -1]
        with open(folder / f"{name}.csv", "w", newline="") as file:
            table = csv.DictWriter(file, order, extrasaction="ignore")
            table.writeheader()
            for _ in range(70 + 10 * part):
                age, pain = rng.normal(55 + part, 9), rng.choice(["none", "typical", "atypical"])
                pressure = "?" if rng.random() < 0.1 else "0" if rng.random() < 0.1 else f"{rng.normal(130, 15):.0f}"
                ill = rng.random() < 1 / (1 + np.exp(-0.2 * (age - 55) - (pain == "typical")))
                row = {"age": f"{age:.1f}", "pain": pain, "pressure": pressure, "disease": "yes" if ill else "no"}
                row["ward"] = rng.choice(["east", "west"])
                if name == "switzerland":  # as in the real tables: what others know is missing here in every row
                    row |= {"pressure": "0", "ward": ""}
                row |= {"diabetes": "yes" if age > 58 else "no", "cost": f"{70_000 + 300 * (age - 55):.2f}"}
                table.writerow(row)


def say(*words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    assert not ended.value.code


@needs_linux
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("task", LABELS)
def test_a_task_over_flower_is_the_same_as_in_process(task, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    fit = "sites" if task == "regression" else "each"  # a regression needs the units of all
    write_tables(tmp_path / "hospitals", LABELS[task])
    say("init", "hospitals", "--label", *LABELS[task], "--task", task, "--missing", "pressure=0", "--metrics",
        *METRICS[task])  # fmt: skip
    say("run", "fedper", "--config", "hospitals.toml", "--fit", fit, "--rounds", "2", "--evaluate-every", "0",
        "--out", "inside", "--quiet")  # fmt: skip
    given = {k: v for k, v in tomllib.loads(Path("hospitals.toml").read_text()).items() if v}
    reading = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    with Sites(tmp_path / "sites", method="fedper", clients=HOSPITALS, rounds=2, fit=fit, **reading) as sites:
        for name in HOSPITALS:
            say("deploy", "check", str(sites.folder / "sites" / f"{name}.toml"))
            sites.supernode(name)
        sites.run(run__evaluate_every=0)
        sites.until_finished()
        assert_same(sites.history(), fedkin.load("inside").history)
        assert fedkin.load(sites.out).clients == HOSPITALS
        mine = sites.personal("va").parent
        say("predict", str(mine), "--client", "va", "--data", "hospitals/cleveland.csv", "--out", "there.csv")
        say("predict", "inside", "--client", "va", "--data", "hospitals/cleveland.csv", "--out", "here.csv")
        there, here = (list(csv.reader(Path(p).read_text().splitlines())) for p in ("there.csv", "here.csv"))
        assert there[0] == here[0]
        if task == "regression":
            found = [[float(line[0]) for line in lines[1:]] for lines in (there, here)]
            np.testing.assert_allclose(*found, rtol=1e-4)
            assert 60_000 < np.mean(found[0]) < 80_000
        else:
            assert [line[: len(LABELS[task])] for line in there] == [line[: len(LABELS[task])] for line in here]


def test_init_makes_a_site_of_each_table(tmp_path, monkeypatch, capsys):
    from fedkin.deploy.site import SiteConfig

    monkeypatch.chdir(tmp_path)
    write_tables(tmp_path / "hospitals", ("disease",))
    say("init", "hospitals", "--label", "disease", "--missing", "pressure=0", "--metrics", "auc,f1")
    say("deploy", "init", "federation", "--config", "hospitals.toml", "--method", "fedper")
    sites = [tomllib.loads((tmp_path / f"federation/sites/{name}.toml").read_text()) for name in HOSPITALS]
    assert [site["name"] for site in sites] == list(HOSPITALS)
    for site, name in zip(sites, HOSPITALS):
        config = SiteConfig.read(site)
        assert (config.data, config.missing) == (str(tmp_path / "hospitals" / f"{name}.csv"), "pressure=0")
        assert len(config.load()) == 1
    app = tomllib.loads((tmp_path / "federation/app/pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert app["run"]["clients"].split() == list(HOSPITALS)
    assert (app["run"]["fit"], app["task"]["metrics"], app["task"]["headline"]) == ("each", "auc f1", "auc")
