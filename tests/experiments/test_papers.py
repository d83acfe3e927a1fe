"""The papers' experiments: what is declared, how it is made smaller, what is said of the outcome."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedkin.data import DATASETS
from fedkin.data.partition import PARTITIONS
from fedkin.data.svhn import at_hand
from fedkin.experiments import carry_out, federations, measures
from fedkin.experiments.cells import Cells, Job, job
from fedkin.experiments.declare import SCALES, Cell, Claim, Item, Measure, Run, Setting, tiny
from fedkin.experiments.estimate import status
from fedkin.experiments.federations import build, by_kld, level_seed
from fedkin.experiments.outcome import Outcome, half_interval
from fedkin.experiments.papers import PAPERS, find, items, pfedgat
from fedkin.experiments.reproduce import show, show_list, show_status, store_of, write
from fedkin.methods import METHODS, method
from fedkin.models import MODELS
from fedkin.registry import parse_label
from fedkin.results import folder as results_folder
from fedkin.results.folder import FolderError

ALL = {f"{paper}/{name}": item for paper in PAPERS for name, item in items(paper).items()}
WANTED = [
    *(f"fedcedar/{n}" for n in ("table1", "table2", "fig3", "fig4")),
    *(f"pflic/{n}" for n in ("fig6", "fig7", "fig8", "table4", "fig9", "tables2-3")),
    *(f"pfedgat/{n}" for n in ("table1", "table2", "table3", "table4", "fig2", "fig3", "fig4", "feedback", "leak")),
    *(f"dcpfl/{n}" for n in ("fig1", "fig2", "fig3", "fig4-5", "fig6", "fig7", "fig8", "fig9", "fig10")),
    *(f"dcpfl/{n}" for n in ("table1", "table2")),
]


# ---- declarations
def test_every_table_and_figure_of_the_four_papers_is_declared():
    assert list(ALL) == WANTED


@pytest.mark.parametrize("name", ALL)
def test_what_is_declared_can_be_run(name):
    item = ALL[name]
    indices = [(c.row, c.column) for c in item.cells]
    assert len(indices) == len(set(indices))
    for cell in item.cells:
        label, fields = parse_label(job(cell, "full", 0).method)
        for known_to_no_server in ("nodes", "oracle", "split_after"):
            fields.pop(known_to_no_server, None)
        assert label in METHODS
        method(label, **fields)
        for setting in filter(None, (cell.at(scale) for scale in SCALES)):
            assert setting.data in DATASETS
            assert setting.partition in PARTITIONS
            assert setting.model in MODELS
            PARTITIONS[setting.partition](**setting.partition_options)
            assert not setting.evaluate_every or setting.rounds % setting.evaluate_every == 0
        assert set(cell.paper) <= set(item.measures)
    assert any(cell.desk for cell in item.cells)
    assert item.desk, "the sizes at scale desk are to be stated"
    assert set().union(*item.means.values()) <= set(item.columns())
    indices += [(row, column) for column in item.means for row in item.rows()]
    for claim in item.claims:
        assert {claim.above, claim.below} <= set(indices), claim
        assert claim.above[1] == claim.below[1], claim
        assert claim.measure in item.measures


def test_the_paper_holds_its_own_claims():
    """What the paper's own numbers contradict is not claimed, whatever its words say."""
    contradicted = []
    for name, item in ALL.items():
        cells = {(c.row, c.column): c.paper for c in item.cells}
        for claim in item.claims:
            above, below = (
                item.paper_means.get(p) if p[1] in item.means else cells[p].get(claim.measure)
                for p in (claim.above, claim.below)
            )
            if above is not None and below is not None and above < below:
                contradicted.append(f"{name} {claim.above[1]}: {claim.text()}")
    assert contradicted == []


def test_pfedgats_table_1_has_the_averages_that_it_prints():
    wrong = []
    for row, numbers in pfedgat.TABLE1.items():
        for i, printed in enumerate(pfedgat.TABLE1_MEANS[row]):
            if abs(np.mean(numbers[3 * i : 3 * i + 3]) - printed) > 0.011:
                wrong.append((row, tuple(pfedgat.DATA)[i]))
    assert wrong == [("pFedHN", "CIFAR-10")]  # a misprint of the paper itself


# ---- scales
def test_smoke_is_small():
    setting = Setting("mnist", "iid", 100, 100, "cnn3", examples=600, official_test=100, epochs=5, evaluate_every=10)
    small = tiny(setting)
    assert (small.clients, small.examples, small.rounds, small.epochs, small.evaluate_every) == (20, 20, 2, 1, 1)
    assert (small.width, small.official_test) == (0.25, 0)


