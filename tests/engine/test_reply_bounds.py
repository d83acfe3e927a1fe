"""A hostile client's losses, counts and choices: out of range, they are not merged, and their sender is named."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import fedkin
from fedkin import Client, Message, Reply
from fedkin.bounds import Bound
from fedkin.engine.reply_bounds import clamped, outside, with_upper_ends
from fedkin.engine.runner import ClientRunner, client_seed
from fedkin.methods import METHODS, method
from fedkin.protocol import client_function, ragged
from fedkin.robust.updates import judged, references
from fedkin.task import TASKS, Classification

LIAR = 3
# index of the array, and settings with which the method sends it
DECLARED = {
    "kin": [(1, {})],
    "ifca": [(1, {"clusters": 2})],
    "fedproto": [(1, {})],
    "fedfomo": [(1, {})],
    "fedas": [(1, {})],
    "fednova": [(1, {})],
    "fedpac": [(3, {}), (5, {})],
    "pflic": [(1, {"clusters": 2}), (2, {})],
    "pfedgat": [(1, {}), (1, {"feedback": "scalar"})],
    "dcpfl": [(1, {})],
}
CASES = [(name, index, given) for name, found in DECLARED.items() for index, given in found]


@pytest.fixture(scope="module")
def fed() -> fedkin.Federation:
    return fedkin.federate("digits", clients=6, samples_per_client=60, seed=2, validation=0.2)


def lying(name: str, index: int, value: float, given: dict) -> fedkin.Method:
    """The method, with one client that fills an array of its replies with a number."""
    plain = method(name, **given)
    kind = type(plain)

    def local(self, client: Client, message: Message) -> Reply:
        reply = kind.local(self, client, message)
        if client.seed not in [client_seed(0, round, LIAR) for round in range(1, 9)]:
            return reply
        body = list(reply.body)
        body[index] = torch.full_like(body[index], value)
        return Reply(reply.state, tuple(body))

    mark = ragged if getattr(kind.local, "__ragged__", False) else client_function
    hostile = dataclasses.dataclass(frozen=True)(type(f"Lying{kind.__name__}", (kind,), {"local": mark(local)}))
    return hostile(**{f.name: getattr(plain, f.name) for f in dataclasses.fields(plain)})


@pytest.mark.parametrize("value", [-3.0, 1e9])
@pytest.mark.parametrize(("name", "index", "given"), CASES, ids=[f"{n}-{i}-{len(g)}" for n, i, g in CASES])
def test_a_number_out_of_range_is_quarantined(fed, name, index, given, value):
    run = fedkin.run(lying(name, index, value, given), fed, rounds=3, lr=0.05, engine="serial")
    dropped = list(run.history.select("dropped"))
    assert {record.client for record in dropped} == {LIAR}
    assert all(f"array {index} of its reply holds {value:.4g}" in str(record.value) for record in dropped)
    assert run.summary["quarantined"]


def test_numbers_without_an_upper_end_are_compared_with_the_others():
    losses = {0: [torch.tensor([0.5])], 1: [torch.tensor([2.0])], 2: [torch.tensor([9e3])], 3: [torch.tensor([3e4])]}
    bounds = with_upper_ends(losses, {client: {0: Bound(least=0)} for client in losses})
    wrong = {client: outside(body, bounds[client]) for client, body in losses.items()}
    assert [bool(text) for text in wrong.values()] == [False, False, False, False], "the median is 4500"
    losses[4] = losses[5] = [torch.tensor([0.1])]
    bounds = with_upper_ends(losses, {client: {0: Bound(least=0)} for client in losses})
    wrong = {client: outside(body, bounds[client]) for client, body in losses.items()}
    assert [client for client, text in wrong.items() if text] == [3]
    assert wrong[3] == "array 0 of its reply holds 3e+04; it must lie in [0, 12500]"


def test_clients_that_all_have_large_losses_stay():
    """A run that diverges for everybody has no liar."""
    losses = {client: [torch.tensor([1e12 * (client + 1)])] for client in range(4)}
    bounds = with_upper_ends(losses, {client: {0: Bound(least=0)} for client in losses})
    assert not any(outside(body, bounds[client]) for client, body in losses.items())


def test_an_own_loss_may_be_negative(fed):
    @dataclasses.dataclass(frozen=True)
    class Below(Classification):
        def loss(self, outputs, targets, reduction="mean"):
            return super().loss(outputs, targets, reduction) - 100

    assert Below().least_loss is None
    assert all(task().least_loss == 0 for task in TASKS.values())
    run = fedkin.run(method("pflic", clusters=2), fed, rounds=2, lr=0.05, engine="serial", task=Below())
    assert not list(run.history.select("dropped"))


def test_noise_is_moved_into_the_bounds(fed):
    """Differential privacy adds noise to a loss as well: an honest client must not be dropped for it."""
    assert clamped([torch.tensor([-2.0, 0.5, 7.0])], {0: Bound(least=0, most=1)})[0].tolist() == [0, 0.5, 1]
    run = fedkin.run("kin", fed, rounds=2, lr=0.05, engine="serial", privacy="client:clip=1,noise=5")
    assert not list(run.history.select("dropped"))


def test_a_simulated_attacker_stays_within_the_bounds(fed):
    run = fedkin.run(method("pflic", clusters=2), fed, rounds=3, lr=0.05, engine="serial", attack="signflip:0.2")
    assert not list(run.history.select("dropped"))


# arrays without a bound that continue nothing the client was sent: means of features, which may be any number
FEATURES = {("feddbe", 0), ("fedproto", 0), ("fedpac", 2), ("fedpac", 4)}


@pytest.mark.parametrize("name", METHODS)
def test_every_number_that_is_no_parameter_has_a_bound(fed, name, monkeypatch):
    found: set[tuple[int, bool]] = set()
    ordinary = ClientRunner._reply

    def seen(self, function, client, message, fault=""):
        sent = Message(tuple(message.shared), tuple(message.own))
        reply, released = ordinary(self, function, client, message, fault)
        starts = references(sent, reply.body, self.spec.method.from_zero)
        for index, (array, start) in enumerate(zip(reply.body, starts)):
            if judged(array) and start is None and index not in self.spec.method.from_zero:
                found.add((index, array.numel() <= 100))
        return reply, released

    monkeypatch.setattr(ClientRunner, "_reply", seen)
    run = fedkin.run(name, fed, rounds=2, lr=0.05, engine="serial")
    bounds = run.method.reply_bounds(server_of(fed), 0)
    small = {index for index, few in found if few}
    assert small <= {*bounds, *(index for owner, index in FEATURES if owner == name)}


def server_of(fed: fedkin.Federation) -> fedkin.Server:
    training = fedkin.Training()
    return fedkin.Server(torch.arange(6), fed.sizes, fed.classes, 0, 1.0, training, None, lambda k: torch.zeros(1))
