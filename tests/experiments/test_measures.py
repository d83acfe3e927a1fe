"""What is kept of a run and read from it, on histories made by hand."""

import json

import numpy as np
import pytest

from fedkin.experiments import measures
from fedkin.experiments.cells import extract
from fedkin.experiments.declare import Cell, Run, Setting
from fedkin.results.history import History


def a_run(history: History, folder, rounds: int = 10, clients: int = 2, keep=(), every: int = 1, **setting) -> Run:
    """What a run with this history leaves behind."""
    one = Setting("mnist", "iid", clients, rounds, "mlp", evaluate_every=every, **setting)
    summary = {"rounds": rounds, "clients": clients, "bytes_down": 3, "bytes_up": 4, "flops": 5, "mean_kld": 0.25}
    (folder / "summary.json").write_text(json.dumps(summary))
    with open(folder / "history.jsonl", "w") as f:
        for record in history.records:
            f.write(json.dumps(record._asdict()) + "\n")
    result = extract(folder, one, keep, 1.5)
    return Run(Cell("A", "c", "fedavg", one), one, 0, json.loads(json.dumps(result)))


def with_mixing(folder, matrix, labels) -> Run:
    history = History()
    for client, counts in enumerate(labels):
        history.add(0, client, "labels", counts)
    history.add(1, None, "mixing", np.eye(len(matrix)).tolist())
    history.add(2, None, "mixing", np.array(matrix, float).tolist())
    return a_run(history, folder, clients=len(labels), keep=("mixing", "labels"), every=0)


def test_who_learns_from_whom(tmp_path):
    labels = [[5, 0], [3, 0], [0, 4]]  # 0 and 1 are alike
    run = with_mixing(tmp_path, [[0.5, 0.4, 0.1], [0.3, 0.6, 0.1], [0.2, 0.0, 0.8]], labels)
    assert measures.own_weight.of(run) == pytest.approx((0.5 + 0.6 + 0.8) / 3)
    assert measures.evenness.of(run) == 0
    like, unlike = (0.4 + 0.3) / 2, (0.1 + 0.1 + 0.2 + 0.0) / 4
    assert measures.to_like.of(run) == pytest.approx(like / (like + unlike))
    even = with_mixing(tmp_path, np.full((3, 3), 1 / 3), labels)
    assert measures.to_like.of(even) == pytest.approx(0.5)
    assert measures.evenness.of(even) == 1
    # nothing goes to others, or all are alike: nothing can be said
    assert measures.to_like.of(with_mixing(tmp_path, np.eye(3), labels)) is None
    assert measures.to_like.of(with_mixing(tmp_path, np.eye(2), [[1, 1], [1, 1]])) is None


def with_curve(folder, values, *, up=lambda r: 100, every: int = 1) -> Run:
    history = History()
    for r, value in enumerate(values, start=1):
        for client in (0, 1):
            if r % every == 0:
                history.add(r, client, "personal", value, "all")
            history.add(r, client, "bytes_up", up(r))
        history.add(r, None, "communication_seconds", 2.0)
        history.add(r, None, "compute_seconds", 1.0)
    return a_run(history, folder, len(values), keep=("curve", "time"), every=every)


def test_time_and_rounds_until_convergence(tmp_path):
    both = measures.until_converged("communication_seconds", "compute_seconds")
    flat = with_curve(tmp_path, [0.1, 0.5] + [0.9] * 18, up=lambda r: 100 if r % 2 else 0)
    # smoothed over 5 the curve rises until round 7; then 4 rounds, a fifth of 20, bring nothing
    assert measures.converged(flat) == 7
    assert measures.communications.of(flat) == 4  # 1, 3, 5, 7
    assert measures.until_converged("communication_seconds").of(flat) == 14
    assert both.of(flat) == 21
    silent = with_curve(tmp_path, [0.1, 0.5] + [0.9] * 18, up=lambda r: 0)
    assert measures.communications.of(silent) is None  # nobody sends: not a number of rounds
    # a long run waits for 20 rounds, as the paper's
    assert measures.converged(with_curve(tmp_path, [0.5] * 15 + [0.9] * 100)) == 20


def test_a_run_that_did_not_converge_has_no_convergence_time(tmp_path):
    rising = with_curve(tmp_path, np.linspace(0.1, 0.9, 20).tolist())
    assert measures.converged(rising) is None
    for measure in (measures.communications, measures.until_converged("communication_seconds", "compute_seconds")):
        assert measure.of(rising) is None


def test_time_goes_on_between_measurements(tmp_path):
    assert measures.simulated_time(with_curve(tmp_path, [0.1] * 6, every=2)) == [6, 12, 18]


def test_rounds_to_an_accuracy(tmp_path):
    run = with_curve(tmp_path, [0.1, 0.4, 0.6, 0.5])
    assert measures.rounds_to(0.5).of(run) == 3
    assert measures.rounds_to(0.7).of(run) is None


def test_every_fifth_round(tmp_path):
    history = History()
    for r in range(1, 12):
        history.add(r, None, "rand_index", r / 10)
    run = a_run(history, tmp_path, keep=("rand_index",), every=0)
    assert measures.every(5, "rand_index")(run) == [0.5, 1.0]


def test_final_values_of_clients(tmp_path):
    history = History()
    for client in range(4):
        history.add(0, client, "test_examples", 50 + client)
        history.add(10, client, "personal", client / 10, "all")
        history.add(9, client, "personal", 0.9, "all")
    run = a_run(history, tmp_path, clients=4, arrive_share=0.5, every=0)
    assert measures.personal.of(run) == pytest.approx(0.15)
    assert run.clients("personal").tolist() == [0, 0.1, 0.2, 0.3]
    assert measures.spread_over_clients.of(run) == pytest.approx(np.std([0, 0.1, 0.2, 0.3]))
    assert measures.newcomers.of(run) == pytest.approx(0.25)  # the two that joined late
    assert measures.received.of(run) is None  # nothing was sent
    assert run.result["tests"] == [50, 51, 52, 53]
    assert measures.megabytes.of(run) == pytest.approx(7e-6)