def test_at_desk_every_claim_has_three_seeds():
    for name, item in ALL.items():
        assert not item.claims or item.seeds_at("desk") >= 3, name
        assert item.seeds_at("smoke") == 1


def test_a_column_is_run_at_desk_as_a_whole_or_not_at_all():
    for name, item in ALL.items():
        for column in item.columns():
            there = [cell.desk is not None for cell in item.cells if cell.column == column]
            rows_vary = name == "pflic/fig6"  # its rows are numbers of clients
            assert all(there) or not any(there) or rows_vary, (name, column)


def test_svhn_is_not_run_at_desk():
    assert not [c for item in ALL.values() for c in item.cells if c.desk is not None and c.desk.data == "svhn"]


def test_full_is_the_papers_setting():
    """Nobody is cut to the mean size; splits and test sets are the paper's."""
    settings = {name: [c.setting for c in item.cells] for name, item in ALL.items()}
    assert not [name for name, found in settings.items() if any(s.examples for s in found)]
    for one in settings["fedcedar/table1"]:
        assert (one.test, one.validation, one.clients, one.participation) == (0.2, 0.0, 100, 0.3)
    for item, examples in (("dcpfl/table1", 1000), ("dcpfl/table2", 1200)):  # 50,000 and 60,000 images for 50 clients
        found = {(s.train_examples, s.clients, s.batch_size, s.epochs, s.model) for s in settings[item]}
        assert found == {(examples, 50, 32, 5, "lenet")}
    official = [item for item in settings if item.startswith(("dcpfl/", "pflic/"))]
    assert all(one.official_test for item in official for one in settings[item])
    for one in settings["pfedgat/table1"]:
        assert (one.clients, one.rounds, one.epochs, one.lr, one.batch_size) == (10, 50, 5, 0.01, 64)
    assert {one.clients for one in settings["pflic/fig6"]} == {48, 96, 192, 50, 100, 200}
    rotated = settings["pflic/fig7"][0]
    assert rotated.train_examples * rotated.clients == 4 * 60_000
    assert rotated.official_test * rotated.clients <= 4 * 10_000


# ---- federations
def test_official_tests_follow_the_clients_labels(made_data):
    setting = Setting(
        "mnist", "primary_secondary", 6, 2, "mlp", {"primary_low": 0.6}, train_examples=300, official_test=50
    )
    made = build(setting, 1)
    y = made.arrays.y
    for split in made.splits:
        assert (len(split.train), len(split.validation), len(split.test)) == (300, 0, 50)
        assert split.train.max() < 7000 <= split.test.min()
        assert len(set(split.train.tolist())) == 300
        shares = [np.bincount(y[part], minlength=10) / len(part) for part in (split.train, split.test)]
        assert np.abs(shares[0] - shares[1]).max() < 0.03
    again = build(setting, 1)
    assert all((a.train == b.train).all() and (a.test == b.test).all() for a, b in zip(made.splits, again.splits))


def test_rotated_clients_share_images_only_across_rotations(made_data):
    made = build(Setting("mnist", "rotated", 8, 2, "mlp", train_examples=3500, official_test=10), 0)
    turns = made.partition.turns
    for turn in range(4):
        own = [made.splits[c].train for c in np.flatnonzero(turns == turn)]
        assert sorted(np.concatenate(own).tolist()) == list(range(7000))  # all images in every rotation, once


def test_official_tests_leave_all_training_examples(made_data):
    made = build(Setting("mnist", "iid", 5, 2, "mlp", official_test=20), 0)
    assert [len(s.train) for s in made.splits] == [1400] * 5


def test_levels_of_heterogeneity_are_thirds_of_the_range(made_data):
    klds = {}
    for level in ("Low", "Mid", "High"):
        setting = Setting("mnist", "primary_secondary", 10, 5, "mlp", level=level)
        seed = level_seed(setting, 3)
        assert 300 <= seed < 400
        drawn = federations.draws("mnist", "primary_secondary", (), 10, 3)
        klds[level] = (drawn[seed - 300] - min(drawn)) / (max(drawn) - min(drawn))
    assert klds["Low"] < 1 / 3 < klds["Mid"] < 2 / 3 < klds["High"]


def test_the_oracle_groups_clients_by_their_labels():
    counts = np.array([[9, 1, 0], [8, 2, 0], [0, 1, 9], [1, 0, 9]])
    assert by_kld(counts, count=2) in ((0, 0, 1, 1), (1, 1, 0, 0))
    assert len(set(by_kld(counts, share=1.0))) == 1
    assert len(set(by_kld(counts, share=0.0))) == 4


