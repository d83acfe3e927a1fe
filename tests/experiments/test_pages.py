"""The result pages hold no number that no run produced: `benchmarks/pages.py` makes them from the stored cells."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedkin.experiments import bench, measures
from fedkin.experiments.carry_out import collect
from fedkin.experiments.cells import Cells, job
from fedkin.experiments.declare import Cell, Claim, Item, Setting
from fedkin.experiments.papers import PAPERS, items

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
CELLS = Cells(RESULTS / "cells")


def script(name):
    """A script of benchmarks/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages():
    return script("pages")


def made_of_cells(page, mark):
    """A page is held against the cells once it is made of them. Until then it says that it is old."""
    if f"<!-- {mark} -->" not in page:
        assert "**Measured with fedkin 0.1**" in page
        pytest.skip("the page shows earlier results, and says so")


# ---- what is committed
@pytest.mark.parametrize("paper", PAPERS)
def test_a_papers_page_is_made_of_its_cells(paper, pages):
    found = pages.outcomes(paper, CELLS)
    if not found:
        pytest.skip("no results are stored yet")
    page = (RESULTS / f"{paper}.md").read_text()
    made_of_cells(page, "items")
    assert pages.paper_page(paper, found, page) == page, "run python benchmarks/pages.py"
    for name, outcome in found.items():
        assert json.loads((RESULTS / paper / f"{name}.json").read_text()) == json.loads(json.dumps(outcome.to_json()))
    begins = page.split("<!-- items -->")[0]
    assert begins.count(". ") + begins.count(".\n") >= 5, "a page begins with what a reader wants to know"


def test_the_claims_page_is_made_of_the_outcomes(pages):
    stored = pages.stored_outcomes()
    assert (RESULTS / "index.md").read_text() == pages.index(stored), "run python benchmarks/pages.py"
    claims = sum(len(item.claims) for paper in PAPERS for item in items(paper).values())
    assert sum(len(one["claims"]) for one in stored.values()) == claims


def test_the_leaderboard_is_made_of_its_cells(pages):
    board = bench.collect(bench.ranked(), bench.TRACKS, CELLS, CELLS.failures)
    if not board.lines:
        pytest.skip("no results are stored yet")
    page = (RESULTS / "leaderboard.md").read_text()
    made_of_cells(page, "board")
    assert bench.text(board).strip() in page, "run python benchmarks/pages.py"
    stored = json.loads((RESULTS / "leaderboard.json").read_text())
    assert stored["methods"] == json.loads(json.dumps(board.to_json()))["methods"]
    kin = pages.KIN.read_text()
    assert pages.between(kin, "tracks", pages.kin_table(board)) == kin, "run python benchmarks/pages.py leaderboard"


def test_the_ablation_of_kin_is_made_of_its_results(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    ablation = script("ablation")
    page, found = ablation.PAGE.read_text(), ablation.stored()
    assert found
    assert ablation.written(page, found) == page, "run python benchmarks/ablation.py"
    for table in found.values():
        for label, values in table.items():
            assert len(values) == ablation.SEEDS, label


@pytest.fixture
def refute(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))  # it uses other scripts
    return importlib.import_module("refute")


def test_the_page_of_refuting_experiments_is_made_of_its_numbers(refute):
    stored = json.loads((RESULTS / "refute.json").read_text())
    assert list(stored) == list(refute.CHECKS)
    assert (RESULTS / "refute.md").read_text() == refute.page(stored), "run python benchmarks/refute.py --page"


def test_a_refuted_explanation_is_called_so(refute):
    rows = [{"data": "d", "seed": s, "shift": 0.3, "printed": 0.1, "common": 0.9} for s in range(3)]
    assert "**Refuted.** The printed discrepancy correlates" in refute.page({"dcpfl": rows})
    rows = [row | {"shift": 0.9} for row in rows]
    assert "**Not refuted.** The printed discrepancy correlates" in refute.page({"dcpfl": rows})


# ---- how they are made
SETTING = Setting("mnist", "iid", 3, 5, "mlp", examples=40)
ITEM = Item(
    "a title",
    "Table 1",
    tuple(Cell(row, "c", row.lower(), SETTING, SETTING) for row in ("FedAvg", "Local")),
    {"accuracy": measures.personal, "received": measures.received},
    (
        Claim(("FedAvg", "c"), ("Local", "c"), "accuracy"),
        Claim(("Local", "c"), ("FedAvg", "c"), "accuracy", ours=True),
        Claim(("FedAvg", "c"), ("Local", "c"), "received"),
    ),
)


@pytest.fixture
def outcome(tmp_path):
    cells = Cells(tmp_path)
    for seed in range(3):
        for cell, accuracy in zip(ITEM.cells, (0.9, 0.8)):
            values = [accuracy + 0.01 * seed + 0.001 * c for c in range(3)]
            sent = {"received": values} if cell.row == "FedAvg" else {}
            cells.put(job(cell, "desk", seed), {"seconds": 2.0, "personal": values, **sent, "kept": {}})
    return collect("fedcedar/table1", ITEM, "desk", Cells(tmp_path))


