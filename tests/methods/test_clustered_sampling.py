"""Clustered sampling against its paper: unbiased, less variance, and FedAvg's algorithm around it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedkin
from fedkin.client.training import sgd
from fedkin.engine.runner import client_seed
from fedkin.methods.clustered_sampling import ClusteredSampling
from fedkin.methods.clustered_sampling.urns import by_similarity, by_size, distances
from fedkin.models.build import maker
from fedkin.models.network import Network
from fedkin.protocol import Client, Server, Training
from fedkin.results.store import equal

SETTINGS = {"rounds": 3, "lr": 0.1, "epochs": 1, "batch_size": 8, "seed": 5, "engine": "serial"}
NAMES = ["clustered-sampling", "clustered-sampling-2"]


def run(method, fed, **changes):
    return fedkin.run(method, fed, model="mlp", **{**SETTINGS, **changes})


def algorithm_1(p, m):
    """Tokens in plain loops: m·p_i of client i, urns of capacity 1, in order of decreasing size."""
    urns = [[]]
    room = 1.0
    for i in sorted(range(len(p)), key=lambda i: -p[i]):
        tokens = m * p[i]
        while tokens > 1e-12:
            taken = min(tokens, room)
            urns[-1].append((i, taken))
            tokens -= taken
            room -= taken
            if room <= 1e-12:
                urns.append([])
                room = 1.0
    r = np.zeros((m, len(p)))
    for k, urn in enumerate(urns[:m]):
        for i, amount in urn:
            r[k, i] += amount
    return r


# ---- the urns
def test_both_algorithms_are_unbiased_and_vary_less():
    rng = np.random.default_rng(0)
    heavy = 0
    for _ in range(200):
        n, m = int(rng.integers(5, 30)), int(rng.integers(1, 6))
        p = rng.dirichlet(np.full(n, 0.5))
        heavy += p.max() > 1 / m
        updates = torch.from_numpy(rng.normal(size=(n, 3)).astype(np.float32))
        updates[torch.from_numpy(rng.random(n) < 0.2)] = 0
        np.testing.assert_allclose(by_size(p, m), algorithm_1(p, m), atol=1e-9)
        for how in ("arccos", "L1", "L2"):
            for r in (by_size(p, m), by_similarity(p, m, distances(updates, how))):
                assert r.min() >= 0
                np.testing.assert_allclose(r.sum(1), 1, atol=1e-9)  # a distribution
                np.testing.assert_allclose(r.sum(0), m * p, atol=1e-8)  # prop. 1
                assert ((r * (1 - r)).sum(0) / m**2 <= p * (1 - p) / m + 1e-9).all()  # against MD sampling
                assert (1 - np.prod(1 - r, 0) >= 1 - (1 - p) ** m - 1e-9).all()
        spans = (by_size(p, m) > 1e-9).sum(0)
        assert (spans <= np.ceil(m * p) + 1).all()
    assert heavy > 50


def test_by_hand():
    np.testing.assert_allclose(by_size(np.full(4, 0.25), 2), [[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]])
    np.testing.assert_allclose(by_size(np.array([0.1, 0.9]), 1), [[0.1, 0.9]])  # m = 1: MD sampling
    updates = torch.tensor([[1, 0], [0, 1], [2, 0.1], [0, 3]])
    alike = by_similarity(np.full(4, 0.25), 2, distances(updates, "arccos"))
    assert sorted(tuple(np.flatnonzero(urn)) for urn in alike) == [(0, 2), (1, 3)]
    half = by_similarity(np.array([0.5, *[0.1] * 5]), 5, distances(torch.zeros(6, 2), "arccos"))
    np.testing.assert_allclose(half.sum(0), [2.5, *[0.5] * 5])  # p_0 > 1/m; and no update at all
    full = by_similarity(np.full(4, 0.25), 4, distances(updates, "L2"))
    np.testing.assert_allclose(full, np.eye(4))
    assert distances(torch.ones(2, 2), "arccos").max() < 1e-6
    x = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    np.testing.assert_allclose(distances(x, "L1"), [[0, 3, 1], [3, 0, 2], [1, 2, 0]])
    np.testing.assert_allclose(distances(x, "L2"), [[0, 5**0.5, 1], [5**0.5, 0, 2], [1, 2, 0]])
    np.testing.assert_allclose(distances(x, "arccos"), np.pi / 2 * (1 - np.eye(3)))


@pytest.mark.parametrize("name", NAMES)
def test_draws_follow_the_weights(name):
    n = torch.tensor([50, 10, 10, 10, 20])
    method = fedkin.method(name)
    server = Server(
        ids=torch.tensor([0, 1, 2, 4]), n=n, classes=2, seed=0, participation=0.75, training=Training(),
        layout=None, initial=None,
    )  # fmt: skip
    counts = np.zeros(5)
    for round in range(600):
        drawn = method.select({"updates": torch.eye(5)}, server, round)
        assert len(drawn) == 3
        np.add.at(counts, drawn.numpy(), 1)
    assert counts[3] == 0  # it is not there
    np.testing.assert_allclose(counts / 1800, np.array([50, 10, 10, 0, 20]) / 90, atol=0.03)


# ---- the whole algorithm
@pytest.mark.parametrize("name", NAMES)
def test_golden(fed, name):
    """The engine trains a client that was drawn twice once; its model counts twice."""
    drawn = []

    class Watched(ClusteredSampling):
        def merge(self, state, sent, replies):
            drawn.append(replies.ids.tolist())
            return super().merge(state, sent, replies)

    plain = fedkin.method(name)
    got = run(Watched(urns=plain.urns), fed, participation=0.9, rounds=4)
    assert any(len(set(ids)) < len(ids) for ids in drawn)
    net = Network(maker("mlp", fed.shape, fed.classes, 5, {})(0), fed.example)
    theta, updates = net.initial.clone(), torch.zeros(6, net.layout.size)
    p = fed.sizes.double().numpy() / fed.sizes.sum().item()
    for t, ids in enumerate(drawn, start=1):
        r = by_size(p, 5) if plain.urns == "size" else by_similarity(p, 5, distances(updates, "arccos"))
        assert all(r[:, i].sum() > 0 for i in ids)
        trained = {}
        for i in ids:
            client = Client({}, fed.data(i), client_seed(5, t, i), net, Training(0.1, 1, 8))
            trained[i] = sgd(client, theta)
        for i in ids:
            updates[i] = trained[i] - theta
        theta = sum(trained[i] for i in ids) / 5
    np.testing.assert_allclose(got.state["model"], theta, atol=1e-5)
    if plain.urns == "similarity":
        np.testing.assert_allclose(got.state["updates"], updates, atol=1e-5)


def test_as_many_urns_as_equal_clients_is_full_participation():
    fed = fedkin.federate("digits", partition="iid", clients=4, samples_per_client=40, seed=3)
    theirs = run("fedavg", fed).state["model"]
    for name in NAMES:
        np.testing.assert_allclose(run(name, fed).state["model"], theirs, atol=1e-6)


def test_the_proximal_term_is_fedproxs():
    fed = fedkin.federate("digits", partition="iid", clients=4, samples_per_client=40, seed=3)
    theirs = run(fedkin.method("fedprox", mu=0.5), fed).state["model"]
    np.testing.assert_allclose(run(ClusteredSampling(mu=0.5), fed).state["model"], theirs, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_losses_arrivals_and_resume(fed, name, tmp_path):
    changes = {"lost": 0.4, "participation": 0.7, "arrive": {5: 2}, "leave": {0: 3}, "rounds": 4}
    straight = run(name, fed, **changes)
    run(name, fed, **{**changes, "rounds": 2}, out=tmp_path, checkpoint_every=1)
    assert equal(straight.state, run(name, fed, **changes, out=tmp_path, checkpoint_every=1).state)
    np.testing.assert_allclose(fedkin.method(name).mixing(straight.state).sum(1), 1, atol=1e-5)


@pytest.mark.parametrize("fields", [{"mu": -1.0}, {"urns": "big"}, {"distance": "cos"}])
def test_wrong_fields_are_named(fields):
    with pytest.raises(ValueError, match=f"{next(iter(fields))}="):
        ClusteredSampling(**fields)