def test_a_naive_dynamic_run_is_fedavg_until_it_splits(made_data, tmp_path):
    setting = Setting("mnist", "pathological", 6, 4, "mlp", examples=60, validation=0.1, lr=0.1, evaluate_every=1)
    cells = tuple(
        Cell(row, "c", label, setting)
        for row, label in (("FedAvg", "fedavg"), ("naive", "dcpfl-nodc,layerwise=false,oracle=count:2,split_after=2"))
    )
    item = Item("", "", cells, {"accuracy": measures.personal}, figure_needs=("curve", "group_count"), seeds=1)
    made = carry_out.carry_out("p/x", item, "full", tmp_path, Cells(tmp_path / "cells"), workers=1)
    one, two = (made.runs[row, "c"][0].result["kept"] for row in ("FedAvg", "naive"))
    # the second round's models are the first that are averaged in groups
    assert one["curve"]["personal_loss"][0] == two["curve"]["personal_loss"][0]
    assert one["curve"]["personal_loss"][1] != two["curve"]["personal_loss"][1]
    assert [v for _, v in two["group_count"]] == [1, 2, 2, 2]


# ---- cells
def test_equal_cells_are_one_run_and_others_are_not():
    setting = Setting("mnist", "iid", 4, 100, "mlp", examples=400)
    cell = Cell("a", "b", "fedprox,mu=1,sampling=size", setting, replace(setting, rounds=10))
    name = job(cell, "full", 0).name
    for same in (
        replace(cell, row="another", column="column"),
        replace(cell, method="fedprox,sampling=size,mu=1"),
        replace(cell, setting=replace(setting, evaluate_every=5)),  # measuring changes no result
    ):
        assert job(same, "full", 0).name == name
    for other in (
        job(cell, "full", 1),
        job(cell, "desk", 0),
        job(replace(cell, method="fedprox,mu=2,sampling=size"), "full", 0),
        job(replace(cell, setting=replace(setting, lr=0.02)), "full", 0),
        job(replace(cell, setting=replace(setting, partition_options={"alpha": 1})), "full", 0),
    ):
        assert other.name != name


def test_a_key_knows_only_what_differs_from_the_defaults():
    """A new field with a default must keep every stored result."""
    assert Setting("mnist", "iid", 4, 10, "mlp", lr=0.2).changed() == {
        "data": "mnist",
        "partition": "iid",
        "clients": 4,
        "rounds": 10,
        "model": "mlp",
        "lr": 0.2,
    }


def test_keys_do_not_move():
    """Stored results are found by these names."""
    cell = Cell("a", "b", "fedavg", Setting("mnist", "shards", 50, 100, "fcnn2", width=0.3, examples=500))
    assert job(cell, "full", 2).name == "mnist-shards-8fd3c809/fedavg/seed-2"


# ---- outcomes
SETTING = Setting("mnist", "iid", 4, 10, "mlp", examples=40)


def outcome(values: dict[str, list[float | None]], claims: tuple[Claim, ...] = (), **item) -> Outcome:
    """One number for each seed."""
    cells = tuple(Cell(row, "c", "fedavg", SETTING, None, {"accuracy": 0.5}) for row in values)
    measure = Measure(lambda run: values[run.cell.row][run.seed], style="percent")
    made = Item("a title", "Table 9", cells, {"accuracy": measure}, claims, **item)
    runs = {
        (c.row, "c"): [Run(c, SETTING, seed, {}) for seed in range(len(values[c.row]))] for c in cells if values[c.row]
    }
    return Outcome("paper/table9", made, "desk", runs, {}, 60.0)


def test_intervals_are_students():
    # scipy.stats.t.interval(0.95, 2, mean, sem) of 1, 2, 3: 2 ± 4.3027 · 1/√3
    assert half_interval([1.0, 2.0, 3.0]) == pytest.approx(4.302653 / np.sqrt(3), rel=1e-5)
    assert half_interval([1.0]) is None


def test_verdicts():
    claims = tuple(Claim(("A", "c"), (other, "c"), "accuracy") for other in "BCDE")
    made = outcome(
        {
            "A": [0.90, 0.80, 0.70],
            "B": [0.80, 0.70, 0.61],  # always about 0.1 below: pairs by seed decide what means alone could not
            "C": [0.95, 0.86, 0.75],
            "D": [0.80, 0.80, 0.80],
            "E": [],
        },
        claims,
    )
    assert [one.verdict for one in made.claims()] == ["held", "not held", "undecided", "not measured"]
    header, rows = made.claim_table()
    assert header == ["claim", "c"]
    assert rows[0] == ["A above B (accuracy)", "held +9.67 [+8.23, +11.10]"]
    assert rows[3][1].startswith("not measured: ")
    assert "Claims: 1 held, 1 not held, 1 undecided, 1 not measured." in made.markdown()


