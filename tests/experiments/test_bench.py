"""The leaderboard: ranks by hand, and one small board from end to end."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from fedkin.experiments import bench, carry_out


def folder(place, accuracy: float, worst: float = 0.1):
    place.mkdir(parents=True)
    summary = {
        "personal": {"mean": accuracy, "worst_decile": worst},
        "bytes_down": 3e6,
        "bytes_up": 1e6,
        "rounds": 2,
        "clients": 4,
    }
    (place / "summary.json").write_text(json.dumps(summary))
    (place / "cell.json").write_text(json.dumps({"seconds": 2.0}))
    return place


def test_ranks_are_means_over_tracks_and_ties_share(tmp_path):
    scores = {"a": (0.9, 0.5), "b": (0.8, 0.7), "c": (0.8, 0.2), "late": (0.99,)}
    folders = {
        (name, track, 0): folder(tmp_path / name / track, value)
        for name, values in scores.items()
        for track, value in zip(("x", "y"), values)
    }
    places = bench.ranked(folders)
    # on x: a 1, b and c share 2 and 3; on y: b 1, a 2, c 3. `late` has no run on y: it is not ranked
    assert [(p.method, p.rank) for p in places] == [("a", 1.5), ("b", 1.75), ("c", 2.75)]
    assert places[0].accuracy == {"x": 0.9, "y": 0.5}
    assert places[0].megabytes == pytest.approx(0.5)  # 4 MB over 2 rounds and 4 clients
    assert places[0].seconds == 2.0


def test_tracks():
    assert bench.track("fashion-mnist", "natural") is None
    natural = bench.track("har", "natural")
    assert natural is not None
    assert (natural.partition, natural.clients) == ("by_group", 30)
    assert bench.track("cifar10", "dirichlet").partition_options == {"alpha": 0.1}


@pytest.fixture
def digits(monkeypatch):
    """In place of har."""
    from fedkin.data import load

    monkeypatch.setattr(carry_out, "_arrays", lambda data: load("digits"))
    monkeypatch.setitem(bench.DATA, "har", ("mlp", 1.0))
    carry_out._federation.cache_clear()
    yield
    carry_out._federation.cache_clear()


def test_a_small_board(tmp_path, digits, capsys):
    bench.bench(
        data=["har"],
        partitions=["iid", "pathological"],
        methods=["local", "fedavg", "fedprox"],
        workers=1,
        out=tmp_path,
        console=Console(width=200),
    )
    board = json.loads((tmp_path / "leaderboard.json").read_text())
    assert sorted(p["method"] for p in board["methods"]) == ["fedavg", "fedprox", "local"]
    assert set(board["methods"][0]["accuracy"]) == {"har iid", "har pathological"}
    by_name = {p["method"]: p for p in board["methods"]}
    assert by_name["local"]["megabytes"] == 0
    assert by_name["fedavg"]["megabytes"] > 0
    assert by_name["local"]["accuracy"]["har pathological"] > by_name["fedavg"]["accuracy"]["har pathological"]
    assert "| method | mean rank |" in (tmp_path / "leaderboard.md").read_text()


def test_what_bench_does_not_know():
    with pytest.raises(ValueError, match=r"does not know 'imagenet'. Known: fashion-mnist, cifar10, har"):
        bench.bench(data=["imagenet"], console=Console())
    with pytest.raises(ValueError, match=r"no method 'fedavrg'"):
        bench.bench(methods=["fedavrg"], console=Console())


def test_what_failed_is_named_and_not_ranked(tmp_path, digits, monkeypatch, capsys):
    whole = carry_out.run_one

    def breaks(job, out):
        if job.method == "fedprox":
            raise ValueError("it diverged")
        whole(job, out)

    monkeypatch.setattr(carry_out, "run_one", breaks)
    bench.bench(
        data=["har"],
        partitions=["iid"],
        methods=["local", "fedprox"],
        workers=1,
        out=tmp_path,
        console=Console(width=200),
    )
    board = json.loads((tmp_path / "leaderboard.json").read_text())
    assert [p["method"] for p in board["methods"]] == ["local"]
    assert board["not run"] == ["fedprox on har iid: failed: ValueError: it diverged"]
    assert "it diverged" in (tmp_path / "leaderboard.md").read_text()
    assert "it diverged" in capsys.readouterr().out
