"""`fedkin init`: what is in a folder of tables, and a file that says how they are read."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from fedkin.cli import main

ROWS = 40


@pytest.fixture
def tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("clinics").mkdir()
    for shift, name in enumerate(("north", "south")):
        lines = ["age,grade,cholesterol,ward,ill"]
        for k in range(ROWS):
            fat = "" if k == 3 else "0" if k % 8 == 0 else str(201.5 + k + shift)
            lines.append(f"{41.25 + k + shift},{k % 3},{fat},{'a' if k % 2 else 'b'},{'yes' if k % 2 else 'no'}")
        Path(f"clinics/{name}.csv").write_text("\n".join(lines) + "\n")


def call(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["init", *words])
    return int(ended.value.code or 0)


def test_it_shows_counts_and_names_what_is_doubtful(tables, capsys):
    assert call("clinics", "--label", "ill") == 0
    shown = capsys.readouterr().out
    assert "2 clients, 80 examples" in shown
    north = next(line for line in shown.splitlines() if "north" in line)
    assert [word for word in north.split() if word.isdigit()] == ["40", "20", "20", "1"]
    assert "few different numbers in grade." in shown
    assert "0 is far from all other cells of cholesterol." in shown
    assert "age" not in "".join(line for line in shown.splitlines() if line.startswith("Look"))
    for value in ("41.25", "42.25", "201.5", "202.5"):
        assert value not in shown
    assert tomllib.loads(Path("clinics.toml").read_text()) == {
        "data": "clinics", "label": ["ill"], "ignore": [], "categorical": [], "missing": [], "decimal": "auto",
        "ordered": False, "task": "classification", "metrics": ["accuracy"],
    }  # fmt: skip


def test_what_was_said_is_not_said_again_and_a_run_takes_the_file(tables, capsys):
    words = ("--categorical", "grade", "--missing", "cholesterol=0", "--metrics", "auc,f1", "--out", "mine.toml")
    assert call("clinics", "--label", "ill", *words) == 0
    shown = capsys.readouterr().out
    assert "Look" not in shown
    assert "category, 3 levels" in shown
    with pytest.raises(SystemExit) as ended:
        main(["run", "local", "--config", "mine.toml", "--rounds", "1", "--quiet", "--engine", "serial"])
    assert not ended.value.code
    assert "auc" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "init takes one folder of tables; given: none"),
        (("clinics",), "'y'"),
        (("nowhere",), "There is no folder nowhere"),
        (("clinics", "--label", "ill", "--out", "mine.json"), "must end in .toml"),
        (("clinics", "--label", "ill", "--metrics", "rmse"), "rmse"),
        (("clinics", "--label", "ill", "--out", "no/mine.toml"), "cannot be written"),
    ],
)
def test_mistakes_are_explained_and_nothing_is_written(words, message, tables, capsys):
    assert call(*words) == 2
    assert message in capsys.readouterr().err
    assert not list(Path().rglob("*.toml"))


def test_a_file_that_exists_is_kept(tables, capsys):
    Path("clinics.toml").write_text("# mine\n")
    assert call("clinics", "--label", "ill") == 2
    assert "clinics.toml exists" in capsys.readouterr().err
    assert Path("clinics.toml").read_text() == "# mine\n"
    assert call("clinics", "--label", "ill", "--fresh") == 0
    assert 'label = ["ill"]' in Path("clinics.toml").read_text()