def test_one_seed_decides_nothing():
    claims = (Claim(("A", "c"), ("B", "c"), "accuracy"),)
    for seeds, word in ((1, "one seed"), (2, "two seeds")):
        made = outcome({"A": [0.9] * seeds, "B": [0.1] * seeds}, claims)
        assert made.claims()[0].verdict == word
        assert made.claim_table()[1][0][1] == f"{word} +80.00"


def test_clients_are_the_unit_where_there_are_any():
    """Three seeds whose means differ by little are decided by their clients."""
    rng = np.random.default_rng(0)
    base = rng.normal(0.8, 0.05, (3, 40))
    values = {"A": base + 0.01 + rng.normal(0, 0.005, base.shape), "B": base}
    cells = tuple(Cell(row, "c", "fedavg", SETTING) for row in values)
    claims = (Claim(("A", "c"), ("B", "c"), "accuracy"), Claim(("A", "c"), ("B", "c"), "std"))
    item = Item("", "", cells, {"accuracy": measures.personal, "std": measures.spread_over_clients}, claims)
    runs = {
        (c.row, "c"): [Run(c, SETTING, s, {"personal": values[c.row][s].tolist()}) for s in range(3)] for c in cells
    }
    made = Outcome("p/i", item, "desk", runs, {}, 0.0)
    first, second = made.claims()
    assert (first.verdict, second.verdict) == ("held", "undecided")
    assert 0.007 < first.judgment.low < first.judgment.mean < first.judgment.high < 0.013
    found = made.to_json()["claims"][0]
    assert found["interval"] == pytest.approx([first.judgment.low, first.judgment.high], rel=1e-4)


def test_a_run_that_did_not_converge_decides_nothing():
    claims = (Claim(("A", "c"), ("B", "c"), "seconds"),)
    made = outcome({"A": [30.0, 31.0, 32.0], "B": [None, None, None]})
    measure = replace(made.item.measures["accuracy"], needs=("curve",), style="number")
    made = replace(made, item=replace(made.item, claims=claims, measures={"seconds": measure}))
    one = made.claims()[0]
    assert (one.verdict, one.reason) == ("not measured", "B did not converge")
    assert made.table("seconds")[1][1][1] == "not converged"


def test_a_seed_that_failed_is_seen():
    made = outcome({"A": [0.5, 0.7], "B": [0.2]})
    failed = replace(made, missing={("B", "c"): "failed: ValueError: it diverged (at once)"})
    assert [r[1] for r in failed.table("accuracy")[1]] == ["60.00 ± 127.06 (50.00)", "20.00 [1 of 2] (50.00)"]
    assert "Failed: ValueError: it diverged: B, c." in failed.markdown()


def test_never_is_later_than_the_last_round():
    claims = (Claim(("slow", "c"), ("fast", "c"), "rounds to 50%"),)
    made = outcome({"slow": [None, None, 9.0], "fast": [2.0, 3.0, 2.0], "B": []})
    never = replace(made.item.measures["accuracy"], at_least=measures.rounds_to(0.5).at_least)
    item = replace(made.item, claims=claims, measures={"rounds to 50%": never})
    one = replace(made, item=item).judged(claims[0])
    assert (one.verdict, one.at_least) == ("held", True)
    assert one.judgment.mean == pytest.approx((9 + 8 + 7) / 3)  # of 10 rounds: never is 11
    nobody = outcome({"slow": [None], "fast": [None]})
    item = replace(nobody.item, claims=claims, measures={"rounds to 50%": nobody.item.measures["accuracy"]})
    one = replace(nobody, item=item).judged(claims[0])
    assert (one.verdict, one.reason) == ("not measured", "neither reached it")


def test_rounds_before_the_first_measurement_cannot_be_told_apart():
    claims = (Claim(("slow", "c"), ("fast", "c"), "rounds to 50%"),)
    for slow, verdict in (([2.0, 2.0, 2.0], "not measured"), ([4.0, 4.0, 4.0], "held")):
        made = outcome({"slow": slow, "fast": [2.0, 2.0, 2.0]})
        number = replace(made.item.measures["accuracy"], least=lambda run: 2.0)
        one = replace(made, item=replace(made.item, measures={"rounds to 50%": number})).judged(claims[0])
        assert one.verdict == verdict
        assert one.reason == ("both reached it before the first measurement" if verdict == "not measured" else "")


