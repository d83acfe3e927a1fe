"""The result pages hold no number that no run produced: every entry of their tables is in a committed outcome."""

import json
from pathlib import Path

import pytest

from fedkin.experiments.declare import SCALES
from fedkin.experiments.outcome import Outcome
from fedkin.experiments.papers import PAPERS, find, items
from fedkin.report.tables import markdown

RESULTS = Path(__file__).parents[2] / "docs" / "results"
ALL = [f"{paper}/{name}" for paper in PAPERS for name in items(paper)]


def stored(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text())


class Stored(Outcome):
    """An outcome read from its JSON file in place of its runs."""

    def values(self, row, column, measure):
        if column in self.item.means:
            return super().values(row, column, measure)
        cell = CELLS[self.name][row, column]
        return dict(zip(cell["seeds"], cell["measures"][measure]["values"]))


CELLS: dict[str, dict] = {}


@pytest.mark.parametrize("name", ALL)
def test_a_pages_tables_are_its_outcomes(name):
    found = stored(name)
    item = find(name)[name]
    CELLS[name] = {(c["row"], c["column"]): c for c in found["cells"]}
    assert set(CELLS[name]) == {(c.row, c.column) for c in item.cells}
    missing = {place: c["missing"] for place, c in CELLS[name].items() if "missing" in c}
    outcome = Stored(name, item, SCALES[found["scale"]], {}, missing, found["seconds"])
    paper, short = name.split("/")
    page = (RESULTS / f"{paper}.md").read_text()
    block = page.split(f"<!-- {short} -->")[1].split(f"<!-- /{short} -->")[0]
    assert found["command"] in block
    for measure in item.measures:
        assert markdown(*outcome.table(measure)).strip() in block
    for place, cell in CELLS[name].items():
        assert cell["runs"] or place in missing, place
        declared = next(c for c in item.cells if (c.row, c.column) == place)
        assert {m: v["paper"] for m, v in cell["measures"].items()} == {m: declared.paper.get(m) for m in item.measures}


@pytest.mark.parametrize("name", ALL)
def test_a_pages_verdicts_are_its_outcomes(name):
    found = stored(name)
    paper, short = name.split("/")
    block = (RESULTS / f"{paper}.md").read_text().split(f"<!-- {short} -->")[1].split(f"<!-- /{short} -->")[0]
    for verdict in ("held", "not held", "undecided", "not measured"):
        count = sum(1 for claim in found["claims"] if claim["verdict"] == verdict)
        assert not count or f" {count} {verdict}" in block.split("Claims:")[1].split(".")[0]


def test_the_leaderboard_is_its_outcome():
    from fedkin.experiments import bench
    from fedkin.methods import METHODS

    found = json.loads((RESULTS / "leaderboard.json").read_text())
    places = [bench.Place(**place) for place in found["methods"]]
    tracks = list(places[0].accuracy)
    page = (RESULTS / "leaderboard.md").read_text()
    assert markdown(*bench.table(places, tracks)).strip() in page
    assert found["command"] in page
    assert [p.rank for p in places] == sorted(p.rank for p in places)
    lost = {line.split(" on ")[0] for line in found["not run"]}
    assert {p.method for p in places} | lost == set(METHODS)
    assert {t.split()[0] for t in tracks} >= {"fashion-mnist", "har"}
