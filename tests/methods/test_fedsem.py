"""FedSEM against its paper, in plain loops."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import fedkin
from fedkin.client.training import sgd
from fedkin.engine.runner import client_seed
from fedkin.maths.centers import means, squared_to
from fedkin.methods.fedsem import FedSEM
from fedkin.models.build import maker
from fedkin.models.network import Network
from fedkin.protocol import Client, Message, Replies, Server, Training
from fedkin.results.store import equal

SETTINGS = {"rounds": 3, "lr": 0.1, "epochs": 1, "batch_size": 8, "seed": 5, "engine": "serial"}


def run(method, fed, **changes):
    return fedkin.run(method, fed, model="mlp", **{**SETTINGS, **changes})


def paper(fed, answered, first, *, clusters, size, looked_at, mu, last):
    """Algorithm 1 in plain loops from the assignment `first`; with `last`, old models go on counting."""
    net = Network(maker("mlp", fed.shape, fed.classes, 5, {})(0), fed.example)
    where = slice(None) if looked_at is None else net.layout.positions(looked_at)
    n = [len(split.train) if size else 1 for split in fed.splits]
    centers = [net.initial.clone() for _ in range(clusters)]
    label, models = dict(enumerate(first)), {}
    for t, back in enumerate(answered, start=1):
        models = models if last else {}
        for i in back:
            client = Client({}, fed.data(i), client_seed(5, t, i), net, Training(0.1, 1, 8))
            start = centers[label[i]]
            models[i] = sgd(client, start, regularizer_gradient=lambda w, c=start: mu * (w - c))
        if t > 1:
            for i, w in models.items():  # E-step
                apart = [float(((w - c)[where].double() ** 2).sum()) for c in centers]
                label[i] = int(np.argmin(apart))
        for k in range(clusters):  # M-step
            mine = [i for i in models if label[i] == k]
            if mine:
                centers[k] = sum(n[i] * models[i] for i in mine) / sum(n[i] for i in mine)
    return torch.stack(centers), label


@pytest.mark.parametrize("average", ["round", "last"])
@pytest.mark.parametrize(
    "fields", [{}, {"weighting": "size"}, {"layers": ("3",), "mu": 0.5}], ids=["paper", "size", "layer"]
)
def test_golden(fed, fields, average):
    net = Network(maker("mlp", fed.shape, fed.classes, 5, {})(0), fed.example)
    if "layers" in fields:
        fields = {**fields, "layers": (net.layout.layers[-1].name,)}
    method = FedSEM(clusters=2, first="random", average=average, **fields)
    got = run(method, fed, participation=0.7)
    answered = [[r.client for r in got.history.select("bytes_up", round=t)] for t in (1, 2, 3)]
    there = Server(torch.arange(6), fed.sizes, fed.classes, 5, 0.7, Training(), net.layout, lambda k: net.initial)
    first = method.init(there)["labels"].tolist()
    assert sorted(np.bincount(first).tolist()) == [3, 3]  # balanced
    centers, label = paper(
        fed, answered, first, clusters=2, size=method.weighting == "size",
        looked_at=method.layers or None, mu=method.mu, last=average == "last",
    )  # fmt: skip
    np.testing.assert_allclose(got.state["centers"], centers, atol=1e-5)
    assert got.state["labels"].tolist() == [label[i] for i in range(6)]


# ---- the two steps
def test_a_sweep_never_increases_the_multi_center_loss():
    torch.manual_seed(0)
    rows, centers = torch.randn(20, 5), torch.randn(4, 5)
    before = float(squared_to(rows, centers).min(1).values.sum())
    for _ in range(5):
        centers = means(rows, squared_to(rows, centers).argmin(1), torch.ones(20), centers)
        after = float(squared_to(rows, centers).min(1).values.sum())
        assert after <= before + 1e-9
        before = after


def server(size, initial):
    return Server(
        ids=torch.arange(size), n=torch.ones(size, dtype=torch.long), classes=2, seed=0, participation=1.0,
        training=Training(), layout=SimpleNamespace(parameters=len(initial)), initial=lambda k: torch.tensor(initial),
    )  # fmt: skip


def merged(method, state, answers, order=None):
    ids = torch.tensor(order or sorted(answers))
    rows = torch.tensor([answers[i] for i in ids.tolist()])
    return method.merge(state, Message(), Replies(ids, torch.ones(len(ids)), (rows,), torch.arange(len(ids)), 0))


def test_blobs_are_found_whatever_the_order_and_an_empty_center_stays():
    blobs = {i: [10.0 * (i % 2), 0.1 * i] for i in range(7)}
    method = FedSEM(clusters=2, first="random")
    start = state = other = method.init(server(7, [0.0, 0.0]))
    for _ in range(6):
        state = merged(method, state, blobs)
        other = merged(method, other, blobs, order=[6, 2, 0, 1, 5, 4, 3])
    assert not torch.equal(state["labels"], start["labels"])  # the random assignment was another one
    assert len(set(state["labels"][::2].tolist())) == len(set(state["labels"][1::2].tolist())) == 1
    assert state["labels"][0] != state["labels"][1]
    assert torch.equal(other["labels"], state["labels"])
    empty = means(torch.ones(2, 2), torch.zeros(2, dtype=torch.long), torch.ones(2), torch.tensor([[0.0, 0], [5, 6]]))
    np.testing.assert_allclose(empty, [[1, 1], [5, 6]])


# ---- reductions
def test_one_center_is_fedavg(fed):
    ours = run(FedSEM(clusters=1, weighting="size"), fed)
    np.testing.assert_allclose(ours.state["centers"][0], run("fedavg", fed).state["model"], atol=1e-6)


def test_as_many_centers_as_clients_is_local_training(fed):
    ours, alone = run(FedSEM(clusters=6, first="random"), fed), run("local", fed)
    # the center that would be sent after a round is the client's own model
    want = alone.history.values("personal_loss", round=3)
    assert len(want) == 6
    assert ours.history.values("personal_loss", round=3) == pytest.approx(want, rel=1e-5)


def test_the_first_assignment_is_by_kmeans_and_finds_groups_at_once():
    fed = fedkin.federate("digits", partition="topology", nodes=3, clients=9, samples_per_client=40, seed=3)
    found = run(FedSEM(clusters=3), fed, rounds=1, epochs=3)
    assert [record.value for record in found.history.select("rand_index")] == [1]


def test_kmeans_gives_the_same_clusters_whatever_the_order_of_replies():
    blobs = {i: [10.0 * (i % 3), 0.3 * i] for i in range(9)}
    method = FedSEM(clusters=3)
    start = method.init(server(9, [0.0, 0.0]))
    one, two = merged(method, start, blobs), merged(method, start, blobs, order=[8, 3, 1, 0, 2, 7, 5, 6, 4])
    assert torch.equal(one["labels"], two["labels"])
    np.testing.assert_allclose(one["centers"], two["centers"], atol=1e-6)


def test_absent_clients_keep_their_center_and_unheard_ones_get_the_mean():
    method = FedSEM(clusters=2)
    state = method.init(server(5, [1.0, 2.0]))
    np.testing.assert_allclose(method.send(state, torch.arange(5)).own[0], [[1.0, 2.0]] * 5)
    state = merged(method, state, {0: [0.0, 0.0], 1: [10.0, 0.0], 2: [10.0, 2.0]})
    sent = method.send(state, torch.arange(5)).own[0]
    np.testing.assert_allclose(sent, [[0, 0], [10, 1], [10, 1], [20 / 3, 2 / 3], [20 / 3, 2 / 3]], rtol=1e-6)
    np.testing.assert_allclose(method.mixing(state)[3], [1 / 3, 1 / 3, 1 / 3, 0, 0], rtol=1e-6)
    # round 2: client 1 alone; the old model of client 2, and client 0's center, are not averaged in again
    state = merged(method, state, {1: [12.0, 5.0]})
    np.testing.assert_allclose(method.send(state, torch.arange(3)).own[0], [[0, 0], [12, 5], [12, 5]])
    old = merged(
        FedSEM(clusters=2, average="last"),
        FedSEM(clusters=2, average="last").init(server(3, [0.0])),
        {0: [0.0], 1: [10.0], 2: [12.0]},
    )
    stale = FedSEM(clusters=2, average="last")
    old = merged(stale, stale.init(server(3, [0.0])), {0: [0.0], 1: [10.0], 2: [12.0]})
    old = merged(stale, old, {1: [14.0]})
    np.testing.assert_allclose(old["centers"], [[0], [13]])


# ---- in a federation
def test_losses_arrivals_and_resume(fed, tmp_path):
    method = FedSEM(clusters=2)
    changes = {"lost": 0.4, "participation": 0.7, "arrive": {5: 2}, "leave": {0: 3}, "rounds": 4}
    straight = run(method, fed, **changes)
    run(method, fed, **{**changes, "rounds": 2}, out=tmp_path, checkpoint_every=1)
    assert equal(straight.state, run(method, fed, **changes, out=tmp_path, checkpoint_every=1).state)
    np.testing.assert_allclose(method.mixing(straight.state).sum(1), 1, atol=1e-5)
    size = 4 * straight.state["centers"].shape[1]
    assert {r.value for m in ("bytes_up", "bytes_down") for r in straight.history.select(m)} == {size}


def test_mixing_is_what_is_sent(fed):
    method = FedSEM(clusters=2, weighting="size", average="last")
    state = run(method, fed).state
    sent = method.send(state, torch.arange(6)).own[0]
    np.testing.assert_allclose(method.mixing(state) @ state["models"], sent, atol=1e-5)


@pytest.mark.parametrize("fields", [{"clusters": 0}, {"first": "first"}, {"weighting": "n"}, {"mu": -1.0}])
def test_wrong_fields_are_named(fields):
    with pytest.raises(ValueError, match=f"{next(iter(fields))}="):
        FedSEM(**fields)