def seconds_of(slow: list[float | None], fast: list[float | None]):
    """A claim that slow takes more seconds than fast; a run without a number takes at least 50."""
    claims = (Claim(("slow", "c"), ("fast", "c"), "seconds"),)
    made = outcome({"slow": slow, "fast": fast})
    number = replace(made.item.measures["accuracy"], needs=("curve",), style="number", at_least=lambda run: 50.0)
    return replace(made, item=replace(made.item, claims=claims, measures={"seconds": number}))


@pytest.mark.parametrize(
    ("slow", "fast", "verdict"),
    [
        ([None, None, None], [30.0, 31.0, 32.0], "held"),
        ([None, 60.0, None], [30.0, 31.0, 32.0], "held"),
        ([30.0, 31.0, 32.0], [None, None, None], "not held"),
        ([None, None, None], [70.0, 71.0, 72.0], "not measured"),  # the one that did not converge may take longer yet
        ([None, None, None], [49.0, 50.0, 51.0], "not measured"),
        ([None, None, None], [None, None, None], "not measured"),
        ([None, 60.0, 60.0], [30.0, None, 31.0], "one seed"),
    ],
)
def test_a_run_that_did_not_converge_takes_at_least_as_long_as_it_ran(slow, fast, verdict):
    made = seconds_of(slow, fast)
    one = made.claims()[0]
    assert one.verdict == verdict
    assert ("at least" in made.verdict_text(one)) == one.at_least == (verdict in ("held", "not held"))
    if verdict == "not measured":
        assert one.reason == "slow did not converge"


def test_a_run_that_ended_early_may_have_converged_in_its_last_rounds():
    setting = replace(SETTING, rounds=50)
    curve = {"rounds": list(range(2, 51, 2)), "personal": [0.01 * i for i in range(25)]}
    seconds = {"compute_seconds": [float(r) for r in curve["rounds"]]}
    run = Run(Cell("A", "c", "fedavg", setting), setting, 0, {"kept": {"curve": curve, "time": seconds}})
    measure = measures.until_converged("compute_seconds")
    assert measure.of(run) is None
    assert measure.at_least is not None
    assert measure.at_least(run) == 42, "10 rounds without a gain are needed to tell"


def test_what_is_not_a_number_decides_nothing():
    claims = (Claim(("A", "c"), ("B", "c"), "accuracy"),)
    assert outcome({"A": [np.nan] * 3, "B": [0.1, 0.2, 0.3]}, claims).claims()[0].verdict == "not measured"


def test_columns_of_means():
    cells = tuple(Cell(row, column, "fedavg", SETTING) for row in "AB" for column in "xy")
    table = {("A", "x"): [0.1, 0.2], ("A", "y"): [0.3, 0.6], ("B", "x"): [0.5, 0.5], ("B", "y"): [None, 0.5]}
    item = Item(
        "a title",
        "Table 9",
        cells,
        {"accuracy": Measure(lambda run: table[run.cell.row, run.cell.column][run.seed], style="percent")},
        (Claim(("A", "mean"), ("B", "mean"), "accuracy"),),
        means={"mean": ("x", "y")},
        paper_means={("A", "mean"): 0.31},
    )
    runs = {(c.row, c.column): [Run(c, SETTING, seed, {}) for seed in (0, 1)] for c in cells}
    made = Outcome("paper/table9", item, "desk", runs, {}, 60.0)
    assert made.values("A", "mean", "accuracy") == pytest.approx({0: 0.2, 1: 0.4})
    assert made.values("B", "mean", "accuracy") == {1: 0.5}  # seed 0 has a gap
    header, rows = made.table("accuracy")
    assert header[1:] == ["x", "y", "mean"]
    assert rows[0][3] == "30.00 ± 127.06 (31.00)"
    assert made.judged(item.claims[0]).judgment.mean == pytest.approx(-0.1)
    # where clients are the unit, a mean has the clients of all its columns
    per_client = replace(item, measures={"accuracy": measures.personal})
    runs = {k: [replace(r, result={"personal": [0.1, 0.2]}) for r in v] for k, v in runs.items()}
    found = replace(made, item=per_client, runs=runs).clients("A", "mean", "accuracy")
    assert found[0].tolist() == [0.1, 0.2, 0.1, 0.2]


