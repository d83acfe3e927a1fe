"""A method with a parameter off is another method: the specification's table of reductions, one line each.

Every line also says what switches the method on again, and that it then is *not* the other one: a reduction of a method
that never does anything would prove nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pytest
import torch
from plain_baselines import federation, run
from torch import nn

from fedkin.methods import METHODS, method
from fedkin.models.network import build

Fields = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """`name` with `off` is `other`; with `on` it is not."""

    name: str
    off: Fields
    other: str
    on: Fields | None = None
    """None: what differs then is not this method's own parameter."""
    same_as: Fields = field(default_factory=dict)
    """Fields of the other method."""
    look: Literal["model", "received", "personal"] = "model"
    """What is compared: the server's model, or the clients' test losses before or after what the method does there."""
    against: str = ""
    """What is looked at in the other method, where it is not the same."""
    clients: Literal["unlike", "equal", "one"] = "unlike"
    """Of unlike sizes, of equal sizes, or a single one."""
    to_the_bit: bool = False
    tolerance: float = 1e-4
    settings: Fields = field(default_factory=dict)
    note: str = ""

    def __str__(self) -> str:
        return f"{self.name}-is-{self.other}{'-' + self.note if self.note else ''}"


def tanh() -> nn.Module:
    """A network without a closed-form gradient: other losses then go through the same arithmetic."""
    return build(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10)), 3)


def with_batch_norm() -> nn.Module:
    return build(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10)), 3)


PLAIN = {"model": tanh, "model_options": {}}
NORM = {"model": with_batch_norm, "model_options": {}}
ONE_BATCH = {"batch_size": 1000}
SLOW = {"lr": 1e-3}

