"""The leaderboard: ranks and tests by hand, and one small board from end to end."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from fedkin.experiments import bench, carry_out, federations
from fedkin.experiments.board_page import render
from fedkin.experiments.cells import Cells
from fedkin.experiments.declare import Setting
from fedkin.experiments.leaderboard import (
    Board,
    Entry,
    board,
    cliques,
    critical_difference,
    front,
    holm,
    losing,
    nemenyi,
    pareto,
)


def entry(accuracy, tests: int = 200, **fields) -> Entry:
    values = np.atleast_2d(np.array(accuracy, float))
    usual = {"megabytes": 0.5, "seconds": 2.0, "lr": 0.1, "redrawn": False} | fields
    return Entry(values, np.full(values.shape, tests), **usual)


def test_ranks_are_means_over_tracks_and_ties_share():
    scores = {"a": (0.9, 0.5), "b": (0.8, 0.7), "c": (0.8, 0.2), "late": (0.99,)}
    found = board(
        {(name, track): entry([v]) for name, values in scores.items() for track, v in zip(("x", "y"), values)}
    )
    # on x: a 1, b and c share 2 and 3; on y: b 1, a 2, c 3. `late` has no run on y: it is not ranked
    assert [(line.method, line.rank) for line in found.lines] == [("a", 1.5), ("b", 1.75), ("c", 2.75)]
    assert found.lines[0].accuracy == {"x": 0.9, "y": 0.5}
    again = Board.from_json(json.loads(json.dumps(found.to_json())))
    assert again == found


def test_the_critical_difference_is_demsars():
    # Demšar (JMLR 2006), sec. 3.2.2: 4 classifiers, 14 data sets, q = 2.569: CD = 1.25
    assert nemenyi(4, 14) == pytest.approx(2.569 * np.sqrt(4 * 5 / (6 * 14)), rel=1e-3)


def test_cliques_are_the_longest_stretches_within_the_difference():
    assert cliques([1.0, 1.5, 2.9, 3.2], 2.0) == [(0, 2), (1, 3)]
    assert cliques([1.0, 5.0, 9.0], 2.0) == []
    assert cliques([1.0, 1.1, 1.2], 5.0) == [(0, 2)]


def test_the_front_has_nobody_better_and_cheaper():
    assert front([(1, 80), (2, 90), (2, 85), (3, 89), (0, 50)]) == {0, 1, 4}


def test_losers_are_clients_decidedly_worse_off_than_alone():
    alone = entry([[0.80, 0.80, 0.80]])
    found = losing(entry([[0.79, 0.70, 0.90]]), alone)
    # 10 points of 200 tests: standard error of the difference 4.3 points, 1.645 of them are 7.1
    assert (found < 0.05).tolist() == [[False, True, False]]
    assert found[0, 1] == pytest.approx(0.01004, rel=1e-3)  # z = 0.1 / sqrt((0.8 * 0.2 + 0.7 * 0.3) / 200)
    assert losing(entry([[1.0]]), entry([[1.0]])).tolist() == [[0.5]]
    scores = {"local": alone, "m": entry([[0.79, 0.70, 0.90]]), "n": alone, "o": entry([[0.79, 0.50, 0.90]])}
    lines = board({(k, "x"): v for k, v in scores.items()}).lines
    third = pytest.approx(1 / 3)
    assert {line.method: line.losers for line in lines} == {"local": None, "m": third, "n": 0.0, "o": third}
    # of three pairs the smallest p-value must be below 0.05 / 3: m's is 0.01, o's 1e-11
    assert {line.method: line.sure_losers for line in lines} == {"local": None, "m": 1, "n": 0, "o": 1}


def test_holm_rejects_step_by_step():
    # 0.01 <= 0.05 / 4, 0.013 <= 0.05 / 3, but 0.03 > 0.05 / 2, so 0.04 is not looked at
    assert holm(np.array([0.04, 0.01, 0.03, 0.013])) == 2
    assert holm(np.array([0.02, 0.02, 0.02])) == 0
    assert holm(np.array([])) == 0


def test_methods_are_compared_with_the_first_over_tracks():
    scores = {"a": 0.9, "b": 0.8, "c": 0.9}
    tracks = [f"t{i}" for i in range(8)]
    found = board(
        {(m, t): entry([v - 0.001 * i * (m == "c")]) for m, v in scores.items() for i, t in enumerate(tracks)}
    )
    behind = {line.method: line.behind for line in found.lines}
    assert behind["a"] is None
    assert behind["b"] == pytest.approx(2 / 2**8)  # first on every one of eight tracks, both ways
    assert behind["c"] == pytest.approx(2 / 2**7, rel=0.3)


def test_winners_and_those_not_decidedly_below():
    rng = np.random.default_rng(0)
    base = rng.normal(0.8, 0.02, (3, 30))
    noise = rng.normal(0, 0.01, (3, 30))
    scores = {"fedavg-ft": base, "best": base + 0.05, "near": base + 0.049 + noise, "far": base - 0.1}
    found = board({(k, "x"): entry(v) for k, v in scores.items()})
    assert found.winners == {"x": ("best", "near")}
    against = {line.method: (line.above, line.below) for line in found.lines}
    assert against == {"fedavg-ft": (None, None), "best": (1, 0), "near": (1, 0), "far": (0, 1)}


def test_tests_over_ranks_and_figures(tmp_path):
    rng = np.random.default_rng(1)
    found = board(
        {
            (f"m{i}", f"t{t}"): entry(0.5 + 0.03 * i + 0.005 * rng.random((3, 5)), megabytes=float(i % 3))
            for i in range(6)
            for t in range(5)
        }
    )
    assert found.friedman < 0.01
    assert found.critical == pytest.approx(nemenyi(6, 5))
    assert found.lines[0].method == "m5"
    assert "the 6 methods differ" in found.words()
    for draw in (critical_difference, pareto):
        draw(found).savefig(tmp_path / "f.png")
        assert (tmp_path / "f.png").stat().st_size > 3000


def test_tracks_are_what_the_docs_say():
    assert list(bench.TRACKS) == [
        "fashion-dirichlet",
        "fashion-pathological",
        "fashion-iid",
        "cifar10-dirichlet",
        "mnist-rotated",
        "mnist-feature-shift",
        "har-natural",
        "heart-natural",
    ]
    for track in bench.TRACKS.values():
        assert track.setting.rounds >= 50
        assert track.seeds >= 3
        if track.setting.examples:
            assert track.setting.examples * (1 - track.setting.test - track.setting.validation) >= 200


@pytest.fixture
def digits(monkeypatch):
    """Two small tracks on digits."""
    from fedkin.data import load

    monkeypatch.setattr(federations, "arrays", lambda data: load("digits"))
    usual = Setting("digits", "iid", 6, 3, "mlp", examples=60, test=0.4, validation=0.1, epochs=2)
    skewed = replace(usual, partition="pathological")
    monkeypatch.setattr(bench, "TRACKS", {"even": bench.Track(usual), "skewed": bench.Track(skewed)})
    carry_out._federation.cache_clear()
    yield
    carry_out._federation.cache_clear()


def test_a_small_board(tmp_path, digits, capsys, monkeypatch):
    options = {"methods": ["local", "fedavg", "fedavg-ft", "fedprox"], "out": tmp_path, "cells": tmp_path / "cells"}
    bench.bench(**options, workers=1, console=Console(width=200))
    found = json.loads((tmp_path / "leaderboard.json").read_text())
    assert sorted(line["method"] for line in found["methods"]) == ["fedavg", "fedavg-ft", "fedprox", "local"]
    by_name = {line["method"]: line for line in found["methods"]}
    assert set(by_name["fedavg"]["accuracy"]) == {"even", "skewed"}
    assert by_name["local"]["megabytes"] == 0
    assert by_name["fedavg"]["megabytes"] > 0
    assert by_name["local"]["accuracy"]["skewed"] > by_name["fedavg"]["accuracy"]["skewed"]
    assert set(by_name["local"]["lr"].values()) <= set(bench.GRID)
    assert "| method | mean rank |" in (tmp_path / "leaderboard.md").read_text()
    page = (tmp_path / "leaderboard.html").read_text()
    assert "{{" not in page
    assert json.loads(page.split('id="data">')[1].split("</script>")[0])["methods"] == found["methods"]
    # the stored cells are enough
    shutil.rmtree(tmp_path / "runs")
    monkeypatch.setattr(carry_out, "run_one", lambda *a: pytest.fail("it was run again"))
    bench.bench(**options, workers=1, console=Console(width=200))
    assert json.loads((tmp_path / "leaderboard.json").read_text()) == found
    bench.show_status(*bench.known(options["methods"], ()), Cells(tmp_path / "cells"), Console(width=200))
    assert "40 of 40" in capsys.readouterr().out  # 4 methods, 2 tracks, 3 rates and 2 more seeds


def test_the_rate_is_chosen_on_validation(tmp_path):
    track, cells = bench.TRACKS["heart-natural"], Cells(tmp_path)
    assert bench.chosen("fedavg", track, cells) is None
    for (_, job), score in zip(bench.tuning("fedavg", track).items(), (0.5, 0.7, 0.6)):
        # on the test examples another rate would win
        cells.put(job, {"seconds": 1.0, "validation": [score, score], "personal": [1 - score]})
    assert bench.chosen("fedavg", track, cells) == bench.GRID[1]


@pytest.mark.parametrize(
    ("validation", "rate"),
    [
        ([[0.90, 0.50], [0.70, 0.62], [0.1, 0.1]], 0.1),  # +0.04 with a standard error of 0.16: not told apart
        ([[0.80, 0.72], [0.70, 0.62], [0.1, 0.1]], 0.03),  # +0.10 at each client
        ([[0.80, None], [0.70, 0.62], [0.1, 0.1]], 0.03),  # one client is too few to know an error
        ([None, [0.70, 0.62], [0.71, 0.64]], 0.3),  # the first failed; +0.015 with a standard error of 0.005
        ([[0.70, 0.62], None, [0.71, 0.60]], 0.03),  # the usual rate failed
    ],
)
def test_close_rates_count_as_the_usual_one(tmp_path, validation, rate):
    track, cells = bench.TRACKS["heart-natural"], Cells(tmp_path)
    for job, values in zip(bench.tuning("fedavg", track).values(), validation):
        if values is None:
            cells.note(job, "failed: it diverged")
        else:
            cells.put(job, {"seconds": 1.0, "validation": values, "personal": [0.5, 0.5]})
    assert bench.chosen("fedavg", track, cells) == rate


def test_what_bench_does_not_know(tmp_path):
    with pytest.raises(ValueError, match=r"no track 'imagenet'. Known: fashion-dirichlet"):
        bench.known((), ["imagenet"])
    with pytest.raises(ValueError, match=r"no method 'fedavrg'"):
        bench.known(["fedavrg"], ())


def test_what_failed_is_named_and_not_ranked(tmp_path, digits, monkeypatch, capsys):
    whole = carry_out.run_one

    def breaks(job, out):
        if job.method == "fedprox" or (job.method == "fedavg" and job.setting.lr == bench.GRID[-1]):
            raise ValueError("it diverged")
        whole(job, out)

    monkeypatch.setattr(carry_out, "run_one", breaks)
    methods = ["local", "fedavg", "fedprox"]
    bench.bench(methods=methods, out=tmp_path, cells=tmp_path / "cells", workers=1, console=Console(width=200))
    found = json.loads((tmp_path / "leaderboard.json").read_text())
    assert {line["method"] for line in found["methods"]} == {"local", "fedavg"}  # one rate that fails is not chosen
    assert found["failures"] == [f"fedprox on {t}: failed: ValueError: it diverged" for t in ("even", "skewed")]
    assert "it diverged" in (tmp_path / "leaderboard.md").read_text()
    assert "it diverged" in capsys.readouterr().out


def test_a_track_counts_once_the_first_methods_have_been_run_on_it(tmp_path, digits):
    options = {"out": tmp_path, "cells": tmp_path / "cells", "workers": 1, "console": Console(width=200)}
    bench.bench(methods=["local", "fedavg", "fedprox"], tracks=["even"], **options)
    bench.bench(methods=["local", "fedprox"], tracks=["skewed"], **options)

    def collected(*methods):
        return bench.collect(methods, bench.TRACKS, Cells(tmp_path / "cells"), {})

    found = collected("local", "fedavg", "fedprox", "fednova")
    assert found.tracks == ("even",)
    assert {line.method for line in found.lines} == {"local", "fedavg", "fedprox"}
    assert found.failures == ("track skewed: fedavg not run yet", "not run yet on every track: fednova")
    assert collected("local", "fedprox").tracks == ("even", "skewed")


def test_the_first_methods_are_run_on_every_track_before_the_others(tmp_path, digits, monkeypatch):
    order = []
    monkeypatch.setattr(bench, "run_track", lambda methods, track, *_: order.append((tuple(methods), track)) or {})
    bench.bench(
        methods=["fedprox", "fedavg", "local"], tracks=["even", "skewed"], out=tmp_path, cells=tmp_path / "cells",
        console=Console(width=200),
    )  # fmt: skip
    even, skewed = bench.TRACKS["even"], bench.TRACKS["skewed"]
    first, others = ("fedavg", "local"), ("fedprox",)
    assert order == [(first, even), (first, skewed), (others, even), (others, skewed)]
    assert set(bench.FIRST) <= set(bench.ranked())


@pytest.mark.processes
def test_the_page_in_a_browser(tmp_path, browser):
    """It sorts, ranks again over chosen tracks, and asks for nothing outside."""
    from playwright.sync_api import expect

    scores = {"a": (0.9, 0.1), "b": (0.8, 0.7), "</script>": (0.7, 0.2)}
    found = board(
        {(name, track): entry([v]) for name, values in scores.items() for track, v in zip(("x", "y"), values)}
    )
    path = tmp_path / "page.html"
    path.write_text(render({"budget": "small", **found.to_json()}), encoding="utf-8")
    tab = browser.new_page()
    complaints, requests = [], []
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("request", lambda request: requests.append(request.url))
    tab.goto(path.as_uri())
    names = tab.locator("#board tbody tr td:first-child, #board tbody tr th:first-child")
    expect(names).to_have_text(["b", "a", "</script>"])
    tab.locator("#tracks input").nth(1).click()  # the track x alone
    expect(names).to_have_text(["a", "b", "</script>"])
    tab.locator("#board th button").first.click()  # by name
    expect(names).to_have_text(["</script>", "a", "b"])
    tab.locator("#filter").fill("b")
    expect(names).to_have_text(["b"])
    expect(tab.locator("#pareto circle")).to_have_count(3)
    assert complaints == []
    assert requests == [path.as_uri()]
    tab.close()