def test_tables_say_what_was_not_reached_and_what_is_not_there():
    made = outcome({"A": [0.5, 0.7], "B": [None, 0.2], "C": [None, None], "D": []})
    header, rows = made.table("accuracy")
    assert header == ["accuracy: ours (paper)", "c"]
    assert [r[1] for r in rows] == ["60.00 ± 127.06 (50.00)", "20.00 [1 of 2] (50.00)", "– (50.00)", "– (50.00)"]
    named = replace(made.item, measures={"rounds to 50%": Measure(lambda run: None)})
    assert replace(made, item=named).table("rounds to 50%")[1][0][1] == "never"
    text = made.markdown()
    assert "`fedkin reproduce paper/table9 --scale desk --seeds 2`" in text  # the item's own would be 3
    assert json.loads(json.dumps(made.to_json()))["cells"][1]["measures"]["accuracy"]["values"] == [None, 0.2]


# ---- runs
SMALL = Setting("mnist", "iid", 4, 2, "mlp", examples=40)
TINY = Item(
    "two methods",
    "Table 0",
    tuple(Cell(m, "mnist", m, SMALL) for m in ("fedavg", "local")),
    {"accuracy": measures.personal},
    seeds=2,
)


def tried(item: Item, out: Path, **options) -> Outcome:
    return carry_out.carry_out("paper/tiny", item, "full", out, Cells(out / "cells"), workers=1, **options)


def test_finished_runs_are_not_run_again(tmp_path, made_data, monkeypatch):
    first = tried(TINY, tmp_path)
    assert {index: len(runs) for index, runs in first.runs.items()} == {("fedavg", "mnist"): 2, ("local", "mnist"): 2}
    assert first.seconds > 0
    monkeypatch.setattr(carry_out, "run_one", lambda *a: pytest.fail("it was run again"))
    assert tried(TINY, tmp_path).to_json() == first.to_json()
    # the stored cells are enough: no run folder is needed
    shutil.rmtree(tmp_path / "runs")
    assert tried(TINY, tmp_path).to_json() == first.to_json()
    # and the run folders are enough
    with pytest.raises(pytest.fail.Exception, match="run again"):
        tried(TINY, tmp_path, seeds=3)


def test_what_another_item_needs_is_taken_from_the_finished_run(tmp_path, made_data, monkeypatch):
    tried(TINY, tmp_path)
    monkeypatch.setattr(carry_out, "run_one", lambda *a: pytest.fail("it was run again"))
    more = replace(TINY, figure_needs=("labels",))
    assert len(tried(more, tmp_path).runs["fedavg", "mnist"][0].result["kept"]["labels"]) == 4
    shutil.rmtree(tmp_path / "runs")
    with pytest.raises(pytest.fail.Exception, match="run again"):
        tried(replace(TINY, figure_needs=("mixing",)), tmp_path)


def test_needs_of_all_items_together():
    one = replace(TINY, figure_needs=("labels",))
    two = replace(TINY, figure_needs=("mixing",), cells=TINY.cells[:1])
    found = carry_out.needs({"p/one": one, "p/two": two}, "full")
    assert {name.split("/")[1]: keep for name, keep in found.items()} == {
        "fedavg": {"labels", "mixing"},
        "local": {"labels"},
    }


def test_a_stored_cell_is_small(tmp_path, made_data):
    tried(TINY, tmp_path)
    files = list((tmp_path / "cells").rglob("*.json"))
    assert len(files) == 2
    assert all(path.stat().st_size < 3000 for path in files)
    found = json.loads(files[0].read_text())
    assert set(found) == {"method", "setting", "runs"}
    assert set(found["runs"]) == {"0", "1"}


def test_only_some_rows(tmp_path, made_data, capsys):
    made = tried(TINY, tmp_path, seeds=1, only=("local",))
    assert list(made.runs) == [("local", "mnist")]
    show(made, Console(width=80))
    shown = capsys.readouterr().out
    assert "│ local" in shown
    assert "│ fedavg" not in shown
    with pytest.raises(ValueError, match=r"leaves nothing of paper/tiny; its rows: fedavg, local"):
        tried(TINY, tmp_path, only=("fedprox",))


def test_data_that_is_not_there_is_said_and_the_rest_is_run(tmp_path, made_data, monkeypatch):
    arrays = federations.arrays

    asked = []

    def absent(data):
        if data == "cifar100":
            asked.append(data)
            raise FileNotFoundError("CIFAR is not here: put it there.")
        return arrays(data)

    monkeypatch.setattr(federations, "arrays", absent)
    settings = [replace(SMALL, data="cifar100", lr=lr) for lr in (0.1, 0.2)]
    others = [replace(TINY.cells[0], column=f"c{i}", setting=setting) for i, setting in enumerate(settings)]
    made = tried(replace(TINY, cells=(*TINY.cells, *others)), tmp_path, seeds=1)
    assert asked == ["cifar100"]  # and not once for each setting
    assert made.missing == {("fedavg", name): "CIFAR is not here: put it there." for name in ("c0", "c1")}
    assert ("fedavg", "mnist") in made.runs
    assert "CIFAR is not here: put it there: c0; c1." in made.markdown()
    assert made.table("accuracy")[1][0][2] == "no data"