def test_the_claims_page_says_what_became_of_each_claim(outcome, pages):
    stored = {"fedcedar/table1": json.loads(json.dumps(outcome.to_json()))}
    text = pages.index(stored)
    assert (
        "| [fedcedar/table1](fedcedar.md) | c | FedAvg above Local | accuracy | held +10.00 [+10.00, +10.00] |" in text
    )
    assert "| Local above FedAvg (ours) | accuracy | not held -10.00 [-10.00, -10.00] |" in text
    assert "| FedAvg above Local | received | not measured: Local sends nothing |" in text
    assert "| [FedCEDAR](fedcedar.md) | 1 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 1 of 1 |" in text
    assert "| FedCEDAR, on the received model | 0 | 0 | 0 | 0 | 0 | 0 | 1 | 0 | – |" in text
    assert "| our own claims | 0 | 0 | 1 | 0 | 0 | 0 | 0 | 0 | 1 of 1 |" in text


def test_the_claims_page_tells_what_waits_from_what_cannot_be_measured(pages):
    svhn = Setting("svhn", "iid", 3, 5, "mlp", examples=40)
    cells = [Cell(row, "d", row.lower(), svhn, None) for row in ("FedAvg", "Local")]
    claims = [Claim(("FedAvg", column), ("Local", column), "accuracy") for column in ("c", "d")]
    item = replace(ITEM, cells=(*ITEM.cells, *cells), claims=tuple(claims))
    text = pages.index({"fedcedar/table1": {"claims": pages.waiting("fedcedar/table1", item)}})
    assert "| c | FedAvg above Local | accuracy | not measured: not run yet |" in text
    assert "| d | FedAvg above Local | accuracy | not measured: not run: SVHN is not at hand |" in text
    assert "| [FedCEDAR](fedcedar.md) | 0 | 0 | 0 | 0 | 0 | 0 | 1 | 1 | – |" in text


def test_a_page_keeps_what_is_written_by_hand(outcome, pages, monkeypatch):
    page = "# FedCEDAR\n\nFive sentences.\n\n<!-- items -->\nold numbers\n<!-- /items -->\n\nAfterword.\n"
    monkeypatch.setattr(pages, "items", lambda paper: {"table1": ITEM})
    made = pages.paper_page("fedcedar", {"table1": outcome}, page)
    assert made.startswith("# FedCEDAR\n\nFive sentences.\n\n<!-- items -->\n## table1: a title\n")
    assert made.endswith("<!-- /items -->\n\nAfterword.\n")
    assert "old numbers" not in made
    assert "| FedAvg | 91.10 ± 2.48 |" in made
    assert pages.paper_page("fedcedar", {"table1": outcome}, made) == made


def test_a_cell_that_is_not_stored_is_said(outcome, pages, tmp_path):
    third = Cell("FedProx", "c", "fedprox", SETTING, SETTING)
    made = collect("fedcedar/table1", replace(ITEM, cells=(*ITEM.cells, third)), "desk", Cells(tmp_path))
    assert "Not run yet: FedProx, c." in pages.block(made)


def test_an_item_that_waits_for_all_its_runs_is_not_shown(pages, monkeypatch, tmp_path, outcome):
    waits = replace(ITEM, cells=tuple(replace(cell, desk=replace(SETTING, clients=4)) for cell in ITEM.cells))
    monkeypatch.setattr(pages, "items", lambda paper: {"table1": ITEM, "table2": waits})
    found = pages.outcomes("fedcedar", Cells(tmp_path))
    assert list(found) == ["table1"]
    assert "## Still to be run\n\ntable2: `fedkin" in pages.paper_page("fedcedar", found, "# FedCEDAR\n")
    monkeypatch.setattr(pages, "PAPERS", ["fedcedar"])
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    text = pages.index(pages.stored_outcomes())
    assert "| [fedcedar/table2](fedcedar.md) | c | FedAvg above Local | accuracy | not measured: not run yet |" in text


def test_a_cell_counts_when_all_its_seeds_are_done(pages, monkeypatch, tmp_path, outcome):
    third = Cell("FedProx", "c", "fedprox", SETTING, SETTING)
    cells = Cells(tmp_path)
    for seed in range(2):
        cells.put(job(third, "desk", seed), {"seconds": 2.0, "personal": [0.5] * 3, "kept": {}})
    late = Claim(("FedAvg", "c"), ("FedProx", "c"), "accuracy")
    item = replace(ITEM, cells=(*ITEM.cells, third), claims=(*ITEM.claims, late))
    monkeypatch.setattr(pages, "items", lambda paper: {"table1": item})
    found = pages.outcomes("fedcedar", cells)["table1"]
    assert [one.verdict for one in found.claims()] == ["held", "not held", "not measured", "not measured"]
    assert found.claims()[-1].reason == "not run yet"
    assert found.seconds == 12.0
    page = pages.paper_page("fedcedar", {"table1": found}, "# FedCEDAR\n")
    assert "| FedProx | – |" in page
    assert "Not run yet: FedProx, c." in page
    assert "## Still to be run\n\ntable1: `fedkin" in page


def test_every_paper_has_a_title(pages):
    assert set(pages.TITLES) == set(PAPERS)
    assert all(items(paper) for paper in PAPERS)
