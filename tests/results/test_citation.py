"""Every method with a paper can be cited."""

from __future__ import annotations

import pytest

from fedkin.cli import main
from fedkin.methods import METHODS
from fedkin.results.citation import citation


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_what_it_is(name):
    kind = METHODS[name].load()
    assert kind.travels
    assert kind.stays
    assert not kind.paper or citation([name]).count("@") >= 2, "a method with a paper has its entry"


def test_a_variant_cites_its_method_once():
    assert citation(["fedavg", "fedavg-ft", "fedprox,mu=1"]).count("@") == 3


@pytest.mark.parametrize("name", METHODS)
def test_entries_are_whole(name):
    text = METHODS[name].load().citation
    assert text.count("{") == text.count("}")
    assert not text or all(word in text for word in ("title", "author", "year"))


def test_an_own_method_gives_its_entry_and_only_if_asked(tmp_path, capsys):
    file = tmp_path / "mine.py"
    imports = "from dataclasses import dataclass\nimport fedkin\n"
    body = "\n@dataclass(frozen=True)\nclass {}(fedkin.Method):\n    {}\n"
    file.write_text(imports + body.format("Mine", 'citation = "@misc{mine}"') + body.format("Bare", "pass"))
    assert "@misc{mine}" in citation(["ditto", f"{file}:Mine,x=1"], own=True)
    assert "@misc{mine}" not in citation([f"{file}:Mine"]), "a report runs no code of a folder"
    with pytest.raises(SystemExit) as stopped:
        main(["cite", "ditto", f"{file}:Mine", f"{file}:Bare"])
    out, err = capsys.readouterr()
    assert not stopped.value.code
    assert "@misc{mine}" in out
    assert "Bare has no entry: give the class a text `citation`." in err
