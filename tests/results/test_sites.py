"""Which method is best for my site: chosen on validation, judged on test, said in one line, in every format."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

import fedkin
from fedkin.results.comparison import Comparison, Line
from fedkin.results.interval import Predictions
from fedkin.results.sites import Advice, Cell, Collected, Draws, answers
from fedkin.results.sites_tables import latex, markdown
from fedkin.task import Classification, Regression


class Split:
    def __init__(self, test, validation):
        self.test, self.validation = np.arange(test), np.arange(validation)


class Fed:
    """As much of a federation as an answer needs."""

    def __init__(self, names, test=60, validation=20):
        self.names, self.classes = tuple(names), 2
        self.splits = [Split(test, validation) for _ in names]

    def __len__(self):
        return len(self.names)

    def majority_rate(self, client):
        return 0.5


def method(right, validation, *, examples=60, one_class=False, seeds=1):
    """A method that is right on this many of the test examples, the first ones."""
    targets = np.arange(examples) % 2
    correct = np.arange(examples) < right
    outputs = np.stack([targets != correct, targets == correct], 1).astype(float)
    made = Collected()
    for _ in range(seeds):
        made.test.append({0: right / examples})
        made.validation.append({0: validation})
        made.one_class.append({0: True} if one_class else {})
        made.predictions.append({0: Predictions(np.arange(examples), outputs, targets)})
    return made


def answer(methods, task=None, **changes):
    task, fed = task or Classification(), Fed(["north"], **changes)
    return answers(methods, [fed], task, Draws(methods, 1, task))[0]


def test_the_choice_is_on_validation_though_another_is_better_on_test():
    site = answer({"local": method(30, 0.5), "a": method(55, 0.6), "b": method(45, 0.7)})
    assert site.use == "b"
    assert site.advice.startswith("north: b, accuracy 75.00 %, +25.00 over training alone (95 % interval +")
    assert site.advice.endswith("60 test examples; chosen on validation)")
    low = site.cells["b"].low
    assert 0 < low < 0.25 < site.cells["b"].high


def test_a_small_gain_is_not_a_gain():
    site = answer({"local": method(40, 0.5), "a": method(42, 0.6)})
    assert site.use == "local"
    assert site.advice.startswith(
        "north: no method is shown to be better than training alone here: a, accuracy 70.00 %"
    )


def test_training_alone_wins_ties():
    site = answer({"a": method(55, 0.6), "local": method(40, 0.6)})
    assert site.use == "local"
    assert site.advice == (
        "north: no method is shown to be better than training alone here: local, accuracy 66.67 % "
        "(chosen on validation)"
    )


def test_without_validation_the_interval_is_widened_for_all_methods():
    with_validation = answer({"local": method(30, 0.5), "a": method(40, 0.9), "b": method(31, 0.1)})
    none = {"local": method(30, None), "a": method(40, None), "b": method(31, None)}
    site = answer(none, validation=0)
    assert "chosen on test examples: there is no validation score" in site.advice
    assert site.cells["a"].low < with_validation.cells["a"].low


def test_few_examples_decide_nothing():
    methods = {"local": method(2, 0.5, examples=12), "a": method(12, 0.9, examples=12)}
    site = answer(methods, test=12)
    assert site.use == "local"
    assert "not decided, fewer than 20 test examples: a, accuracy 100.00 %, +83.33 over training alone" in site.advice


def test_few_examples_decide_nothing_where_training_alone_is_best_either():
    methods = {"local": method(12, 0.9, examples=12), "a": method(2, 0.5, examples=12)}
    assert answer(methods, test=12).advice == (
        "north: not decided, fewer than 20 test examples: local, accuracy 100.00 % (chosen on validation)"
    )


def test_a_metric_that_is_not_defined_decides_nothing():
    cells = {"local": Cell(None, None, one_class=True), "a": Cell(None, None)}
    said = Advice(cells, "local", Classification(headline="auc"), 8, True, "fewer than 20 test examples")
    assert said.text == (
        "not decided, the auc of its 8 test examples is not defined; this model predicts one class only"
    )


def test_a_model_that_predicts_one_class_is_named():
    site = answer({"local": method(30, 0.5), "a": method(55, 0.6, one_class=True)})
    assert site.advice.endswith("; this model predicts one class only")


def test_lower_is_better_where_the_task_says_so():
    cells = {"local": Cell(2.0, 2.0), "a": Cell(1.5, 1.4, gain=0.5, low=0.2, high=0.8)}
    said = Advice(cells, "a", Regression(), 40, False, "")
    assert (said.use, said.text) == (
        "a",
        "a, rmse 1.5, +0.5 over training alone (95 % interval +0.2 to +0.8, 40 test examples; chosen on validation)",
    )


def made_comparison():
    methods = {"local": method(30, 0.5), "a_b": method(55, 0.6)}
    line = dict(seeds=1, personal_std=None, received=None, client_std=0.0, worst_decile=0.0, gain=None, gaining=None,
                losing=None, p_value=None, bytes_per_round=0.0, simulated_seconds=0.0, wall_seconds=0.0)  # fmt: skip
    lines = tuple(Line(method=name, personal=m.test[0][0], **line) for name, m in methods.items())
    return Comparison(lines, "made", sites=(answer(methods),), named=True)


def test_latex_has_booktabs_and_the_best_in_bold():
    text = latex(made_comparison())
    lines = text.splitlines()
    assert lines[1:4] == [r"\toprule", r"accuracy (\%) & north (n = 60) \\", r"\midrule"]
    assert lines[4].startswith("local & 50.00 $\\pm$ ")
    assert lines[5].startswith(r"a\_b & \textbf{91.67 $\pm$ ")


def test_latex_has_a_line_for_each_client_if_there_are_many():
    one = made_comparison()
    sites = tuple(replace(one.sites[0], name=f"site {i}") for i in range(7))
    lines = latex(replace(one, sites=sites)).splitlines()
    assert lines[:3] == [r"\begin{tabular}{lrr}", r"\toprule", r"accuracy (\%) & local & a\_b \\"]
    assert lines[4].startswith(r"site 0 (n = 60) & 50.00 $\pm$ ")
    assert r" & \textbf{91.67 $\pm$ " in lines[4]
    assert lines[10].startswith("site 6 ")


def test_markdown_shows_validation_beside_test():
    text = markdown(made_comparison())
    assert "| accuracy % | north (n = 60) |" in text
    row = next(line for line in text.splitlines() if line.startswith("| a_b |"))
    assert row.startswith("| a_b | **91.67 ± ")
    assert row.endswith("** / 60.00 |")
    assert "| *most frequent class* | 50.00 |" in text


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three hospitals; at the third, nearly everybody has the same label."""
    out = tmp_path_factory.mktemp("hospitals")
    rng = np.random.default_rng(4)
    for name, count, rate in (("north", 110, 0.5), ("south", 120, 0.5), ("west", 60, 0.97)):
        y = (rng.random(count) < rate).astype(int)
        np.savez(out / f"{name}.npz", x=(rng.normal(size=(count, 4)) + y[:, None]).astype("float32"), y=y)
    return out


