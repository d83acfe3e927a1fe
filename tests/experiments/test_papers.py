"""The papers' experiments: what is declared, how it is made smaller, what is said of the outcome."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedkin.data import DATASETS
from fedkin.data.arrays import Arrays
from fedkin.data.partition import PARTITIONS
from fedkin.experiments import carry_out
from fedkin.experiments.carry_out import job, level_seed
from fedkin.experiments.declare import SCALES, Cell, Claim, Item, Run, Setting, key, scaled
from fedkin.experiments.outcome import Outcome, half_interval
from fedkin.experiments.papers import PAPERS, find, items, pfedgat
from fedkin.experiments.reproduce import write
from fedkin.methods import METHODS, method
from fedkin.models import MODELS
from fedkin.results.comparison import parse

ALL = {f"{paper}/{name}": item for paper in PAPERS for name, item in items(paper).items()}
WANTED = [
    *(f"fedcedar/{n}" for n in ("table1", "table2", "fig3", "fig4")),
    *(f"pflic/{n}" for n in ("fig6", "fig7", "fig8", "table4", "fig9", "tables2-3")),
    *(f"pfedgat/{n}" for n in ("table1", "table2", "table3", "table4", "fig2", "fig3", "fig4", "feedback")),
    *(f"dcpfl/{n}" for n in ("fig1", "fig2", "fig3", "fig4-5", "fig6", "fig7", "fig8", "fig9", "fig10")),
    *(f"dcpfl/{n}" for n in ("table1", "table2")),
]


@pytest.fixture
def made_data(monkeypatch):
    """Pictures of noise with a class-dependent brightness, in the shapes of the real sets."""

    def arrays(data: str) -> Arrays:
        rng = np.random.default_rng(0)
        side, channels, classes = (28, 1, 10) if "mnist" in data else (32, 3, 100 if data == "cifar100" else 10)
        rows = 8000
        y = np.arange(rows) % classes
        x = rng.integers(0, 100, (rows, side, side, channels)) + (155 * y // classes)[:, None, None, None]
        return Arrays(
            x.astype(np.uint8), y.astype(np.int64), classes, image=True, mean=(100.0,), std=(60.0,), train=7000
        )

    kept: dict[str, Arrays] = {}
    monkeypatch.setattr(carry_out, "_arrays", lambda data: kept.setdefault(data, arrays(data)))
    for cached in (carry_out._federation, carry_out._draws):
        cached.cache_clear()
    yield
    for cached in (carry_out._federation, carry_out._draws):
        cached.cache_clear()


# ---- declarations
def test_every_table_and_figure_of_the_four_papers_is_declared():
    assert list(ALL) == WANTED


@pytest.mark.parametrize("name", ALL)
def test_what_is_declared_can_be_run(name):
    item = ALL[name]
    places = [(c.row, c.column) for c in item.cells]
    assert len(places) == len(set(places))
    for cell in item.cells:
        one = job(cell, SCALES["tenth"], 0)
        label, fields = parse(one.method)
        fields.pop("nodes", None)
        assert label in METHODS
        method(label, **fields)
        assert cell.setting.data in DATASETS
        assert cell.setting.partition in PARTITIONS
        assert cell.setting.model in MODELS
        PARTITIONS[cell.setting.partition](**cell.setting.partition_options)
        assert set(cell.paper) <= set(item.measures)
    assert set().union(*item.means.values()) <= set(item.columns())
    places += [(row, column) for column in item.means for row in item.rows()]
    for claim in item.claims:
        assert {claim.above, claim.below} <= set(places), claim
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
def test_scales():
    setting = Setting("mnist", "iid", 100, 600, 100, "cnn3", lr=0.01, epochs=5, evaluate_every=10)
    assert scaled(setting, SCALES["full"]) is setting
    half, tenth, smoke = (scaled(setting, SCALES[s]) for s in ("half", "tenth", "smoke"))
    assert (half.rows, half.rounds, half.lr, half.epochs, half.evaluate_every) == (300, 50, 0.01, 5, 5)
    assert (tenth.clients, tenth.rows, tenth.test, tenth.model) == (50, 80, 0.5, "cnn2")
    assert (tenth.rounds, tenth.lr, tenth.epochs, tenth.evaluate_every) == (10, 0.05, 2, 1)
    assert scaled(replace(setting, clients_matter=True), SCALES["tenth"]).clients == 100
    assert scaled(replace(setting, model="fcnn1"), SCALES["tenth"]).model == "fcnn1"
    assert (smoke.rows, smoke.rounds, smoke.epochs) == (20, 2, 1)
    assert scaled(replace(setting, clients=10, rows=6000), SCALES["tenth"]).rows == 120
    assert scaled(replace(setting, clients=40, rows=6000), SCALES["tenth"]).rows == 100
    # never more than the paper has, never less than the method needs
    assert scaled(replace(setting, rows=30, rounds=8), SCALES["tenth"]).rows == 30
    assert scaled(replace(setting, rounds=8), SCALES["tenth"]).rounds == 8
    assert scaled(replace(setting, least_rounds=15), SCALES["tenth"]).rounds == 15


def test_seeds_of_a_scale():
    assert ALL["pfedgat/table1"].seeds_at(SCALES["tenth"]) == 1  # 135 cells
    assert ALL["pfedgat/table1"].seeds_at(SCALES["full"]) == 3
    assert ALL["fedcedar/table1"].seeds_at(SCALES["tenth"]) == 3  # 60 cells
    assert ALL["fedcedar/table1"].seeds_at(SCALES["smoke"]) == 1


def test_a_part_of_the_rounds_in_a_methods_options():
    cell = Cell(
        "a", "b", "dcpfl-nodc,start_rounds={eighth}", Setting("mnist", "iid", 4, 40, 400, "mlp", least_rounds=20)
    )
    assert job(cell, SCALES["full"], 0).method == "dcpfl-nodc,start_rounds=50"
    assert job(cell, SCALES["tenth"], 0).method == "dcpfl-nodc,start_rounds=8"


def test_equal_cells_are_one_run_and_others_are_not():
    setting = Setting("mnist", "iid", 4, 400, 100, "mlp")
    cell = Cell("a", "b", "fedavg", setting)
    name = job(cell, SCALES["full"], 0).name
    assert job(replace(cell, row="another", column="place"), SCALES["full"], 0).name == name
    for other in (
        job(cell, SCALES["full"], 1),
        job(cell, SCALES["half"], 0),
        job(replace(cell, method="fedprox"), SCALES["full"], 0),
        job(replace(cell, setting=replace(setting, lr=0.02)), SCALES["full"], 0),
    ):
        assert other.name != name


def test_levels_of_heterogeneity_are_thirds_of_the_range(made_data):
    klds = {}
    for level in ("Low", "Mid", "High"):
        setting = Setting("mnist", "primary_secondary", 10, 100, 5, "mlp", level=level)
        seed = level_seed(key(setting), 3)
        assert 300 <= seed < 400
        drawn = carry_out._draws("mnist", "primary_secondary", "{}", 10, 3)
        klds[level] = (drawn[seed - 300] - min(drawn)) / (max(drawn) - min(drawn))
    assert klds["Low"] < 1 / 3 < klds["Mid"] < 2 / 3 < klds["High"]


# ---- outcomes
def outcome(values: dict[str, list[float | None]], claims: tuple[Claim, ...] = (), **item) -> Outcome:
    setting = Setting("mnist", "iid", 4, 40, 10, "mlp")
    cells = tuple(Cell(row, "c", "fedavg", setting, {"accuracy": 0.5}) for row in values)
    made = Item("a title", "Table 9", cells, {"accuracy": lambda run: values[run.cell.row][run.seed]}, claims, **item)
    runs = {(c.row, "c"): [Run(c, seed, Path()) for seed in range(len(values[c.row]))] for c in cells if values[c.row]}
    return Outcome("paper/table9", made, SCALES["tenth"], runs, {}, 60.0)


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
    assert [v for _, v, _, _ in made.claims()] == ["held", "not held", "undecided", "not measured"]
    header, rows = made.claim_table()
    assert header == ["claim", "c"]
    assert rows[0] == ["A above B (accuracy)", "held +9.67 ± 1.43"]
    assert rows[3] == ["A above E (accuracy)", "not measured"]
    # one seed decides nothing
    single = outcome({"A": [0.9], "B": [0.1]}, claims[:1])
    assert single.claims()[0][1] == "undecided"


def test_a_seed_that_failed_is_seen():
    made = outcome({"A": [0.5, 0.7], "B": [0.2]})
    failed = replace(made, missing={("B", "c"): "failed: ValueError: it diverged (at once)"})
    assert [r[1] for r in failed.table("accuracy")[1]] == ["60.00 ± 127.06 (50.00)", "20.00 [1 of 2] (50.00)"]
    assert "Not run: B, c: failed: ValueError: it diverged." in failed.markdown()


def test_never_is_later_than_the_last_round():
    claims = (Claim(("slow", "c"), ("fast", "c"), "rounds to 50%"),)
    made = outcome({"slow": [None, None, 9.0], "fast": [2.0, 3.0, 2.0], "B": []})
    item = replace(made.item, claims=claims, measures={"rounds to 50%": made.item.measures["accuracy"]})
    verdict, mean, _ = replace(made, item=item).verdict(claims[0])
    assert verdict == "held"
    assert mean == pytest.approx((9 + 8 + 7) / 3)  # of 10 rounds: never is 11
    nobody = outcome({"slow": [None], "fast": [None]})
    item = replace(nobody.item, claims=claims, measures={"rounds to 50%": nobody.item.measures["accuracy"]})
    assert replace(nobody, item=item).verdict(claims[0])[0] == "not measured"


def test_what_is_not_a_number_decides_nothing():
    claims = (Claim(("A", "c"), ("B", "c"), "accuracy"),)
    assert outcome({"A": [np.nan, np.nan], "B": [0.1, 0.2]}, claims).claims()[0][1] == "not measured"


def test_columns_of_means():
    setting = Setting("mnist", "iid", 4, 40, 10, "mlp")
    cells = tuple(Cell(row, column, "fedavg", setting) for row in "AB" for column in "xy")
    table = {("A", "x"): [0.1, 0.2], ("A", "y"): [0.3, 0.6], ("B", "x"): [0.5, 0.5], ("B", "y"): [None, 0.5]}
    item = Item(
        "a title",
        "Table 9",
        cells,
        {"accuracy": lambda run: table[run.cell.row, run.cell.column][run.seed]},
        (Claim(("A", "mean"), ("B", "mean"), "accuracy"),),
        means={"mean": ("x", "y")},
        paper_means={("A", "mean"): 0.31},
    )
    runs = {(c.row, c.column): [Run(c, seed, Path()) for seed in (0, 1)] for c in cells}
    made = Outcome("paper/table9", item, SCALES["tenth"], runs, {}, 60.0)
    assert made.values("A", "mean", "accuracy") == pytest.approx({0: 0.2, 1: 0.4})
    assert made.values("B", "mean", "accuracy") == {1: 0.5}  # seed 0 has a gap
    header, rows = made.table("accuracy")
    assert header[1:] == ["x", "y", "mean"]
    assert rows[0][3] == "30.00 ± 127.06 (31.00)"
    assert made.verdict(item.claims[0])[1] == pytest.approx(-0.1)


def test_tables_say_what_was_not_reached_and_what_is_not_there():
    made = outcome({"A": [0.5, 0.7], "B": [None, 0.2], "C": [None, None], "D": []})
    header, rows = made.table("accuracy")
    assert header == ["accuracy: ours (paper)", "c"]
    assert [r[1] for r in rows] == ["60.00 ± 127.06 (50.00)", "20.00 [1 of 2] (50.00)", "– (50.00)", "– (50.00)"]
    named = replace(made.item, measures={"rounds to 50%": lambda run: None})
    assert replace(made, item=named).table("rounds to 50%")[1][0][1] == "never"
    text = made.markdown()
    assert "`fedkin reproduce paper/table9 --scale tenth --seeds 2`" in text  # the item's own would be 3
    assert json.loads(json.dumps(made.to_json()))["cells"][1]["measures"]["accuracy"]["values"] == [None, 0.2]


# ---- runs
TINY = Item(
    "two methods",
    "Table 0",
    tuple(Cell(m, "mnist", m, Setting("mnist", "iid", 4, 40, 2, "mlp")) for m in ("fedavg", "local")),
    {"accuracy": lambda run: run.summary["personal"]["mean"]},
    seeds=2,
)


def test_finished_runs_are_not_run_again(tmp_path, made_data, monkeypatch):
    first = carry_out.carry_out("paper/tiny", TINY, SCALES["full"], tmp_path, workers=1)
    assert {place: len(runs) for place, runs in first.runs.items()} == {("fedavg", "mnist"): 2, ("local", "mnist"): 2}
    assert first.seconds > 0
    monkeypatch.setattr(carry_out, "run_one", lambda *a: pytest.fail("it was run again"))
    again = carry_out.carry_out("paper/tiny", TINY, SCALES["full"], tmp_path, workers=1)
    assert again.to_json() == first.to_json()
    with pytest.raises(pytest.fail.Exception, match="run again"):
        carry_out.carry_out("paper/tiny", TINY, SCALES["full"], tmp_path, seeds=3, workers=1)


def test_only_some_rows(tmp_path, made_data):
    made = carry_out.carry_out("paper/tiny", TINY, SCALES["full"], tmp_path, seeds=1, only=("local",), workers=1)
    assert list(made.runs) == [("local", "mnist")]
    with pytest.raises(ValueError, match=r"leaves nothing of paper/tiny; its rows: fedavg, local"):
        carry_out.carry_out("paper/tiny", TINY, SCALES["full"], tmp_path, only=("fedprox",), workers=1)


def test_data_that_is_not_there_is_said_and_the_rest_is_run(tmp_path, made_data, monkeypatch):
    arrays = carry_out._arrays

    def absent(data):
        if data == "svhn":
            raise FileNotFoundError("SVHN is not here: put it there.")
        return arrays(data)

    monkeypatch.setattr(carry_out, "_arrays", absent)
    other = replace(TINY.cells[0], column="svhn", setting=replace(TINY.cells[0].setting, data="svhn"))
    item = replace(TINY, cells=(*TINY.cells, other))
    made = carry_out.carry_out("paper/tiny", item, SCALES["full"], tmp_path, seeds=1, workers=1)
    assert made.missing == {("fedavg", "svhn"): "SVHN is not here: put it there."}
    assert ("fedavg", "mnist") in made.runs
    assert "No data for svhn: SVHN is not here" in made.markdown()


def test_a_run_that_fails_does_not_stop_the_others(tmp_path, made_data, monkeypatch):
    whole = carry_out.run_one

    def fails(job, out):
        if job.method == "local":
            raise RuntimeError("the loss is not finite")
        whole(job, out)

    monkeypatch.setattr(carry_out, "run_one", fails)
    made = carry_out.carry_out("paper/tiny", TINY, SCALES["full"], tmp_path, seeds=1, workers=1)
    assert made.missing == {("local", "mnist"): "failed: RuntimeError: the loss is not finite"}
    assert made.table("accuracy")[1][1][1] == "failed"
    assert ("fedavg", "mnist") in made.runs


def test_side_by_side_and_one_by_one_give_the_same(tmp_path, real_data):
    real_data("mnist/train-labels-idx1-ubyte.gz")
    one = carry_out.carry_out("paper/tiny", TINY, SCALES["full"], tmp_path / "one", workers=1)
    two = carry_out.carry_out("paper/tiny", TINY, SCALES["full"], tmp_path / "two", workers=2)
    assert one.to_json()["cells"] == two.to_json()["cells"]


def smoke(name: str, out: Path) -> Outcome:
    made = carry_out.carry_out(name, ALL[name], SCALES["smoke"], out, workers=1)
    assert not made.missing
    assert all(len(made.runs[c.row, c.column]) == 1 for c in ALL[name].cells)
    files = write(made, out)
    assert all(path.stat().st_size > 500 for path in files)
    assert {path.suffix for path in files} >= ({".json", ".md", ".png"} if ALL[name].figure else {".json", ".md"})
    return made


@pytest.mark.parametrize("name", ["fedcedar/fig3", "pfedgat/fig4", "dcpfl/fig10"])
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
