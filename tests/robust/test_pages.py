"""The pages on privacy and security say what the code does, and the audit does not cheer about nothing."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from benchmarks import attacks, reliability
from fedkin.methods import METHODS, method
from scripts.audit import verdict

ROOT = Path(__file__).parents[2]


def test_the_privacy_page_has_every_method_as_its_class_describes_it():
    page = (ROOT / "docs" / "privacy.md").read_text()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| ")]
    rows = {name: [*more[:2], more[-1]] for name, *more in cells}
    first: dict[object, str] = {}
    for name, entry in METHODS.items():
        first.setdefault(entry.target, name)
    for name in first.values():
        made = method(name)
        assert rows.get(name) == [made.travels, made.stays, "yes" if made.averages else "refused"], (
            f"{name}: run python benchmarks/privacy_table.py docs/privacy.md"
        )


def test_every_dependency_is_bounded():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [item for items in project["optional-dependencies"].values() for item in items]
    for item in (*project["dependencies"], *extras):
        assert item.startswith("fedkin[") or re.search(r"[<=]=?\d", item.split(">=")[-1]), f"{item} has no upper bound"


def test_an_audit_that_looked_at_nothing_fails():
    skipped = {"name": "torch", "skip_reason": "not found on PyPI"}
    sound = {"name": "numpy", "version": "2.0", "vulns": []}
    bad = {"name": "rich", "version": "13.0", "vulns": [{"id": "CVE-1", "fix_versions": ["13.1"]}]}
    assert verdict({"dependencies": [skipped]})[0] == 3
    assert "Nothing was audited" in verdict({"dependencies": [skipped]})[1]
    assert verdict({"dependencies": [skipped, sound]}) == (
        0, "1 packages were audited, 0 have known vulnerabilities.\nNot in the database: torch."
    )  # fmt: skip
    code, words = verdict({"dependencies": [sound, bad]})
    assert code == 1
    assert "rich 13.0: CVE-1, fixed in ['13.1']" in words


# ---- pages that a command makes from what it has stored
SYSTEMS = {"fedavg", "fedcedar", "pflic", "pfedgat", "dcpfl", "kin"}


def test_the_page_on_attacks_is_made_from_its_cells():
    text = attacks.PAGE.read_text()
    cells = json.loads(attacks.PAGE.with_suffix(".json").read_text())
    assert text == attacks.page(cells, attacks._findings(text)), "run python benchmarks/attacks.py"
    assert set(attacks.METHODS) == SYSTEMS
    asked = {attacks._key(m, a, d) for m in attacks.METHODS for a in attacks.ATTACKS for d in attacks.DEFENSES}
    assert cells.keys() <= asked


def test_the_page_on_reliability_is_made_from_what_was_measured():
    assert reliability.PAGE.read_text() == reliability.page(), "run python benchmarks/reliability.py"


@pytest.mark.parametrize("part", ["kills", "drops"])
def test_the_page_on_reliability_has_every_system(part):
    stored = json.loads((reliability.STORED / f"{part}.json").read_text())
    assert stored["methods"].keys() >= SYSTEMS


def test_the_page_on_reliability_has_every_target_of_fuzzing():
    from tests.fuzz.targets import TARGETS
    from tests.fuzz.test_fuzz import MANY

    targets = json.loads((reliability.STORED / "fuzz.json").read_text())["targets"]
    assert targets.keys() == TARGETS.keys()
    assert sum(target["worked"] + target["refused"] for target in targets.values()) >= MANY