def test_svhn_is_not_downloaded_and_its_absence_is_one_line(tmp_path, made_data, monkeypatch, capsys):
    monkeypatch.setenv("FEDKIN_DATA", str(tmp_path))
    monkeypatch.setattr(federations.svhn, "at_hand", at_hand)
    monkeypatch.setattr("pooch.retrieve", lambda *_, **__: pytest.fail("it was downloaded"))
    other = replace(TINY.cells[0], column="svhn", setting=replace(SMALL, data="svhn"))
    made = tried(replace(TINY, cells=(*TINY.cells, other)), tmp_path, seeds=1)
    show(made, Console(width=300))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "SVHN" in line]
    assert line.startswith(
        f"1 cell: not run: SVHN is not at hand (it is not in {tmp_path / 'svhn'}, and reproduce does"
    )
    assert "Not run: SVHN is not at hand: svhn." in made.markdown()


def test_tables_fit_the_terminal_unless_they_may_be_wide(tmp_path, made_data, capsys):
    columns = [replace(TINY.cells[0], column=f"a column with number {i}") for i in range(6)]
    made = tried(replace(TINY, cells=(*TINY.cells, *columns)), tmp_path, seeds=1)
    show(made, Console(width=80))
    narrow = capsys.readouterr().out
    assert max(map(len, narrow.splitlines())) <= 80
    assert all(cell.column in narrow for cell in columns)
    assert "…" not in narrow
    show(made, Console(width=80), wide=True)
    assert any(all(cell.column in line for cell in columns) for line in capsys.readouterr().out.splitlines())


def test_a_run_that_fails_does_not_stop_the_others(tmp_path, made_data, monkeypatch):
    whole = carry_out.run_one

    def fails(job, out):
        if job.method == "local":
            raise RuntimeError("the loss is not finite")
        whole(job, out)

    monkeypatch.setattr(carry_out, "run_one", fails)
    made = tried(TINY, tmp_path, seeds=1)
    assert made.missing == {("local", "mnist"): "failed: RuntimeError: the loss is not finite"}
    assert made.table("accuracy")[1][1][1] == "failed"
    assert ("fedavg", "mnist") in made.runs
    assert list(Cells(tmp_path / "cells").failures.values()) == ["failed: RuntimeError: the loss is not finite"]
    monkeypatch.setattr(carry_out, "run_one", whole)  # it was mended
    assert not tried(TINY, tmp_path, seeds=1).missing
    assert not Cells(tmp_path / "cells").failures


def test_trouble_with_a_folder_is_not_stored_as_a_failure_of_the_method(tmp_path, made_data, monkeypatch):
    def fails(job, out):
        raise FolderError("it is in use by another fedkin")

    monkeypatch.setattr(carry_out, "run_one", fails)
    assert set(tried(TINY, tmp_path, seeds=1).missing.values()) == {
        "failed: FolderError: it is in use by another fedkin"
    }
    assert not Cells(tmp_path / "cells").failures


@pytest.mark.processes
def test_a_worker_that_was_killed_is_said_in_one_line(tmp_path, made_data, monkeypatch):
    monkeypatch.setattr(carry_out, "run_one", _killed)
    with pytest.raises(ChildProcessError, match="perhaps for want of memory"):
        carry_out.carry_out("paper/tiny", TINY, "full", tmp_path, Cells(tmp_path / "cells"), seeds=1, workers=2)
    assert not Cells(tmp_path / "cells").failures


@pytest.mark.processes
def test_a_stop_does_not_wait_for_the_runs_under_way(tmp_path, made_data, monkeypatch):
    began = tmp_path / "began"
    monkeypatch.setattr(carry_out, "run_one", partial(_never_ends, began))
    real = carry_out.wait

    def stopped(running, return_when):
        while not began.exists():
            real(running, timeout=0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(carry_out, "wait", stopped)
    with pytest.raises(KeyboardInterrupt):
        carry_out.carry_out("paper/tiny", TINY, "full", tmp_path, Cells(tmp_path / "cells"), seeds=1, workers=2)
    assert not Cells(tmp_path / "cells").failures


@pytest.mark.processes
def test_workers_do_not_hear_what_a_terminal_sends_to_all():
    asks = "import signal; print(*sorted(s.name for s in signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
    with carry_out._unheard_by_children():
        child = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=True)
    assert child.stdout.split() == ["SIGHUP", "SIGINT"]
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, []) & {signal.SIGHUP, signal.SIGINT}


