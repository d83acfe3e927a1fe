"""`--faults`: clients that fail as often as the plan says. Every method goes on without them."""

from __future__ import annotations

import pytest

import fedkin
from fedkin.engine.faults import FaultPlan
from fedkin.methods import METHODS
from fedkin.results.store import equal


@pytest.fixture(scope="module")
def fed() -> fedkin.Federation:
    return fedkin.federate("digits", clients=8, samples_per_client=30, seed=2)


PLAN = "drop=0.3,slow=0.1,nan=0.1,shape=0.1"


def test_a_plan_is_read():
    assert FaultPlan.read("drop=0.3, nan=0.05") == FaultPlan(drop=0.3, nan=0.05)
    assert FaultPlan.read("", 0.2) == FaultPlan(drop=0.2)
    assert FaultPlan.read("nan=0.1", 0.2) == FaultPlan(drop=0.2, nan=0.1)


@pytest.mark.parametrize(
    ("text", "lost", "words"),
    [
        ("dorp=0.3", 0, "'dorp=0.3'.*Known: drop, slow, nan, shape, huge"),
        ("drop", 0, "'drop'"),
        ("drop=many", 0, "'drop=many'"),
        ("drop=-1", 0, "'drop=-1'"),
        ("drop=0.1,drop=0.2", 0, "each once"),
        ("nan=1.0", 0, r"nan=1.0 must lie in \[0, 1\)"),
        ("nan=nan", 0, "nan=nan"),
        ("drop=0.1", 0.2, "both say how many replies get lost"),
    ],
)
def test_plans_that_are_none(fed, text, lost, words):
    with pytest.raises(ValueError, match=words):
        fedkin.run("fedavg", fed, rounds=1, faults=text, lost=lost)


def test_each_fault_comes_as_often_as_asked_and_is_named(fed):
    result = fedkin.run("fedavg", fed, rounds=40, faults="drop=0.2,nan=0.1,shape=0.1,huge=0.05", engine="serial")
    texts = [record.value for record in result.history.select("dropped")]
    counts = {
        "lost on the way": 0.2 * 0.75,  # of those that were not bad already
        "NaN or infinity": 0.1,
        "where the others replied": 0.1 * 0.9,
        "which reaches": 0.05 * 0.9 * 0.9 * 0.8,  # and those that were not lost
    }
    for words, rate in counts.items():
        found = sum(words in text for text in texts) / (40 * 8)
        assert 0.5 * rate < found < 1.6 * rate, words
    bad = sum(text.startswith("quarantined: ") for text in texts)
    assert sum(result.summary["quarantined"].values()) == bad
    assert len(result.summary["quarantined"]) > 4, "counted for each client"
    assert result.summary["dropped"] == len(texts)


def test_drop_is_lost_under_another_name(fed):
    one = fedkin.run("fedavg", fed, rounds=5, lost=0.4, engine="serial")
    two = fedkin.run("fedavg", fed, rounds=5, faults="drop=0.4", engine="serial")
    assert one.history.records == two.history.records


def test_slow_clients_cost_simulated_time_and_nothing_else(fed):
    plain = fedkin.run("fedavg", fed, rounds=6, engine="serial")
    slow = fedkin.run("fedavg", fed, rounds=6, faults="slow=0.2", engine="serial")
    assert equal(plain.state, slow.state)
    seconds = {r.round: r.value for r in plain.history.select("communication_seconds")}
    longer = {r.round: r.value / seconds[r.round] for r in slow.history.select("communication_seconds")}
    assert {round(v, 6) for v in longer.values()} == {1.0, 10.0}


@pytest.mark.parametrize("engine", ["serial", "pool"])
def test_engines_agree_and_a_stopped_run_goes_on(fed, engine, tmp_path):
    plan = "drop=0.2,slow=0.1,nan=0.1,shape=0.1,huge=0.1"
    straight = fedkin.run("ditto", fed, rounds=6, faults=plan, engine="serial")
    for rounds in (3, 6):
        stopped = fedkin.run("ditto", fed, rounds=rounds, faults=plan, engine=engine, out=tmp_path, checkpoint_every=1,
                             evaluate_every=3)  # fmt: skip
    assert equal(straight.state, stopped.state)
    dropped = [[record[:4] for record in run.history.select("dropped")] for run in (straight, stopped)]
    assert dropped[0] == dropped[1]


@pytest.mark.parametrize("name", ["dcpfl,start_rounds=2,window=1,patience=1", "fedfomo", "pfedme", "pfedgat"])
def test_replies_of_different_lengths(name):
    """Only the method knows how long each should be. Two bad ones in one round, or no length that most have."""
    clients = fedkin.federate("digits", clients=12, samples_per_client=30, seed=0)
    result = fedkin.run(fedkin.method(name), clients, rounds=14, faults="drop=0.2,shape=0.12", engine="serial",
                        evaluate_every=0, lr=0.1)  # fmt: skip
    assert result.summary["measured"] == 12
    assert sum(result.summary["quarantined"].values()) > 5


@pytest.mark.parametrize("name", METHODS)
def test_every_method_finishes(fed, name):
    result = fedkin.run(name, fed, rounds=6, faults=PLAN, engine="serial", evaluate_every=0)
    assert result.summary["measured"] == 8
    assert not result.summary["incomplete"]
    assert all(v is not None and v < 1e6 for v in result.history.values("personal_loss", round=6).values())
