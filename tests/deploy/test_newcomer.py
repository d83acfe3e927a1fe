"""A site that comes after the run makes its model from a copy of the server's folder, by its own file."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedkin[flower]'")

import fedkin
from fedkin.cli import main
from tests.deploy.test_safety import tables
from tests.deploy.test_server import World, _clock, data  # noqa: F401  (fixtures)

EAST = [f"{'abc'[k % 3]};{20 + k % 7},5;{'ill' if k % 3 else 'well'}" for k in range(40)]


def say(capsys, *words: object) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out + err


def site(folder: Path, header: str = "kind;size;outcome", **more: str) -> Path:
    """The newcomer's table has another name of the label, another separator and another decimal mark."""
    table = folder / "east.csv"
    text = "\n".join([header, *EAST]).replace("ill", "yes").replace("well", "no")
    table.write_text(text + "\n")
    given = {"name": "east", "data": str(table), "state": str(folder / "east"), "label": "outcome", **more}
    path = folder / "east.toml"
    path.write_text("".join(f'{key} = "{value}"\n' for key, value in given.items()))
    return path


@pytest.mark.parametrize("fit", ["each", "sites"])
@pytest.mark.parametrize("method", ["fedavg-ft", "fedper"])
def test_a_newcomer_joins_by_its_own_file_and_uses_the_model(tmp_path, data, capsys, fit, method):  # noqa: F811
    world = World(tmp_path, data, method__name=method, run__fit=fit)
    (tmp_path / "tables").mkdir()
    tables(world, tmp_path / "tables", share=fit)
    world.serve()
    own, out = tmp_path / "own", tmp_path / "own" / "model"
    own.mkdir()
    code, said = say(capsys, "join", tmp_path / "out", "--site", site(own), "--out", out)
    assert code == 0, said
    assert "east: expect accuracy" in said
    made = fedkin.load(out)
    assert made.clients == ("east",)
    assert set(made.predict("east", own / "east.csv")) <= {"yes", "no"}, "classes by their names"
    scales = made.config["federation"]["preprocessing"]["scales"]
    assert ("" in scales) == (fit == "sites"), "the scale of all sites, or its own"
    code, said = say(capsys, "predict", out, "--client", "east", "--data", own / "east.csv", "--out", own / "p.csv")
    assert code == 0, said
    assert len(list(csv.reader((own / "p.csv").open()))) == len(EAST) + 1


def test_what_is_wrong_is_said_in_one_line(tmp_path, data, capsys):  # noqa: F811
    world = World(tmp_path, data, method__name="fedavg", run__fit="each")
    (tmp_path / "tables").mkdir()
    tables(world, tmp_path / "tables", share="each")
    world.serve()
    folder, own = tmp_path / "out", tmp_path / "own"
    own.mkdir()
    file = site(own)
    (model,) = (tmp_path / "north").glob("*/north")
    capsys.readouterr()
    for words, expected in [
        ([folder, "--data", own / "east.csv"], "give --site FILE in place of --data"),
        ([folder, "--site", file, "--data", own / "east.csv"], "leave --data and --name out"),
        ([folder, "--site", own / "nobody.toml"], "There is no file"),
        ([model, "--site", file], "a newcomer needs the folder of the server's run"),
        ([folder, "--site", site(own, header="kind;weight;outcome")], "size"),
    ]:
        code, said = say(capsys, "join", *words)
        assert code == 2
        assert expected in said
        assert len(said.splitlines()) == 1, said


def test_other_columns_than_the_sites_are_refused_if_nothing_was_agreed(tmp_path, data, capsys):  # noqa: F811
    world = World(tmp_path, data, method__name="fedavg")
    (tmp_path / "tables").mkdir()
    tables(world, tmp_path / "tables", share="")
    for name in world.node:  # without run.fit all must have the same levels
        table = tmp_path / "tables" / f"{name}.csv"
        table.write_text(table.read_text().replace("c,", "a,"))
    world.serve()
    own = tmp_path / "own"
    own.mkdir()
    code, said = say(capsys, "join", tmp_path / "out", "--site", site(own))
    assert code == 2
    assert "east has other columns, levels of categories, classes or targets than the sites of the run" in said
