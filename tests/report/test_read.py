"""What the page holds is what the history says."""

from __future__ import annotations

import json

import pytest

from fedkin.report import compact, page, read
from fedkin.results.history import History
from tests.report.conftest import METHODS


@pytest.fixture(scope="module")
def data(comparison):
    return page.build([comparison])


def method(data, start):
    return next(m for m in data["methods"] if m["name"].startswith(start))


def history_of(comparison, start) -> History:
    return History.load(next(comparison.glob(f"{start}*/seed-0")))


def test_methods_come_in_the_order_of_the_comparison(data):
    assert [m["name"] for m in data["methods"]] == METHODS
    assert data["reference"] == "local"
    assert len(data["federations"]) == 1, "all methods have the same clients"


@pytest.mark.parametrize("name", METHODS)
def test_headline_is_that_of_the_summary(comparison, data, name):
    made = method(data, name)["runs"][0]
    summary = json.loads((next(comparison.glob(f"{name}/seed-0")) / "summary.json").read_text())
    assert made["finished"]
    for kind in ("personal", "received"):
        assert (kind in made) == (kind in summary)
        if kind in summary:
            assert {k: made[kind][k] for k in ("mean", "std", "worst_decile")} == pytest.approx(
                {k: summary[kind][k] for k in ("mean", "std", "worst_decile")}
            )
    assert (made["down"], made["up"]) == (summary["bytes_down"], summary["bytes_up"])
    assert made["compute"] + made["communication"] == pytest.approx(summary["simulated_seconds"]["total"])
    assert made["wall"] > 0


@pytest.mark.parametrize("start", ["fedavg", "dcpfl"])
def test_every_client_and_round_is_there(comparison, data, start):
    history, table = history_of(comparison, start), method(data, start)["clients"]["personal"]
    assert len(table) == 8
    for round in range(1, 9):
        after = history.values("personal", round=round)
        expected = after or history.values("personal", round=round, scope="participants")
        assert table[round - 1] == [pytest.approx(expected[c], abs=1e-5) for c in range(8)]
    assert method(data, start)["evaluated"] == history.rounds("personal") == [3, 6, 8]


@pytest.mark.parametrize("start", ["fedavg", "fedcedar", "pflic", "pfedgat", "dcpfl"])
def test_mixing_is_unpacked_to_what_was_written(comparison, data, start):
    packed, records = method(data, start)["mixing"], list(history_of(comparison, start).select("mixing"))
    assert [f["round"] for f in packed["frames"]] == [r.round for r in records]
    for frame, record in zip(packed["frames"], records):
        parts = record.value if isinstance(record.value, dict) else {"model": record.value}
        for name, matrix in parts.items():
            for single in name.split(", "):
                kept = packed["matrices"][frame["parts"][single]]
                shown = [[w / compact.WEIGHT_SCALE for w in kept["rows"][k]] for k in kept["of"]]
                assert shown == [pytest.approx(line, abs=0.6 / compact.WEIGHT_SCALE) for line in matrix]


def test_what_methods_report_is_there(data):
    expected = {
        "fedcedar": {"clusters", "rand_index", "graph"},
        "pflic": {"clusters", "rand_index", "phase", "participation", "utilities", "changes"},
        "pfedgat": {"attention_heads", "attention_nodes", "feedback_loss"},
        "dcpfl": {"clusters", "gamma", "loss", "tree", "leaves", "layer_discrepancy", "layer_period"},
    }
    for start, facts in expected.items():
        assert facts <= method(data, start)["facts"].keys(), start


def test_clients_and_their_data_are_there(comparison, data):
    history, federation = history_of(comparison, "local"), data["federations"][0]
    for key, metric in (
        ("train", "train_examples"),
        ("test", "test_examples"),
        ("labels", "labels"),
        ("group", "group"),
    ):
        values = history.values(metric, round=0, scope="")
        assert federation[key] == [values[c] for c in range(8)]
    assert federation["names"] == [f"client {c}" for c in range(8)]


def test_seeds_are_one_method_and_other_settings_are_not(comparison, tmp_path):
    base = json.loads(next(comparison.glob("local/seed-0/config.json")).read_text())
    rows = next(comparison.glob("local/seed-0/history.jsonl")).read_bytes()
    for name, seed, lr in (("a", 0, 0.1), ("b", 1, 0.1), ("c", 0, 0.2)):
        config = json.loads(json.dumps(base))
        config["options"]["seed"], config["federation"]["seed"] = seed, seed
        config["training"]["lr"] = lr
        config["fingerprint"] = f"of seed {seed}"
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        (tmp_path / name / "history.jsonl").write_bytes(rows)
    made = page.build([tmp_path])
    assert [[run["seed"] for run in m["runs"]] for m in made["methods"]] == [[0, 1], [0]]
    assert [m["name"] for m in made["methods"]] == [f"local ({tmp_path / 'a'})", f"local ({tmp_path / 'c'})"]
    assert len(made["federations"]) == 2


def test_a_run_that_goes_on_shows_where_it_is(comparison, tmp_path):
    folder = next(comparison.glob("fedavg/seed-0"))
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    lines = (folder / "history.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["round"] <= 4]
    (tmp_path / "history.jsonl").write_text("".join(kept) + '{"round": 5, "cli')
    run = page.build([tmp_path])["methods"][0]["runs"][0]
    assert (run["rounds"], run["planned"], run["finished"]) == (4, 8, False)
    assert run["personal"]["round"] == 4


def test_large_histories_are_thinned_and_keep_the_first_and_the_last():
    frames = [compact.mixing_frame(round, [[1.0] * 10 for _ in range(10)]) for round in range(1, 101)]
    assert {frame.cost for frame in frames} == {10}, "equal rows are stored once"
    kept = compact.thinned(frames, 200)
    assert len(kept) == 20
    assert (kept[0].round, kept[-1].round) == (1, 100)
    assert compact.thinned(frames, 1000) == frames
    assert [frame.round for frame in compact.thinned(frames, 1)] == [1, 100]


def test_folders_without_a_run_are_refused(tmp_path):
    with pytest.raises(read.NoRun, match=r"No run in .*: a run folder has a config.json"):
        page.build([tmp_path])
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        page.build([tmp_path / "nowhere"])
    (tmp_path / "config.json").write_text('{"name": "another program"}')
    (tmp_path / "history.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match="not the folder of a fedkin run"):
        page.build([tmp_path])


def test_nothing_in_the_page_points_outside(comparison):
    text = page.render(page.build([comparison], bibtex="@misc{a}"))
    outside = text.replace("http://www.w3.org/2000/svg", "")  # a name, which nobody fetches
    assert "http:" not in outside
    assert "https:" not in outside
    assert "src=" not in outside.split("<script")[0]
    assert len(text) < 2e6