CASES = [
    # ---- FedAvg
    Case("fedprox", {"mu": 0.0}, "fedavg", {"mu": 1.0}, to_the_bit=True),
    Case("fednova", {}, "fedavg", {"fewest_epochs": 1}, settings=ONE_BATCH, tolerance=1e-6, note="equal-steps"),
    Case("fednova", {"mu": 0.5}, "fedprox", {"mu": 2.0}, same_as={"mu": 0.5}, settings=ONE_BATCH, tolerance=1e-6),
    Case("scaffold", {}, "fedavg", {"server_lr": 0.5}, clients="equal", settings={"rounds": 1}, to_the_bit=True),
    Case("scaffold", {"weighting": "size"}, "fedavg", {}, settings={"rounds": 1}, to_the_bit=True, note="by-size"),
    Case("moon", {"mu": 0.0}, "fedavg", {"mu": 5.0}, settings=PLAIN, to_the_bit=True),
    Case("fedbn", {}, "fedavg", None, to_the_bit=True, note="without-batch-norm"),
    Case("perfedavg", {"alpha": 0.0}, "fedavg", {"alpha": 0.5}, clients="equal", to_the_bit=True),
    Case("perfedavg", {"alpha": 0.0, "variant": "hf"}, "fedavg", {"alpha": 0.5, "variant": "hf"}, clients="equal"),
    Case(
        "pfedme",
        {"lam": 500.0, "inner_lr": 2e-3, "inner_steps": 3},
        "fedavg",
        {"lam": 1.0, "inner_lr": 2e-3, "inner_steps": 3},
        clients="equal", settings=SLOW, tolerance=2e-4, note="large-lambda",
    ),
    Case("ifca", {"clusters": 1, "weighting": "size"}, "fedavg", {"clusters": 2}, to_the_bit=True, look="received"),
    Case("ifca", {"clusters": 1}, "fedavg", {"clusters": 2}, clients="equal", look="received", note="plain-mean"),
    Case("fedsem", {"clusters": 1, "weighting": "size"}, "fedavg", {"clusters": 3}, look="received"),
    Case(
        "cfl",
        {"eps1": 1e9, "eps2": float("inf"), "wait": 0},
        "fedavg",
        {"eps1": 1e9, "eps2": 0.0, "wait": 0},
        look="received",
    ),
    Case(
        "heurfedamp", {"sigma": 0.0, "lam": 0.0}, "fedavg", {"sigma": 25.0, "lam": 0.0, "self_weight": 0.8},
        clients="equal", look="received",
    ),
    Case(
        "sfl",
        {"groups": (0,) * 6, "pull_personal": 0.0, "pull_global": 0.0},
        "fedavg",
        {"groups": (0, 0, 0, 1, 1, 1), "pull_personal": 0.0, "pull_global": 0.0},
        clients="equal", look="received",
    ),
    Case("ditto", {}, "fedavg", {"weighting": "equal"}, to_the_bit=True, note="shared-model"),
    Case("apfl", {"alpha": 0.0, "adaptive": False}, "fedavg", {"alpha": 0.5, "adaptive": False}, look="personal"),
    Case("fedper", {"personal_layers": 0}, "fedavg", {"personal_layers": 1}, look="personal"),
    Case("pfedgraph", {"graph_lam": 1e9, "lam": 0.0}, "fedavg", {"graph_lam": 0.8, "lam": 0.0}, look="received"),
    Case("clustered-sampling", {}, "fedavg", {"mu": 1.0}, clients="equal", to_the_bit=True, note="every-client"),
    Case("clustered-sampling", {"urns": "similarity"}, "fedavg", None, clients="equal", to_the_bit=True),
    Case("fedala", {"rate": 0.0}, "fedavg", {"rate": 20.0, "tensors": 0}),
    Case("fedgroup", {"groups": 1, "pretrain_steps": 0}, "fedavg", {"groups": 3, "pretrain_steps": 0}, look="received"),
    Case("lg-fedavg", {"global_layers": 2, "weighting": "size"}, "fedavg", {"global_layers": 1}, look="personal"),
    Case(
        "fedaghn", {"q": 0.0, "p": 0.2, "server_lr": 0.0}, "fedavg", {"q": 20.0, "p": 5.0},
        clients="equal", look="received",
    ),
    # ---- Local
    Case("lg-fedavg", {"global_layers": 0}, "local", {"global_layers": 1}, look="personal", to_the_bit=True),
    Case(
        "fedaghn", {"p": 1e9, "server_lr": 0.0}, "local", {"p": 0.2, "server_lr": 0.0},
        look="received", against="personal",
    ),
    Case("ditto", {"lam": 0.0}, "local", {"lam": 1.0}, look="personal", to_the_bit=True),
    Case("apfl", {"alpha": 1.0, "adaptive": False}, "local", {"alpha": 0.5, "adaptive": False}, look="personal"),
    Case("fedper", {"personal_layers": 2}, "local", {"personal_layers": 1}, look="personal", note="empty-body"),
    Case("clusterfl-kmeans", {"lam": 0.0}, "local", {"lam": 1.0}, look="personal", to_the_bit=True),
    Case("fedamp", {"lam": 0.0, "start": "local"}, "local", {"lam": 1.0}, look="personal", to_the_bit=True),
    Case(
        "sfl", {"server_step": 0.0, "pull_personal": 0.0, "pull_global": 0.0}, "local", {"server_step": 1.0},
        look="personal",
    ),
    # ---- FedAvg's predictions
    Case("knnper", {"lam": 0.0, "choose": False}, "fedavg", {"lam": 0.5, "choose": False}, look="personal"),
    Case("knnper", {"capacity": 0.0}, "fedavg", {}, look="personal", to_the_bit=True, note="nothing-stored"),
    Case("fedrod", {"gamma": 0.0}, "fedavg", {"gamma": 1.0}, look="received", note="generic-model"),
    # ---- one client alone: whatever it is sent is its own
    Case("fedavg", {}, "local", None, look="personal", clients="one", to_the_bit=True),
    Case("fednova", {}, "local", None, look="personal", clients="one"),
    Case("scaffold", {}, "local", None, look="personal", clients="one"),
    Case("fedbn", {}, "local", None, look="personal", clients="one", settings=NORM, to_the_bit=True),
    Case("ifca", {"clusters": 1}, "local", None, look="personal", clients="one"),
    Case("cfl", {}, "local", None, look="personal", clients="one"),
    Case("fedsem", {"clusters": 1}, "local", None, look="personal", clients="one"),
    Case("sfl", {"pull_personal": 0.0, "pull_global": 0.0}, "local", None, look="personal", clients="one"),
    Case("fedgroup", {"pretrain_steps": 0}, "local", None, look="personal", clients="one", note="alone"),
    Case("fedper", {}, "local", None, look="personal", clients="one", note="alone"),
    Case("lg-fedavg", {}, "local", None, look="personal", clients="one", note="alone"),
    Case("fedfomo", {}, "local", None, look="personal", clients="one", note="alone"),
    Case("fedala", {}, "local", None, look="personal", clients="one", note="alone"),
    Case("clustered-sampling", {}, "local", None, look="personal", clients="one", note="alone"),
    Case("ditto", {}, "local", None, look="received", against="personal", clients="one", note="alone-shared-model"),
    Case("heurfedamp", {"lam": 0.0}, "local", None, look="personal", clients="one", note="alone"),
    Case("pfedgraph", {"lam": 0.0}, "local", None, look="received", against="personal", clients="one", note="alone"),
    Case("fedaghn", {}, "local", None, look="received", against="personal", clients="one", note="alone"),
]  # fmt: skip


