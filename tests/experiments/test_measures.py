"""What is read from runs, on histories made by hand."""

from pathlib import Path

import numpy as np
import pytest

from fedkin.experiments import measures
from fedkin.experiments.declare import Cell, Run, Setting
from fedkin.results.history import History


def a_run(history: History, rounds: int = 10, **setting) -> Run:
    made = Run(Cell("A", "c", "fedavg", Setting("mnist", "iid", 4, 40, rounds, "mlp", **setting)), 0, Path())
    made.__dict__["history"] = history
    return made


def with_mixing(matrix, labels) -> Run:
    history = History()
    for client, counts in enumerate(labels):
        history.add(0, client, "labels", counts)
    history.add(1, None, "mixing", np.eye(len(matrix)).tolist())
    history.add(2, None, "mixing", np.array(matrix, float).tolist())
    return a_run(history)


def test_who_learns_from_whom():
    labels = [[5, 0], [3, 0], [0, 4]]  # 0 and 1 are alike
    run = with_mixing([[0.5, 0.4, 0.1], [0.3, 0.6, 0.1], [0.2, 0.0, 0.8]], labels)
    assert measures.own_weight(run) == pytest.approx((0.5 + 0.6 + 0.8) / 3)
    assert measures.evenness(run) == 0
    like, unlike = (0.4 + 0.3) / 2, (0.1 + 0.1 + 0.2 + 0.0) / 4
    assert measures.to_like(run) == pytest.approx(like / (like + unlike))
    assert measures.to_like(with_mixing(np.full((3, 3), 1 / 3), labels)) == pytest.approx(0.5)
    assert measures.evenness(with_mixing(np.full((3, 3), 1 / 3), labels)) == 1
    # nothing goes to others, or all are alike: nothing can be said
    assert measures.to_like(with_mixing(np.eye(3), labels)) is None
    assert measures.to_like(with_mixing(np.eye(2), [[1, 1], [1, 1]])) is None


def with_curve(values, *, up=lambda r: 100, rounds=None) -> Run:
    history = History()
    for r, value in enumerate(values, start=1):
        for client in (0, 1):
            history.add(r, client, "personal", value, "all")
            history.add(r, client, "bytes_up", up(r))
        history.add(r, None, "communication_seconds", 2.0)
        history.add(r, None, "compute_seconds", 1.0)
    return a_run(history, rounds or len(values))


def test_time_and_rounds_until_convergence():
    flat = with_curve([0.1, 0.5] + [0.9] * 18, up=lambda r: 100 if r % 2 else 0)
    # smoothed over 5 the curve rises until round 7; then 4 rounds, a fifth of 20, bring nothing
    assert measures.converged(flat) == 7
    assert measures.communications(flat) == 4  # 1, 3, 5, 7
    assert measures.until_converged("communication_seconds")(flat) == 14
    assert measures.until_converged("total")(flat) == 21
    rising = with_curve(np.linspace(0.1, 0.9, 20).tolist())
    assert measures.converged(rising) is None
    assert measures.communications(rising) is None
    assert measures.until_converged("total")(rising) == 60  # all of it
    silent = with_curve([0.1, 0.5] + [0.9] * 18, up=lambda r: 0)
    assert measures.communications(silent) is None  # nobody sends: not a number of rounds
    # a long run waits for 20 rounds, as the paper's
    assert measures.converged(with_curve([0.5] * 15 + [0.9] * 100)) == 20


def test_time_goes_on_between_measurements():
    run = with_curve([0.1] * 6)
    assert measures.simulated_time(run, [2, 4, 6]) == [6, 12, 18]


def test_rounds_to_an_accuracy():
    run = with_curve([0.1, 0.4, 0.6, 0.5])
    assert measures.rounds_to(0.5)(run) == 3
    assert measures.rounds_to(0.7)(run) is None


def test_every_fifth_round():
    history = History()
    for r in range(1, 12):
        history.add(r, None, "rand_index", r / 10)
    assert measures.every(5, "rand_index")(a_run(history)) == [0.5, 1.0]


def test_newcomers_alone_are_counted():
    history = History()
    for client in range(4):
        history.add(10, client, "personal", client / 10, "all")
    run = a_run(history, arrive_share=0.5)
    run.__dict__["summary"] = {"rounds": 10}
    assert measures.newcomers(run) == pytest.approx(0.25)


def test_where_nothing_is_sent_nothing_is_received():
    run = a_run(History())
    run.__dict__["summary"] = {"personal": {"mean": 0.5}}
    assert measures.received(run) is None
