"""The headline numbers, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedkin.results.history import History
from fedkin.results.summary import spread, summarize

CONFIG: dict[str, Any] = {"label": "fedavg", "method": {}, "options": {"rounds": 4}, "sees_test": False}


def history(personal: dict[int, list[float]], validation: dict[int, list[float]] | None = None) -> History:
    made = History()
    made.add(0, None, "mean_kld", 0.5)
    for client, rows in enumerate([10, 30, 60]):
        made.add(0, client, "test_examples", rows)
    for metric, table in (("personal", personal), ("validation", validation or {})):
        for round, values in table.items():
            for client, value in enumerate(values):
                made.add(round, client, metric, value, "all")
    return made


def test_the_headline_is_the_last_round_and_never_the_best():
    out = summarize(history({2: [1.0, 1.0, 1.0], 4: [0.2, 0.4, 0.9]}), CONFIG)
    assert out["personal"]["mean"] == pytest.approx(0.5)
    assert out["personal"]["weighted"] == pytest.approx((10 * 0.2 + 30 * 0.4 + 60 * 0.9) / 100)
    assert out["personal"]["std"] == pytest.approx(np.std([0.2, 0.4, 0.9]))
    assert out["personal"]["worst_decile"] == pytest.approx(0.2)
    assert out["personal"]["jain"] == pytest.approx(1.5**2 / (3 * (0.04 + 0.16 + 0.81)))
    assert (out["method"], out["rounds"], out["clients"], out["mean_kld"]) == ("fedavg", 4, 3, 0.5)
    assert "received" not in out
    assert "chosen_by_validation" not in out


def test_measurements_within_a_round_do_not_count():
    made = history({4: [0.2, 0.4, 0.9]})
    made.add(4, 0, "personal", 1.0, "round")
    assert summarize(made, CONFIG)["personal"]["mean"] == pytest.approx(0.5)


def test_a_round_is_chosen_by_validation_the_earliest_of_the_best():
    made = history(
        personal={1: [0.9, 0.9, 0.9], 2: [0.3, 0.3, 0.3], 3: [0.6, 0.6, 0.6], 4: [0.5, 0.5, 0.5]},
        validation={1: [0.1, 0.1, 0.1], 2: [0.8, 0.8, 0.8], 3: [0.8, 0.8, 0.8], 4: [0.7, 0.7, 0.7]},
    )
    chosen = summarize(made, CONFIG)["chosen_by_validation"]
    assert chosen["round"] == 2
    assert chosen["mean"] == pytest.approx(0.3), "though another round is better on test"


def test_costs_and_losses_add_up():
    made = history({4: [0.1, 0.2, 0.3]})
    for round in (1, 2):
        for client in (0, 1):
            made.add(round, client, "bytes_down", 100)
            made.add(round, client, "bytes_up", 10 * (client + 1))
            made.add(round, client, "flops", 7.0)
        made.add(round, None, "compute_seconds", 2.0)
        made.add(round, None, "communication_seconds", 0.5)
    made.add(2, 1, "dropped", "lost on the way")
    made.add(3, None, "lost_round", True)
    made.add(2, 2, "unmeasured", "boom", "all")
    made.add(4, 2, "unmeasured", "boom", "all")
    for client, value in enumerate([0.3, 0.3, 0.6]):
        made.add(4, client, "received", value, "all")
    out = summarize(made, CONFIG)
    assert (out["bytes_down"], out["bytes_up"], out["flops"]) == (400, 60, 28.0)
    assert out["simulated_seconds"] == {"compute": 4.0, "communication": 1.0, "total": 5.0}
    assert (out["dropped"], out["lost_rounds"], out["unmeasured"]) == (1, 1, 1)
    assert out["received"]["mean"] == pytest.approx(0.4)


def test_clients_that_could_not_be_measured_are_left_out_of_the_mean():
    made = history({4: [0.2, 0.4]})  # the third is missing
    assert summarize(made, CONFIG)["personal"]["weighted"] == pytest.approx((10 * 0.2 + 30 * 0.4) / 40)


def test_nobody_measured_after_the_last_round():
    """An earlier round must not stand in for it in silence."""
    made = history({2: [1.0, 1.0, 1.0]})
    made.add(4, 0, "unmeasured", "client 0: out of memory", "all")
    with pytest.raises(
        ValueError, match="No client could be measured after the last round, 4: client 0: out of memory"
    ):
        summarize(made, CONFIG)


def test_spread_of_nothing():
    assert spread({}, {}) == {}


def test_models_of_one_class_are_named_and_the_majority_stands_beside():
    made = history({2: [0.2, 0.4, 0.9], 4: [0.2, 0.4, 0.9]})
    for client, rate in enumerate([0.5, 0.6, 1.0]):
        made.add(0, client, "majority_rate", rate)
    made.add(2, 1, "one_class", True, "all")  # an earlier round does not count
    made.add(4, 2, "one_class", True, "all")
    out = summarize(made, {**CONFIG, "inputs": {"clients": ["north", "south", "west"]}})
    assert out["one_class"] == ["west"]
    assert out["majority_rate"] == pytest.approx(0.7)


def test_the_table_of_a_run_says_so():
    from rich.console import Console

    from fedkin.cli.run import table

    made = history({4: [0.2, 0.4, 0.9]})
    made.add(0, 0, "majority_rate", 0.6287)
    made.add(4, 2, "one_class", True, "all")
    screen = Console(width=200, record=True)
    screen.print(table("fedavg", summarize(made, {**CONFIG, "inputs": {"clients": ["north", "south", "west"]}})))
    shown = " ".join(screen.export_text().split())  # lines are as wide as the table
    assert "Always predicting a client's most frequent class: 62.87 %, mean" in shown
    assert "The personal model predicts one class for every test example: west" in shown