def of(clients):
    fed = federation()
    if clients == "unlike":
        return fed
    splits = tuple(replace(split, train=split.train[:15]) for split in fed.splits)
    if clients == "one":
        splits = splits[:1]
        return replace(fed, splits=splits, partition=replace(fed.partition, indices=fed.partition.indices[:1]))
    return replace(fed, splits=splits)


def seen(result, look):
    """What is compared, as one tensor."""
    if look == "model":
        return result.state["model"]
    last = max(record.round for record in result.history.select(f"{look}_loss", scope="all"))
    values = result.history.values(f"{look}_loss", round=last)
    return torch.tensor([values[client] for client in sorted(values)])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reduction(case):
    def outcome(name, fields, look=case.look):
        return seen(run(method(name, **fields), fed=of(case.clients), **case.settings), look)

    got, want = outcome(case.name, case.off), outcome(case.other, case.same_as, case.against or case.look)
    if case.to_the_bit:
        assert torch.equal(got, want)
    else:
        assert torch.allclose(got, want, rtol=case.tolerance, atol=case.tolerance)
    if case.on is not None:
        again = outcome(case.name, case.on)
        assert not torch.allclose(again, want, rtol=case.tolerance, atol=case.tolerance), "on, it should differ"


def test_batch_norm_is_what_fedbn_has_more_than_fedavg():
    """`fedbn-is-fedavg` has no parameter to switch on: the model does it."""
    a, b = (seen(run(method(name), **NORM), "personal") for name in ("fedbn", "fedavg"))
    assert not torch.allclose(a, b, rtol=1e-3)


@pytest.mark.parametrize("fields", [{"mix": "global"}, {"weight_lr": 0.0}], ids=str)
def test_fedah_with_weights_of_one_starts_from_the_received_model(fields):
    """The step of aggregation alone: FedAH then trains head and body in turn, which FedAvg does not."""

    def starts(**given):
        result = run(method("fedah", **given))
        return seen(result, "personal"), seen(result, "received")

    assert torch.allclose(*starts(**fields), rtol=1e-5)
    assert not torch.allclose(*starts(weight_lr=50.0), rtol=1e-4)
    assert not torch.allclose(*starts(mix="local"), rtol=1e-4)


def test_the_table_is_about_methods_that_are_there():
    assert {case.name for case in CASES} | {case.other for case in CASES} <= set(METHODS)
