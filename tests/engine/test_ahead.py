"""An evaluation that trains does not make the next round train again, and no number depends on that."""

from __future__ import annotations

import pytest

import fedkin
from fedkin.client.training import sgd
from fedkin.engine import ahead
from fedkin.methods import fedavg


@pytest.mark.parametrize("method", ["fedavg-ft", "fedcedar", "pfedgat", "kin", "fedper", "dcpfl"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_the_history_is_the_same_without_it(method, participation, digits, monkeypatch, tmp_path):
    found = []
    for room in (0, ahead.MOST_BYTES):
        monkeypatch.setattr(ahead, "MOST_BYTES", room)
        folder = tmp_path / str(room)
        fedkin.run(
            method, digits, rounds=4, participation=participation, evaluate_every=1, engine="serial", out=str(folder)
        )
        found.append((folder / "history.jsonl").read_bytes())
    assert found[0] == found[1]


def test_a_client_trains_once_for_evaluation_and_round(digits, monkeypatch):
    trained = []
    monkeypatch.setattr(fedavg, "sgd", lambda *given, **named: trained.append(1) or sgd(*given, **named))
    fedkin.run("fedavg-ft", digits, rounds=3, evaluate_every=1, engine="serial")
    assert len(trained) == 4 * len(digits), "each round once, and the last evaluation"
