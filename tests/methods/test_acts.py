"""`fedkin run METHOD` with its defaults: every method does something of its own, or says before round 1 that it cannot.

    pytest -m slow -s tests/methods/test_acts.py

prints each method's accuracy after 20 rounds beside that of local training and of FedAvg.
"""

from __future__ import annotations

import functools

import pytest

import fedkin
from fedkin.methods import METHODS

ROUNDS = 20
SLACK = 0.06  # IFCA and PFLIC divide clients without groups among several models, and are below local training


@functools.cache
def outcome(name):
    fed = fedkin.federate("digits", partition="dirichlet", clients=20, seed=0)
    result = fedkin.run(name, fed, rounds=ROUNDS, engine="serial", evaluate_every=0)
    accuracy = result.history.values("personal", round=ROUNDS)
    losses = result.history.values("personal_loss", round=ROUNDS)
    warnings = [record.value for record in result.history.select("warning")]
    return sum(accuracy.values()) / len(accuracy), losses, warnings


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_method_acts_and_learns(name):
    accuracy, losses, warnings = outcome(name)
    local, fedavg = outcome("local"), outcome("fedavg")
    print(f"{name:22s} {100 * accuracy:6.2f} % (local {100 * local[0]:.2f}, fedavg {100 * fedavg[0]:.2f}) {warnings}")
    assert len(losses) == 20
    assert None not in losses.values(), "a model that is not finite"
    assert accuracy > min(local[0], fedavg[0]) - SLACK
    if name not in ("local", "fedavg") and not warnings:
        assert losses not in (local[1], fedavg[1]), "it is local training or FedAvg, and does not say so"
