"""Records in memory and on disk, and a run that was stopped in the middle of a line."""

from __future__ import annotations

import pytest

from fedkin.results.history import History, Record

RECORDS = [
    (0, None, "mean_kld", 0.25, ""),
    (1, 0, "personal", 0.5, "all"),
    (1, 1, "personal", 0.75, "all"),
    (1, 1, "personal", 0.6, "round"),
    (1, None, "clusters", [0, 1], ""),
    (2, 0, "personal", 1.0, "all"),
    (2, 0, "dropped", "lost on the way", ""),
    (2, None, "note", "", ""),
    (2, None, "mixing", {"body": [[1.0]]}, ""),
]


def filled(path=None, records=RECORDS) -> History:
    history = History(path)
    for record in records:
        history.add(*record)
    return history


def test_records_come_back_as_they_were(tmp_path):
    history = filled(tmp_path / "run" / "history.jsonl")
    assert history.flush() == (tmp_path / "run" / "history.jsonl").stat().st_size
    history.close()
    expected = [Record(*record) for record in RECORDS]
    assert history.records == expected
    assert History.load(tmp_path / "run").records == expected
    assert History.load(tmp_path / "run" / "history.jsonl").records == expected


def test_in_memory_there_is_nothing_to_flush():
    history = filled()
    assert history.flush() == 0
    history.close()
    assert len(history.records) == len(RECORDS)


def test_a_run_that_goes_on_keeps_what_the_checkpoint_knew(tmp_path):
    path = tmp_path / "history.jsonl"
    first = filled(path, RECORDS[:4])
    keep = first.flush()
    first.add(2, 9, "personal", 0.1, "all")  # after the checkpoint: does not count
    first.close()
    resumed = History(path, keep=keep)
    assert resumed.records == [Record(*record) for record in RECORDS[:4]]
    for record in RECORDS[4:]:
        resumed.add(*record)
    resumed.close()
    straight = filled(tmp_path / "straight.jsonl")
    straight.close()
    assert path.read_bytes() == (tmp_path / "straight.jsonl").read_bytes(), "the same bits"


def test_a_new_history_starts_over(tmp_path):
    filled(tmp_path / "history.jsonl").close()
    history = filled(tmp_path / "history.jsonl", RECORDS[:1])
    history.close()
    assert len(History.load(tmp_path).records) == 1


def test_a_half_written_last_line_is_not_read(tmp_path):
    path = tmp_path / "history.jsonl"
    filled(path).close()
    whole = path.read_bytes()
    for cut in range(1, len(whole.splitlines(keepends=True)[-1]) + 1):
        path.write_bytes(whole[:-cut])
        assert History.load(tmp_path).records == [Record(*record) for record in RECORDS[:-1]]


def test_a_history_shorter_than_the_checkpoint_says_is_refused(tmp_path):
    path = tmp_path / "history.jsonl"
    history = filled(path)
    keep = history.flush()
    history.close()
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match=rf"has lost records: it has {keep - 5} bytes, {keep} were written"):
        History(path, keep=keep)
    path.unlink()
    with pytest.raises(ValueError, match="has lost records: it has 0 bytes"):
        History(path, keep=keep)


def test_select_values_and_rounds():
    history = filled()
    assert [r.value for r in history.select("personal")] == [0.5, 0.75, 0.6, 1.0]
    assert [r.value for r in history.select("personal", scope="round")] == [0.6]
    assert [r.value for r in history.select("personal", round=2)] == [1.0]
    assert history.values("personal", round=1) == {0: 0.5, 1: 0.75}
    assert history.values("clusters", round=1, scope="") == {}, "records of the whole federation have no client"
    assert history.rounds() == [1, 2]
    assert history.rounds("personal", "round") == [1]


def test_to_pandas():
    pandas = pytest.importorskip("pandas")
    frame = filled().to_pandas()
    assert list(frame.columns) == ["round", "client", "metric", "value", "scope"]
    assert len(frame) == len(RECORDS)
    assert str(frame["client"].dtype) == "Int64"
    assert frame["client"].isna().sum() == sum(record[1] is None for record in RECORDS)
    evaluated = frame[(frame.metric == "personal") & (frame.scope == "all")]
    assert evaluated.groupby("round")["value"].mean().tolist() == [0.625, 1.0]
    assert isinstance(History().to_pandas(), pandas.DataFrame)
    assert len(History().to_pandas()) == 0


def test_older_names_of_metrics_are_read_as_the_new_ones(tmp_path):
    path = tmp_path / "history.jsonl"
    history = filled(path, [(0, 3, "test_rows", 12), (0, 3, "labels", [7, 5])])
    history.close()
    assert History.load(tmp_path).records == [Record(0, 3, "test_examples", 12), Record(0, 3, "labels", [7, 5])]
