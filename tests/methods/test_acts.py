"""`fedkin run METHOD` with its defaults: every method does something of its own, or says before round 1 that it cannot.

    pytest -m slow -s tests/methods/test_acts.py

prints each method's accuracy after 20 rounds beside that of local training and of FedAvg.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import fedkin
from fedkin.methods import METHODS

ROUNDS = 20
CLIENTS = 20
SLACK = 0.06  # IFCA and PFLIC divide clients without groups among several models, and are below local training
SLOW = {"floco": 0.3, "floco-plus": 0.15}  # says before it starts that ten heads need more steps


class Outcome(NamedTuple):
    accuracy: float
    losses: dict[int, float | None]
    traffic: tuple[int, int]
    warnings: list[str]
    shown: dict[str, Any]
    """The last value of everything that the method wrote to the history."""


@functools.cache
def outcome(name: str) -> Outcome:
    fed = fedkin.federate("digits", partition="dirichlet", clients=CLIENTS, seed=0)
    result = fedkin.run(name, fed, rounds=ROUNDS, engine="serial", evaluate_every=0)
    accuracy = result.history.values("personal", round=ROUNDS)
    return Outcome(
        sum(accuracy.values()) / len(accuracy),
        result.history.values("personal_loss", round=ROUNDS),
        (result.summary["bytes_down"], result.summary["bytes_up"]),
        [record.value for record in result.history.select("warning")],
        {record.metric: record.value for record in result.history.records if record.client is None and record.round},
    )


def relatives(name: str) -> list[str]:
    """The other names of the same class: ablations and variants."""
    return [other for other, entry in METHODS.items() if other != name and entry.target == METHODS[name].target]


# On a network of two layers no layer has less than a tenth of the discrepancy, as docs/methods/dcpfl.md says.
ALIKE = {("dcpfl", "dcpfl-nola"), ("dcpfl-nola", "dcpfl")}


def several(labels: list[int]) -> bool:
    return len(set(labels)) > 1


def apart(rows: Any) -> bool:
    """Rows of a matrix that differ from client to client."""
    table = np.array(rows)
    return bool(np.abs(table - table[0]).max() > 1e-4)


def uneven(rows: Any) -> bool:
    """Weights that differ within a row."""
    return bool(np.ptp(np.array(rows), axis=1).max() > 1e-4)


def linked(rows: Any) -> bool:
    """A client has weight on another one."""
    table = np.array(rows)
    return bool(table[~np.eye(len(table), dtype=bool)].max() > 0)


# What the history shows of a method's own mechanism after the last round: the metric, and when it counts as at work.
SHOWN: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **{name: ("clusters", several) for name in METHODS if name.startswith("fedcedar")},
    **{name: ("phase", lambda phase: phase == 2) for name in ("pflic", "pflic-restarts")},
    **{name: ("group_count", lambda count: count > 1) for name in ("dcpfl", "dcpfl-nola", "dcpfl-nodc")},
    **{name: ("clusters", several) for name in ("ifca", "ifca-shared", "fedsem", "fedgroup", "clusterfl-kmeans")},
    **{name: ("mixing", uneven) for name in ("pfedgat", "pfedgat-v2", "pfedgat-direct", "pfedgat-v2-direct")},
    **{name: ("mixing", apart) for name in ("pfedgraph", "fedamp", "heurfedamp", "sfl", "sfl-star", "kin")},
    **{name: ("centers", apart) for name in ("floco", "floco-plus")},
    "cfl": ("models", lambda count: count > 1),
    "clusterfl": ("indicator", linked),
    "fedfomo": ("kept", lambda count: count < CLIENTS),
    "scaffold": ("control_norm", lambda norm: norm > 0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_method_acts_and_learns(name):
    found, local, fedavg = outcome(name), outcome("local"), outcome("fedavg")
    print(
        f"{name:22s} {100 * found.accuracy:6.2f} % (local {100 * local.accuracy:.2f}, "
        f"fedavg {100 * fedavg.accuracy:.2f}) {found.warnings}"
    )
    assert len(found.losses) == CLIENTS
    assert None not in found.losses.values(), "a model that is not finite"
    slack = SLOW.get(name, SLACK) if found.warnings else SLACK
    assert found.accuracy > min(local.accuracy, fedavg.accuracy) - slack
    if found.warnings:
        return
    if name not in ("local", "fedavg"):
        assert found.losses not in (local.losses, fedavg.losses), "it is local training or FedAvg, and does not say so"
    for other in relatives(name):
        if (name, other) not in ALIKE and not outcome(other).warnings:
            same = (found.losses, found.traffic) == (outcome(other).losses, outcome(other).traffic)
            assert not same, f"it is {other}, and neither says so"
    if name in SHOWN:
        metric, works = SHOWN[name]
        assert works(found.shown[metric]), f"{metric}: {found.shown[metric]}"


def test_what_the_history_must_show_is_of_methods():
    assert set(SHOWN) <= set(METHODS)


@pytest.mark.slow
def test_floco_with_steps_enough_for_its_heads_learns_like_the_others():
    """Five heads at four times the default rate; and where clients have two classes, three heads beat one."""
    fed = fedkin.federate("digits", partition="dirichlet", clients=CLIENTS, seed=0)
    options = {"rounds": ROUNDS, "engine": "serial", "evaluate_every": 0, "curves": False}

    def accuracy(method: Any, fed: Any, **changes: Any) -> float:
        return fedkin.run(method, fed, **options, **changes).summary["personal"]["mean"]

    five, one = (accuracy(fedkin.method("floco", endpoints=m), fed, lr=0.2) for m in (5, 1))
    two = fedkin.federate("digits", partition="pathological", classes_per_client=2, clients=CLIENTS, seed=0)
    apart, alike = (accuracy(method, two) for method in (fedkin.method("floco", endpoints=3), "fedavg"))
    print(f"floco: five heads {five:.3f}, one {one:.3f}; two classes a client {apart:.3f}, fedavg {alike:.3f}")
    assert five > one - 0.1
    assert apart > alike


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedsem", "sfl"])
def test_absent_clients_do_not_hold_the_others_back(name):
    """At participation 0.3, means over models that are many rounds old are far below FedAvg."""
    fed = fedkin.federate("digits", partition="dirichlet", clients=CLIENTS, seed=0)

    def accuracy(method: Any) -> float:
        options = {"rounds": 20, "participation": 0.3, "engine": "serial", "evaluate_every": 0, "curves": False}
        return fedkin.run(method, fed, **options).summary["personal"]["mean"]

    fedavg, now, old = (accuracy(m) for m in ("fedavg", name, fedkin.method(name, average="last")))
    print(f"{name}: {now:.3f}, with old models {old:.3f}, fedavg {fedavg:.3f}")
    assert now > old + 0.05
    assert now > fedavg - 0.15