@pytest.fixture(scope="module")
def compared(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("compared") / "out"
    made = fedkin.compare(
        ["local", "fedavg", "fedper"],
        lambda seed: fedkin.federate(fedkin.data.from_folder(folder), seed=seed),
        seeds=2, rounds=3, lr=0.05, engine="serial", out=out,
    )  # fmt: skip
    return made, out


def test_a_comparison_answers_for_each_client(compared):
    made, out = compared
    assert [site.name for site in made.sites] == ["north", "south", "west"]
    for client, site in enumerate(made.sites):
        for name, cell in site.cells.items():
            runs = [fedkin.load(out / name / f"seed-{seed}") for seed in (0, 1)]
            scores = [run.history.values("personal", round=3)[client] for run in runs]
            held = [run.history.values("validation", round=3)[client] for run in runs]
            assert cell.test == pytest.approx(np.mean(scores))
            assert cell.validation == pytest.approx(np.mean(held))
            assert cell.error > 0 or cell.test == 1
    assert made.sites[0].test_examples > 22, "different examples over both seeds"
    assert made.named


def test_clients_count_once_however_many_seeds_there_are(compared):
    made, _ = compared
    assert made.lines[1].gaining + made.lines[1].losing <= 3


def test_one_class_and_the_majority_are_said(compared):
    made, out = compared
    assert "west" in made.lines[0].one_class
    text = (out / "comparison.md").read_text()
    assert "local predicts one class for every test example of " in text
    assert "Always predicting a client's most frequent class: " in text
    summary = json.loads((out / "local" / "seed-0" / "summary.json").read_text())
    assert "west" in summary["one_class"]
    rates = [record.value for record in fedkin.History.load(out / "local" / "seed-0").select("majority_rate")]
    assert summary["majority_rate"] == pytest.approx(np.mean(rates))


def test_files_of_a_comparison(compared):
    made, out = compared
    stored = json.loads((out / "comparison.json").read_text())
    assert [site["advice"] for site in stored["clients"]] == [site.advice for site in made.sites]
    lines = list(csv.DictReader((out / "clients.csv").read_text().splitlines()))
    assert len(lines) == 9
    assert float(lines[0]["test"]) == made.sites[0].cells["local"].test
    assert (out / "clients.tex").read_text().startswith(r"\begin{tabular}{lrrr}")
    methods = list(csv.DictReader((out / "comparison.csv").read_text().splitlines()))
    assert [(line["method"], float(line["personal"])) for line in methods] == [
        (line.method, line.personal) for line in made.lines
    ]
    table = (out / "comparison.tex").read_text()
    assert [row.split(" & ")[0] for row in table.splitlines()[4:-2]] == [line.method for line in made.lines]
    best = max(line.personal for line in made.lines)
    assert rf"\textbf{{{100 * best:.2f}" in table
    for site in made.sites:
        assert site.advice in (out / "comparison.md").read_text()


def test_clients_that_differ_from_seed_to_seed_have_a_table_of_methods_alone(tmp_path):
    def compared(seeds):
        return fedkin.compare(
            ["local", "fedavg"],
            lambda seed: fedkin.federate("digits", clients=3, samples_per_client=30, seed=seed),
            seeds=seeds, rounds=1, engine="serial", model="mlp", out=tmp_path,
        )  # fmt: skip

    compared(1)
    assert (tmp_path / "clients.csv").exists()
    made = compared(2)
    assert made.sites == ()
    assert "clients" in made.to_json()
    assert {path.name for path in tmp_path.glob("c*.*")} == {
        "comparison.json", "comparison.md", "comparison.csv", "comparison.tex",
    }  # fmt: skip
    assert r"$\pm$" in (tmp_path / "comparison.tex").read_text()


def test_local_may_have_a_label_of_its_own(folder):
    made = fedkin.compare(
        ["local", "fedavg"], fedkin.federate(fedkin.data.from_folder(folder)), rounds=1, engine="serial",
        names={"local": "Alone"},
    )  # fmt: skip
    assert made.reference == "Alone"
    assert made.lines[0].gain is None
    assert made.lines[1].gain is not None
    assert {site.use for site in made.sites} <= {"Alone", "fedavg"}
    assert all(site.cells["fedavg"].gain is not None and site.cells["Alone"].gain is None for site in made.sites)


def test_latex_of_methods_has_signs_and_leaves_out_empty_columns():
    made = made_comparison()
    changed = Comparison(tuple(replace(line, gain=-0.0123) for line in made.lines), "made")
    lines = changed.latex().splitlines()
    assert lines[2] == (
        r"method & personal \% & \shortstack[r]{\strut worst\\10 \%} & \shortstack[r]{\strut gain over\\local} & "
        r"gain/lose & \shortstack[r]{\strut bytes/\\round} \\"
    )
    assert lines[4].startswith(r"local & 50.00 & 0.00 & $-$1.23 & ")
    assert lines[5].startswith(r"a\_b & \textbf{91.67} & ")


def test_without_models_there_is_no_interval(folder):
    made = fedkin.compare(
        ["local", "fedavg"], fedkin.federate(fedkin.data.from_folder(folder)), rounds=1, engine="serial",
        save_models=False,
    )  # fmt: skip
    assert all(cell.low is None for site in made.sites for cell in site.cells.values())
    assert all(site.use == "local" for site in made.sites)
