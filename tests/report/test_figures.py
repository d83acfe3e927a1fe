"""Figures for papers: there, the same each time, and what is drawn is what was measured."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest

import fedkin
from fedkin.report import figures, page

BEGIN = {"pdf": b"%PDF", "png": b"\x89PNG", "svg": b"<?xml"}


def test_a_comparison_has_all_figures(comparison, tmp_path):
    names = [path.stem for path in figures.write([comparison], tmp_path, "svg")]
    assert names[:4] == ["learning", "gains", "partition", "costs"]
    assert "mixing-fedavg" in names
    assert "clusters-pflic-clusters=2-restarts=1-stable_rounds=2" in names


def test_lines_are_the_measured_means_and_differ_without_color(comparison):
    data = page.build([comparison])
    with matplotlib.rc_context(figures.STYLE):
        (axes,) = figures.learning(data).axes
    assert len(axes.lines) == len(data["methods"])
    for line, method in zip(axes.lines, data["methods"]):
        assert line.get_ydata() == pytest.approx(100 * np.array(method["curves"]["personal"]["mean"]))
    assert len({(line.get_linestyle(), line.get_marker()) for line in axes.lines}) == len(axes.lines)


def test_bands_are_one_standard_deviation_over_seeds(tmp_path):
    def fed(seed: int) -> fedkin.Federation:
        return fedkin.federate("digits", clients=4, samples_per_client=40, seed=seed)

    settings = {"rounds": 2, "lr": 0.1, "evaluate_every": 1, "save_models": False, "engine": "serial"}
    fedkin.compare(["local", "fedavg"], fed, seeds=2, out=tmp_path, **settings)
    data = page.build([tmp_path])
    with matplotlib.rc_context(figures.STYLE):
        (axes,) = figures.learning(data).axes
    assert len(axes.collections) == 2
    for band, name in zip(axes.collections, ("local", "fedavg")):
        for round in (1, 2):
            values = [
                np.mean(
                    list(fedkin.History.load(tmp_path / name / f"seed-{seed}").values("personal", round=round).values())
                )
                for seed in (0, 1)
            ]
            low, high = 100 * (np.mean(values) + np.array([-1, 1]) * np.std(values, ddof=1))
            edges = [y for x, y in band.get_paths()[0].vertices if x == round]
            assert min(edges) == pytest.approx(low, abs=1e-3)
            assert max(edges) == pytest.approx(high, abs=1e-3)
    assert all(tick == int(tick) for tick in axes.get_xticks())  # of two rounds, too


def test_one_seed_has_no_bands(comparison):
    with matplotlib.rc_context(figures.STYLE):
        (axes,) = figures.learning(page.build([comparison])).axes
    assert not axes.collections


def test_fonts_are_in_the_file(comparison, tmp_path):
    run = comparison / "fedavg" / "seed-0"
    pdf = next(path for path in figures.write([run], tmp_path, "pdf") if path.stem == "costs").read_bytes()
    assert b"/FontFile2" in pdf  # TrueType, embedded
    assert b"/Type3" not in pdf
    svg = next(path for path in figures.write([run], tmp_path, "svg") if path.stem == "costs").read_text()
    assert "<text" not in svg
    assert "font-family" not in svg


def test_gains_are_differences_at_the_same_client(comparison):
    data = page.build([comparison])
    local, fedavg = data["methods"][:2]
    expected = np.subtract(fedavg["clients"]["personal"][-1], local["clients"]["personal"][-1])
    assert figures.gain_over(fedavg, local) == pytest.approx(expected)


@pytest.mark.parametrize("format", figures.FORMATS)
def test_a_single_run_has_no_gains_and_is_drawn_the_same_each_time(comparison, tmp_path, format):
    one, two = (figures.write([comparison / "fedavg" / "seed-0"], tmp_path / out, format) for out in "ab")
    assert [path.name for path in one] == [f"{n}.{format}" for n in ("learning", "partition", "costs", "mixing-fedavg")]
    for a, b in zip(one, two):
        assert a.read_bytes().startswith(BEGIN[format])
        assert a.read_bytes() == b.read_bytes()


def test_a_wrong_format_is_explained(comparison, tmp_path):
    with pytest.raises(ValueError, match="format='gif' must be one of pdf, png, svg"):
        figures.write([comparison], tmp_path, "gif")
