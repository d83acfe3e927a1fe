"""What runs, histories, federations and comparisons show in a notebook."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import fedkin
from fedkin.engine.progress import Notebook, automatic
from fedkin.report import notebook
from fedkin.results.comparison import Comparison, Line


def tree(html: str) -> ElementTree.Element:
    """HTML that is also well-formed XML, as ours is."""
    assert "<script" not in html
    assert "http" not in html
    return ElementTree.fromstring(f"<div>{html}</div>")


def cells(html: str) -> list[list[str]]:
    return [["".join(cell.itertext()) for cell in row] for row in tree(html).iter("tr")]


@pytest.fixture(scope="module")
def federation() -> fedkin.Federation:
    return fedkin.federate("digits", partition="rotated", clients=8, samples_per_client=40)


@pytest.fixture(scope="module")
def run(federation: fedkin.Federation) -> fedkin.Run:
    return fedkin.run("pflic,clusters=2", federation, rounds=3, evaluate_every=2, engine="serial", save_models=False)


def test_a_run_shows_its_headline_its_curve_and_who_learns_from_whom(run):
    html = run._repr_html_()
    rows = cells(html)
    assert rows[0] == ["accuracy %", "mean", "weighted", "std", "worst 10 %"]
    assert rows[1][:2] == ["personal", f"{100 * run.summary['personal']['mean']:.2f}"]
    labels = [svg.get("aria-label") for svg in tree(html).iter("svg")]
    (record,) = run.history.select("mixing", round=3)
    part = f", {next(iter(record.value))}" if isinstance(record.value, dict) else ""
    assert labels == ["mean accuracy by round", f"who learns from whom, round 3{part}"]
    assert "not kept" in html


def test_the_heat_map_is_the_mixing_matrix_ordered_by_cluster(run):
    (record,) = run.history.select("mixing", round=3)
    matrix = np.array(next(iter(record.value.values())) if isinstance(record.value, dict) else record.value)
    (labels,) = run.history.select("clusters", round=3)
    order = sorted(range(8), key=lambda c: (labels.value[c], c))
    drawn = np.zeros((8, 8))
    for path in tree(notebook.relation(run.history, 8)).iter("path"):
        for x, y in re.findall(r"M(\d+) (\d+)h1v1h-1z", path.get("d")):
            drawn[int(y), int(x)] = float(path.get("fill-opacity"))
    wanted = matrix[np.ix_(order, order)] / matrix.max()
    np.testing.assert_allclose(drawn, wanted, atol=0.5 / notebook.SHADES + 1e-3)


def test_a_history_has_means_by_round(run):
    html = run.history._repr_html_()
    assert f"{len(run.history.records):,} records" in html
    newest = cells(html)[1]
    assert newest[0] == "3"
    assert newest[1] == f"{100 * run.summary['personal']['mean']:.2f}"
    assert newest[4] == "all"
    assert fedkin.History()._repr_html_().startswith("<div>0 records")


def test_a_federation_shows_clients_and_labels(federation):
    html, split = federation._repr_html_(), federation.splits[0]
    rows = cells(html)
    assert rows[1] == ["client 0", *(str(len(part)) for part in (split.train, split.validation, split.test))]
    assert len(rows) == 9
    (svg,) = tree(html).iter("svg")
    assert svg.get("viewBox") == "0 0 10 8"


def test_what_a_terminal_shows_is_one_line(run, federation):
    percent = f"{100 * run.summary['personal']['mean']:.2f}%"
    assert repr(run) == f"<Run of pflic,clusters=2: 8 clients, accuracy {percent}>"
    assert repr(federation) == "<Federation of 8 clients: data digits, partition rotated>"
    assert repr(run.history) == f"<History: {len(run.history.records)} records>"
    comparison = fedkin.compare(["local"], federation, rounds=1, engine="serial", save_models=False)
    score = f"{100 * comparison.lines[0].personal:.2f}%"
    assert repr(comparison) == f"<Comparison of 1 method: best local, accuracy {score}; print it for all>"
    assert str(comparison) == comparison.markdown()


def test_the_folder_of_a_newcomer_shows_what_to_expect(federation, tmp_path):
    trained = fedkin.run("fedavg", federation, rounds=1, engine="serial")
    joined = trained.join("east", federation.data(0).x, federation.data(0).y)
    loaded = fedkin.load(trained.keep(joined, tmp_path / "east"))
    assert repr(loaded) == "<Run of fedavg: the model of the newcomer east>"
    assert ["accuracy", f"{joined.expected['accuracy']:.4g}"] in cells(loaded._repr_html_())


def test_a_federation_of_a_regression_has_no_labels():
    x = np.arange(60, dtype="float32").reshape(30, 2)
    arrays = fedkin.from_arrays(x, x[:, 0] / 7, client=np.repeat(["a", "b"], 15), task="regression")
    assert "<svg" not in fedkin.federate(arrays)._repr_html_()


def test_text_of_users_is_escaped():
    line = Line("<b>x</b>", 1, 0.5, None, 0.5, 0.1, 0.4, None, None, None, None, 1.0, 1.0, 1.0)
    worse = Line("other", 1, 0.25, None, 0.5, 0.1, 0.4, None, None, None, None, 1.0, 1.0, 1.0)
    html = Comparison((worse, line), "<script>alert(1)</script>")._repr_html_()
    assert "<script" not in html
    assert "&lt;b&gt;x&lt;/b&gt;" in html
    best = [row for row in tree(html).iter("tr") if "bold" in (row[0].get("style") or "")]
    assert ["".join(row[0].itertext()) for row in best] == ["<b>x</b>"]
    x = np.zeros((40, 2), "float32")
    named = fedkin.from_arrays(x, np.arange(40) % 2, client=np.repeat(["<i>", "b & c"], 20))
    assert "&lt;i&gt;" in fedkin.federate(named)._repr_html_()


def test_less_is_better_where_the_task_says_so():
    lines = [
        Line(n, 1, v, None, None, 0.1, v, None, None, None, None, 1.0, 1.0, 1.0) for n, v in (("a", 2.0), ("b", 1.0))
    ]
    html = Comparison(tuple(lines), "", "rmse", higher_is_better=False, percent=False)._repr_html_()
    bold = [row for row in tree(html).iter("tr") if "bold" in (row[0].get("style") or "")]
    assert ["".join(row[0].itertext()) for row in bold] == ["b"]


def test_long_tables_and_many_clients_stay_small():
    html = notebook.table(("a",), [(i,) for i in range(50)])
    assert len(cells(html)) == 1 + notebook.MOST_ROWS + 1
    assert cells(html)[-1] == ["and 30 more"]
    assert notebook.relation(fedkin.History(), notebook.MOST_CLIENTS + 1) == ""
    full = notebook.heat_map(np.full((100, 100), 0.01).tolist(), "even", across="a", down="b")
    assert len(full) < 200_000


# ---- progress
class Handle:
    def __init__(self) -> None:
        self.seen: list[str] = []

    def update(self, html: str) -> None:
        self.seen.append(html)


@pytest.fixture
def ipython(monkeypatch: pytest.MonkeyPatch) -> Handle:
    """A notebook's IPython, as far as a progress bar needs it."""
    handle = Handle()
    shell = type("ZMQInteractiveShell", (), {})()
    fake, shown = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    fake.get_ipython = lambda: shell  # type: ignore[attr-defined]
    shown.HTML = str  # type: ignore[attr-defined]
    shown.display = lambda *_, display_id: handle  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", fake)
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    return handle


def test_a_run_in_a_notebook_has_a_bar(ipython, federation, tmp_path: Path):
    fedkin.run("fedavg", federation, rounds=2, engine="serial", label="<my> run", save_models=False)
    assert "&lt;my&gt; run" in ipython.seen[0]
    assert 'value="0" max="2"' in ipython.seen[0]
    assert 'value="2" max="2"' in ipython.seen[-1]
    assert "2 of 2 rounds, loss" in ipython.seen[-1]


def test_trackers_of_the_users_replace_the_bar(ipython, federation):
    from fedkin.engine.trackers import Tracker

    fedkin.run("fedavg", federation, rounds=1, engine="serial", trackers=[Tracker()], save_models=False)
    assert ipython.seen == []


def test_outside_of_notebooks_there_is_no_bar(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert automatic("x") == []
    fake = types.ModuleType("IPython")
    fake.get_ipython = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", fake)
    assert automatic("x") == []


def test_warnings_are_few(ipython, capsys):
    bar = Notebook("run")
    for i in range(20):
        bar.warn(f"client {i}")
    assert len(capsys.readouterr().out.splitlines()) == 5
