"""A long run needs no more memory than a short one."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from fedkin.results.history import History
from tests.processes import needs_linux

GROWTH = """
import gc, os, sys
import fedkin
from torch import nn
from fedkin.engine.trackers import Tracker

def resident():
    gc.collect()
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096

class Watch(Tracker):
    def round(self, round, metrics):
        if round % (int(sys.argv[1]) // 40) == 0:
            print(round, resident(), len(os.listdir("/proc/self/fd")), flush=True)

fed = fedkin.federate("digits", clients=10, samples_per_client=20)
fedkin.run("fedavg", fed, rounds=int(sys.argv[1]), out=sys.argv[2], trackers=[Watch()], evaluate_every=1,
           model=lambda shape, classes: nn.Sequential(nn.Flatten(), nn.Linear(64, classes)),
           save_models=False, checkpoint_every=50, workers=1)
"""


def samples(rounds: int, out) -> list[tuple[int, ...]]:
    """Forty times in a run: the round, the bytes of resident memory, and the number of open files."""
    done = subprocess.run([sys.executable, "-c", GROWTH, str(rounds), out], capture_output=True, text=True, check=True)
    return [tuple(map(int, line.split())) for line in done.stdout.splitlines()]


def growth(rounds: int, out) -> tuple[float, int]:
    """Bytes for each round, and file handles, that the second half of a run takes in addition."""
    found = samples(rounds, out)
    (middle, first, handles), (last, second, more) = found[len(found) // 2 - 1], found[-1]
    return (second - first) / (last - middle), more - handles


def last_slope(found: list[tuple[int, ...]]) -> float:
    """Bytes for each round in the last quarter of a run: the slope of the line nearest to the samples."""
    quarter = np.array(found[-len(found) // 4 :], float)
    return float(np.polyfit(quarter[:, 0], quarter[:, 1], 1)[0])


@needs_linux
@pytest.mark.processes
@pytest.mark.slow
def test_records_are_not_kept_in_memory(tmp_path):
    """It was 48 to 189 KB a round. What is left is the noise of an allocator."""
    bytes_a_round, handles = growth(200, tmp_path)
    assert bytes_a_round < 10_000
    assert handles == 0


@needs_linux
@pytest.mark.slow
def test_two_thousand_rounds(tmp_path):
    found = samples(2000, tmp_path)
    assert last_slope(found) < 1e6 / 100
    assert len({handles for _, _, handles in found[20:]}) == 1


def history(rounds: int) -> History:
    made = History()
    for round in range(1, rounds + 1):
        for client in range(20):
            made.add(round, client, "personal", 0.5, "all")
    return made


def test_reading_round_by_round_takes_linear_time():
    """Counted, not timed: how many records are looked at."""
    looked = 0

    class Counted(list):
        def __iter__(self):
            nonlocal looked
            looked += len(self)
            return super().__iter__()

    made = history(200)
    index = made._by_metric()["personal"]
    for round in index:
        index[round] = Counted(index[round])
    for round in range(1, 201):
        assert len(made.values("personal", round=round)) == 20
    assert looked == 200 * 20


def test_what_is_added_later_is_found():
    made = history(2)
    assert made.rounds() == [1, 2]
    made.add(3, 0, "personal", 0.1, "all")
    assert made.rounds() == [1, 2, 3]
    assert [r.value for r in made.select("personal", round=3)] == [0.1]


def test_a_large_history_is_read_when_it_is_needed(tmp_path):
    written = History(tmp_path / "history.jsonl")
    for row in history(5).records:
        written.add(*row)
    written.close()
    with pytest.raises(ValueError, match="is closed"):
        written.add(1, 1, "personal", 0.5)
    for limit in (None, 10):
        read = History.load(tmp_path, limit=limit)
        assert bool(read._records) == (limit is None)
        assert read.records == history(5).records
        assert read.values("personal", round=4) == history(5).values("personal", round=4)
        assert read.rounds() == [1, 2, 3, 4, 5]


def test_a_damaged_line_is_said(tmp_path):
    (tmp_path / "history.jsonl").write_text('{"round": 1, "client": 0, "metric": "a", "value": 1}\n{"round": 1, cli\n')
    with pytest.raises(ValueError, match=r"Line 2 of .*history\.jsonl is damaged"):
        History.load(tmp_path)