def test_a_removal_that_was_cut_short_leaves_a_folder_that_can_be_used(tmp_path, made_data, monkeypatch):
    tried(TINY, tmp_path, seeds=1)
    folder = next((tmp_path / "runs").glob("*/*/seed-0"))

    def cut_short(path, files):
        files[0].unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(results_folder, "_remove", cut_short)
        with pytest.raises(KeyboardInterrupt):
            carry_out._removed(folder)
    assert not (folder / "finished.json").exists()
    results_folder.check(folder, "run")
    carry_out._removed(folder)
    assert not folder.exists()


def _killed(job, out):
    os._exit(9)


def _never_ends(began, job, out):
    began.touch()
    threading.Event().wait()


def test_a_run_stopped_under_other_code_begins_again(tmp_path, made_data):
    """Else work over days would end with the first change of a method's fields."""
    tried(TINY, tmp_path, seeds=1)
    folder = next((tmp_path / "runs").glob("*/fedavg/seed-0"))
    (folder / "finished.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    config["method"]["a_field_of_old"] = 1
    (folder / "config.json").write_text(json.dumps(config))
    shutil.rmtree(tmp_path / "cells")
    assert not tried(TINY, tmp_path, seeds=1).missing
    assert "a_field_of_old" not in (folder / "config.json").read_text()


def test_side_by_side_and_one_by_one_give_the_same(tmp_path, real_data):
    real_data("mnist/train-labels-idx1-ubyte.gz")
    found = []
    for workers in (1, 2):
        out = tmp_path / str(workers)
        made = carry_out.carry_out("paper/tiny", TINY, "full", out, Cells(out / "cells"), workers=workers)
        found.append(made.to_json()["cells"])
    assert found[0] == found[1]


def smoke(name: str, out: Path) -> Outcome:
    made = carry_out.carry_out(name, ALL[name], "smoke", out, Cells(out / "cells"), workers=1)
    assert not made.missing
    assert all(len(made.runs[c.row, c.column]) == 1 for c in ALL[name].cells)
    files = write(made, out)
    least = {".csv": 20, ".tex": 100}  # bytes: a small table is short
    assert all(path.stat().st_size > least.get(path.suffix, 300) for path in files)
    assert {path.suffix for path in files} >= ({".json", ".md", ".png"} if ALL[name].figure else {".json", ".md"})
    return made


@pytest.mark.parametrize("name", ["fedcedar/fig3", "pfedgat/fig4", "dcpfl/fig10", "dcpfl/fig3"])
def test_smoke(name, tmp_path, made_data):
    made = smoke(name, tmp_path)
    headline = next(iter(made.item.measures))
    assert all(0 <= made.number(cell.row, cell.column, headline).mean <= 1 for cell in made.item.cells)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_smoke_of_every_item(name, tmp_path, made_data):
    smoke(name, tmp_path)


def test_find():
    assert list(find("fedcedar")) == [n for n in WANTED if n.startswith("fedcedar/")]
    with pytest.raises(ValueError, match=r"no item 'table9'. Known: fedcedar/table1"):
        find("fedcedar/table9")
    with pytest.raises(ValueError, match=r"no paper 'fedsedar'. Did you mean fedcedar"):
        find("fedsedar/table1")


# ---- what is left
def test_status_and_list(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    show_status(["fedcedar/fig3"], "desk", None, store_of(None, "desk", tmp_path), Console(width=200))
    assert "0 of 9" in capsys.readouterr().out
    for width in (80, 250):
        show_list(None, Console(width=width))
        shown = capsys.readouterr().out
        assert all(name in shown for name in WANTED)
        assert max(map(len, shown.splitlines())) <= width


def test_the_time_left_is_learned_from_runs_that_are_done(tmp_path):
    cells = Cells(tmp_path)
    jobs = [Job("fedavg", SMALL, seed) for seed in range(3)]
    cells.put(jobs[0], {"seconds": 100.0})
    found = status(jobs, cells, {})
    assert (found.done, found.total, found.spent) == (1, 3, 100.0)
    assert found.left == pytest.approx(200.0)  # two more seeds of the same
    others = [*jobs[:1], Job("fedprox", SMALL, 0)]
    assert status(others, cells, {}).left == pytest.approx(100.0)  # counted alike, on the same data


@pytest.mark.processes
def test_listing_does_not_wait_for_torch():
    code = "import sys; from fedkin.cli.reproduce import command; command(['--list']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
