"""FedAMP and HeurFedAMP against their paper, in plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedkin
from fedkin.client.evaluate import gradient
from fedkin.client.training import sgd
from fedkin.engine.runner import client_seed
from fedkin.maths.peers import attentive, heuristic
from fedkin.methods.fedamp import FedAMP
from fedkin.models.build import maker
from fedkin.models.network import Network
from fedkin.protocol import Client, Message, Training
from fedkin.results.store import equal

SETTINGS = {"rounds": 3, "lr": 0.1, "epochs": 1, "batch_size": 8, "seed": 5, "engine": "serial"}
EVERYBODY = np.ones(6, dtype=bool)


@pytest.fixture(scope="module")
def fed():
    return fedkin.federate("digits", partition="dirichlet", clients=6, alpha=0.5, samples_per_client=50, seed=3)


def run(method, fed, **changes):
    return fedkin.run(method, fed, model="mlp", **{**SETTINGS, **changes})


def paper(fed, answered, *, weigh, strength, start):
    """Algorithm 1 in plain loops; `weigh(i, models, known)` is row i of ξ over those known."""
    net = Network(maker("mlp", fed.shape, fed.classes, 5, {})(0), fed.example)
    models = {i: net.initial.clone() for i in range(len(fed))}
    xi = {i: {i: 1.0} for i in models}
    known = set()
    for t, back in enumerate(answered, start=1):
        new = {}
        for i in back:
            u = sum(weight * models[j] for j, weight in xi[i].items())
            client = Client({}, fed.data(i), client_seed(5, t, i), net, Training(0.1, 1, 8))
            begin = u if start == "cloud" else models[i]
            new[i] = sgd(client, begin, regularizer_gradient=lambda w, u=u: strength * (w - u))  # no buffers here
        models |= new
        known |= set(back)
        xi = {i: weigh(i, models, known) for i in models}
    return models, xi


def by_distance(alpha, sigma):
    def weigh(i, models, known):
        row = {}
        for j in known - {i}:
            d = float(((models[i].double() - models[j].double()) ** 2).sum())
            row[j] = alpha * np.exp(-d / sigma) / sigma
        row[i] = 1 - sum(row.values())
        return row

    return weigh


def by_cosine(sigma, own):
    def weigh(i, models, known):
        others = known - {i}
        a = models[i].double()
        e = {
            j: float(torch.exp(sigma * (a @ models[j].double()) / a.norm() / models[j].double().norm())) for j in others
        }
        return {i: own} | {j: (1 - own) * v / sum(e.values()) for j, v in e.items()}

    return weigh


@pytest.mark.parametrize(
    ("method", "weigh", "strength"),
    [
        (FedAMP(lam=0.5, alpha=2.0, sigma=12.0), by_distance(2.0, 12.0), 0.25),
        (FedAMP(lam=0.5, alpha=2.0, sigma=12.0, start="local"), by_distance(2.0, 12.0), 0.25),
        (FedAMP(heuristic=True, sigma=10.0, self_weight=0.3), by_cosine(10.0, 0.3), 1.0),
    ],
)
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_golden(fed, method, weigh, strength, participation):
    got = run(method, fed, participation=participation)
    answered = [[r.client for r in got.history.select("bytes_up", round=t)] for t in (1, 2, 3)]
    models, xi = paper(fed, answered, weigh=weigh, strength=strength, start=method.start)
    np.testing.assert_allclose(got.state["models"], torch.stack(list(models.values())), atol=1e-5)
    expected = [[xi[i].get(j, 0.0) for j in range(6)] for i in range(6)]
    np.testing.assert_allclose(method.mixing(got.state), expected, atol=1e-5)
    off = np.array(expected)[np.eye(6) == 0]
    assert off.max() > 0.01  # there was something to collaborate on


# ---- the weights
def test_weights_of_fedamp():
    rng = np.random.default_rng(0)
    w = rng.normal(size=(6, 9))
    apart = ((w[:, None] - w) ** 2).sum(-1)
    xi = attentive(apart, EVERYBODY, 0.5, 30.0)
    np.testing.assert_allclose(xi.sum(1), 1)
    np.testing.assert_allclose(xi, xi.T)
    np.testing.assert_allclose((xi @ w).mean(0), w.mean(0))
    same = attentive(np.zeros((6, 6)), EVERYBODY, 1.0, 25.0) @ np.ones((6, 2))
    np.testing.assert_allclose(same, 1)
    clipped = attentive(np.zeros((6, 6)), EVERYBODY, 10.0, 3.0)  # α(N−1)/σ > 1
    np.testing.assert_allclose(clipped.sum(1), 1)
    assert clipped.min() >= 0
    few = attentive(apart, np.array([1, 1, 0, 0, 0, 0], bool), 0.5, 30.0)
    assert (few[:, 2:] == np.diag(np.diag(few))[:, 2:]).all()  # from those unknown nobody takes anything


def test_weights_of_the_heuristic():
    rng = np.random.default_rng(0)
    w = rng.normal(size=(6, 9))

    def cosines(w):
        unit = w / np.linalg.norm(w, axis=1, keepdims=True)
        return unit @ unit.T

    xi = heuristic(cosines(w), EVERYBODY, 25.0, 0.3)
    np.testing.assert_allclose(xi.sum(1), 1)
    np.testing.assert_allclose(np.diag(xi), 0.3)
    np.testing.assert_allclose(heuristic(cosines(w), EVERYBODY, 0.0, 0.0), 1 / 6)
    np.testing.assert_allclose(heuristic(cosines(w * rng.uniform(0.1, 9, (6, 1))), EVERYBODY, 25.0, 0.3), xi)
    alone = heuristic(cosines(w), np.array([1, 0, 0, 0, 0, 0], bool), 25.0, 0.3)
    np.testing.assert_allclose(alone[0], [1, 0, 0, 0, 0, 0])
    np.testing.assert_allclose(alone[1], [0.7, 0.3, 0, 0, 0, 0])


# ---- reductions
def test_without_pull_from_the_own_model_it_is_local_training(fed):
    each = {"evaluate_every": 1}
    ours, alone = run(FedAMP(lam=0.0, start="local"), fed, **each), run("local", fed, **each)
    for round in (1, 2, 3):
        assert len(alone.history.values("personal_loss", round=round)) == 6
        assert ours.history.values("personal_loss", round=round) == alone.history.values("personal_loss", round=round)


def test_heuristic_without_cosines_or_pull_is_fedavg_with_equal_weights():
    fed = fedkin.federate("digits", partition="iid", clients=5, samples_per_client=40, seed=3)
    assert len(set(fed.sizes.tolist())) == 1
    ours = run(FedAMP(heuristic=True, sigma=0.0, lam=0.0), fed)
    sent = FedAMP().send(ours.state, torch.arange(5)).own[0]
    model = run("fedavg", fed).state["model"]
    np.testing.assert_allclose(sent, model.expand(5, -1), atol=1e-6)


# ---- the client
def test_the_pull_has_a_gradient(make_client):
    """One full-batch step away from u_i contains (λ/α)(w − u_i)."""
    client = make_client(batch_size=10_000, lr=0.1)
    w, u = client.net.initial, client.net.initial + 0.01 * torch.randn(client.net.layout.size)
    client = client._replace(state={"model": w})
    got = FedAMP(lam=3.0, alpha=2.0, start="local").local(client, Message(own=(u,))).body[0]
    slope, _ = gradient(client.net, w, client.data.train)
    np.testing.assert_allclose(got, w - 0.1 * (slope + 1.5 * (w - u)), atol=1e-6)


def test_personal_is_the_trained_model_and_costs_one_each_way(fed):
    result = run(FedAMP(), fed, evaluate_every=0, rounds=2)
    assert result.history.values("personal", round=2) != result.history.values("received", round=2)
    size = 4 * result.state["models"].shape[1]
    for metric in ("bytes_down", "bytes_up"):
        assert {record.value for record in result.history.select(metric)} == {size}


@pytest.mark.parametrize("name", ["fedamp", "heurfedamp"])
def test_losses_arrivals_and_resume(fed, name, tmp_path):
    changes = {"lost": 0.4, "participation": 0.7, "arrive": {5: 2}, "leave": {0: 3}, "rounds": 4}
    straight = run(name, fed, **changes)
    run(name, fed, **{**changes, "rounds": 2}, out=tmp_path, checkpoint_every=1)
    assert equal(straight.state, run(name, fed, **changes, out=tmp_path, checkpoint_every=1).state)
    np.testing.assert_allclose(fedkin.method(name).mixing(straight.state).sum(1), 1, atol=1e-5)


@pytest.mark.parametrize(
    "fields", [{"alpha": 0.0}, {"lam": -1.0}, {"sigma": 0.0}, {"self_weight": 2.0}, {"start": "u"}]
)
def test_wrong_fields_are_named(fields):
    with pytest.raises(ValueError, match=f"{next(iter(fields))}="):
        FedAMP(**fields)
