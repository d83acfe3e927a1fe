"""Matrices of many clients would be most of the history: then they are not written in every round."""

from __future__ import annotations

import fedkin
from fedkin.engine import recorder


def rounds_written(**options):
    fed = fedkin.federate("digits", clients=6, samples_per_client=30)
    result = fedkin.run("fedavg", fed, engine="serial", evaluate_every=0, **options)
    return [record.round for record in result.history.select("mixing")]


def test_few_clients_have_a_matrix_in_every_round():
    assert rounds_written(rounds=5) == [1, 2, 3, 4, 5]


def test_many_clients_have_the_first_and_then_some(monkeypatch, tmp_path):
    monkeypatch.setattr(recorder, "MIXING_CELLS", 12)  # 36 numbers in a matrix: every third round
    assert rounds_written(rounds=7) == [1, 3, 6]
    rounds_written(rounds=4, out=tmp_path, checkpoint_every=2)
    assert rounds_written(rounds=7, out=tmp_path, checkpoint_every=2) == [1, 3, 6], "also where a run is made longer"


def test_too_many_clients_have_none(monkeypatch):
    monkeypatch.setattr(recorder, "MIXING_LIMIT", 5)
    assert rounds_written(rounds=2) == []
