"""`--config`: a .toml of one's own, or the config.json of an earlier run."""

from __future__ import annotations

import json

import numpy as np
import pytest

import fedkin
from tests.cli.conftest import SMALL

TOML = """
rounds = 2
clients = 5
samples_per_client = 40
quiet = true

[method]
name = "fedprox"
mu = 0.7

[partition]
name = "dirichlet"
alpha = 0.3

[training]
lr = 0.1

[run]
seed = 3
"""


@pytest.fixture
def toml(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(TOML)
    return path


def read(folder) -> dict:
    return json.loads((folder / "config.json").read_text())


def test_a_run_from_a_file(call, toml, tmp_path):
    code, out, err = call("run", "--config", toml, "--out", tmp_path / "run")
    assert code == 0, err
    assert out.startswith("fedprox")
    config = read(tmp_path / "run")
    assert config["method"]["mu"] == 0.7
    assert config["federation"]["partition_options"]["alpha"] == 0.3
    assert (config["training"]["lr"], config["options"]["seed"], config["options"]["rounds"]) == (0.1, 3, 2)


def test_flags_win_over_the_file(call, toml, tmp_path):
    words = ["--config", toml, "--mu", "0.2", "--lr", "0.3", "--partition", "pathological", "--out", tmp_path / "run"]
    code, _, err = call("run", *words)
    assert code == 0, err
    config = read(tmp_path / "run")
    assert config["method"]["mu"] == 0.2
    assert config["training"]["lr"] == 0.3
    assert config["federation"]["partition_options"] == {"classes_per_client": 2}, "alpha was of another partition"


def test_another_method_does_not_take_the_fields(call, toml, tmp_path):
    code, _, err = call("run", "ditto", "--config", toml, "--out", tmp_path / "run")
    assert code == 0, err
    assert read(tmp_path / "run")["method"]["class"] == "fedkin.methods.ditto:Ditto"


def test_an_earlier_run_is_repeated_to_the_bit(call, tmp_path):
    flags = [
        "--data", "synthetic", "--data.groups", "2", "--data.samples", "600", "--partition", "pathological",
        "--partition.classes-per-client", "3", "--model", "fcnn1", "--model.width", "0.2", "--arrive", "2", "2",
        "--lr", "0.2", "--participation", "0.6",
    ]  # fmt: skip
    assert call("run", "fedprox,mu=0.7", *flags, "--out", tmp_path / "a", *SMALL)[0] == 0
    code, _, err = call("run", "--config", tmp_path / "a" / "config.json", "--out", tmp_path / "b", "--quiet")
    assert code == 0, err
    assert (tmp_path / "a" / "history.jsonl").read_text() == (tmp_path / "b" / "history.jsonl").read_text()
    a, b = read(tmp_path / "a"), read(tmp_path / "b")
    assert {**a, "label": "", "environment": ""} == {**b, "label": "", "environment": ""}


def test_a_comparison_in_the_setting_of_an_earlier_run(call, toml, tmp_path):
    assert call("run", "--config", toml, "--out", tmp_path / "a")[0] == 0
    words = ["compare", "local", "fedavg", "--config", tmp_path / "a" / "config.json", "--out", tmp_path / "b"]
    code, _, err = call(*words, "--quiet")
    assert code == 0, err
    assert read(tmp_path / "b" / "local" / "seed-3")["training"]["lr"] == 0.1


def test_methods_of_a_comparison_from_a_file(call, tmp_path):
    path = tmp_path / "both.toml"
    path.write_text('methods = ["local", "fedprox,mu=1"]\nrounds = 2\nclients = 4\nseeds = 2\nquiet = true\n')
    code, out, err = call("compare", "--config", path)
    assert code == 0, err
    assert "fedprox,mu=1" in out
    assert "seeds 2" in out


def test_a_run_on_a_folder_is_repeated_with_its_reading(call, tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    for name in ("north", "south"):
        table = np.column_stack([rng.normal(size=(40, 3)), rng.integers(0, 2, 40)])
        np.savetxt(tmp_path / "data" / f"{name}.csv", table, delimiter=",", header="a,b,c,ill", comments="")
    words = ["--data", tmp_path / "data", "--label", "ill", "--ignore", "b", "--rounds", "2", "--quiet"]
    assert call("run", "local", *words, "--out", tmp_path / "a")[0] == 0
    again = ["run", "--config", tmp_path / "a" / "config.json", "--quiet", "--out", tmp_path / "b"]
    code, _, err = call(*again)
    assert code == 0, err
    assert (tmp_path / "a" / "history.jsonl").read_text() == (tmp_path / "b" / "history.jsonl").read_text()


def test_a_run_on_data_in_memory_needs_a_folder(call, fails, tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 3)), rng.integers(0, 2, 80)
    clients = fedkin.federate(fedkin.from_arrays(x, y, client=np.repeat(["north", "south"], 40)))
    fedkin.run("local", clients, rounds=1, out=tmp_path / "a")
    again = ["run", "--config", tmp_path / "a" / "config.json", "--quiet"]
    assert "add --data FOLDER" in fails(*again)
    (tmp_path / "data").mkdir()
    for name in ("west", "east"):
        np.savez(tmp_path / "data" / f"{name}.npz", x=x[:40], y=y[:40])
    code, _, err = call(*again, "--data", tmp_path / "data")
    assert code == 0, err


def test_a_flag_for_own_data_needs_own_data(fails):
    assert "--label is for a folder of your own data" in fails("run", "local", "--label", "ill")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.toml", "round = 2", "no flag 'round', which the config file sets. Did you mean --rounds?"),
        ("a.toml", "rounds = 'many'", "--rounds must be a whole number; it is 'many'."),
        ("a.toml", "rounds = 2.5", "--rounds must be a whole number; it is 2.5."),
        ("a.toml", "rounds = ", "is not valid TOML"),
        ("a.toml", "[optons]\nrounds = 2", "has a table [optons]. Known tables: [method], [data]"),
        ("a.toml", "[method]\nmu = 1", "[method] needs a name"),
        ("a.toml", "[method]\nname = 'fedprox'\nmuu = 1", "fedprox has no field 'muu'. Did you mean mu?"),
        ("a.toml", "[partition]\nname = 'dirichlet'\nbeta = 1", "no flag 'partition.beta'"),
        ("a.json", "{}", "is not the config.json of a run"),
        ("a.json", "[1]", "must hold settings by name"),
        ("a.json", "{", "is not valid JSON"),
    ],
)
def test_mistakes_in_a_file(fails, tmp_path, name, content, said):
    (tmp_path / name).write_text(content)
    method = [] if "[method]" in content else ["fedprox"]
    assert said in fails("run", *method, "--config", tmp_path / name)


def test_a_file_that_is_not_there(fails, tmp_path):
    assert "cannot be read: No such file" in fails("run", "fedavg", "--config", tmp_path / "none.toml")
