"""ClusterFL (ADMM) against its objective, in plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedkin
from fedkin.client.evaluate import gradient
from fedkin.client.training import sgd
from fedkin.engine.runner import client_seed
from fedkin.methods.clusterfl import ClusterFL, auxiliary, indicator, linear_term
from fedkin.models.build import maker
from fedkin.models.network import Network
from fedkin.protocol import Client, Message, Training
from fedkin.results.store import equal

SETTINGS = {"rounds": 3, "lr": 0.1, "epochs": 1, "batch_size": 8, "seed": 5, "engine": "serial"}


@pytest.fixture(scope="module")
def fed():
    return fedkin.federate("digits", partition="dirichlet", clients=5, alpha=0.5, samples_per_client=50, seed=3)


def run(method, fed, **changes):
    return fedkin.run(method, fed, model="mlp", **{**SETTINGS, **changes})


def paper(fed, answered, *, alpha, beta, rho, every, official):
    """ADMM in plain loops; the client's extra gradient by autograd on the whole Lagrangian."""
    net = Network(maker("mlp", fed.shape, fed.classes, 5, {})(0), fed.example)
    count, size = len(fed), net.layout.parameters
    w = net.initial.repeat(count, 1)
    f, omega, u = torch.zeros(count, count), torch.zeros(count, size), torch.zeros(count, size)
    known = []
    for t, back in enumerate(answered, start=1):
        new = w.clone()
        for i in back:

            def regularizer_gradient(x, i=i, w=w, f=f, u=u, omega=omega):
                x = x.clone().requires_grad_()
                if official:
                    value = (alpha + rho / 2 * (f[i] ** 2).sum()) * (x**2).sum() + f[i] @ (u + rho * omega) @ x
                else:
                    all_of_them = torch.cat([w[:i], x[None], w[i + 1 :]])
                    gap = omega - f.T @ all_of_them
                    value = alpha * (x**2).sum() + (u * gap).sum() + rho / 2 * (gap**2).sum()
                return torch.autograd.grad(value, x)[0]

            client = Client({}, fed.data(i), client_seed(5, t, i), net, Training(0.1, 1, 8))
            new[i] = sgd(client, w[i], regularizer_gradient=regularizer_gradient)
        w = new
        known = sorted({*known, *back})
        if t % every == 0:
            d = np.array([[float(((w[i] - w[j]).double() ** 2).sum()) for j in known] for i in known])
            d -= d.mean(0)
            p = np.maximum(d @ d.T, 0)
            f = torch.zeros(count, count)
            for a, i in enumerate(known):
                for b, j in enumerate(known):
                    f[i, j] = p[a, b] / p[:, b].sum()
        mean = f.T @ w
        omega = (rho * mean - u) / (rho - 2 * beta)
        u = u + rho * (omega - mean)
    return w, f, omega, u


@pytest.mark.parametrize("official", [False, True])
@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_golden(fed, official, participation):
    fields = {"alpha": 0.01, "beta": 0.05, "rho": 0.2}
    method = ClusterFL(**fields, update_every=1, official_step=official)
    got = run(method, fed, participation=participation)
    answered = [[r.client for r in got.history.select("bytes_up", round=t)] for t in (1, 2, 3)]
    w, f, omega, u = paper(fed, answered, **fields, every=1, official=official)
    np.testing.assert_allclose(got.state["models"], w, atol=2e-5)
    np.testing.assert_allclose(got.state["indicator"], f, atol=1e-4)
    np.testing.assert_allclose(got.state["omega"], omega, atol=2e-4)
    np.testing.assert_allclose(got.state["dual"], u, atol=2e-4)
    assert not torch.allclose(
        w, run(ClusterFL(alpha=0.01, update_every=100), fed, participation=participation).state["models"], atol=1e-3
    )


# ---- the server's steps
def test_omega_is_stationary_and_the_linear_term_is_the_lagrangians():
    torch.manual_seed(0)
    f, w, u = torch.rand(4, 4).double(), torch.randn(4, 3).double(), torch.randn(4, 3).double()
    omega, dual = auxiliary(f, w, u, 0.1, 0.5)
    np.testing.assert_allclose(-2 * 0.1 * omega + u + 0.5 * (omega - f.T @ w), 0, atol=1e-12)
    np.testing.assert_allclose(dual, 2 * 0.1 * omega, atol=1e-12)
    x = w.clone().requires_grad_()
    gap = omega - f.T @ x
    slope = torch.autograd.grad((dual * gap).sum() + 0.25 * (gap**2).sum(), x)[0]
    ours = 0.5 * f.square().sum(1, keepdim=True) * w - linear_term(f, w, omega, dual, 0.5)
    np.testing.assert_allclose(ours, slope, atol=1e-12)


def test_columns_of_the_indicator_sum_to_1_and_groups_keep_together():
    x = np.array([0.0, 0.1, 0.2, 5.0, 5.1])
    f = indicator((x[:, None] - x) ** 2)
    np.testing.assert_allclose(f.sum(0), 1)
    assert (f >= 0).all()
    assert f[:3, :3].min() > 0
    assert f[:3, 3:].max() == 0
    assert (indicator(np.zeros((3, 3))) == 0).all()


# ---- reductions
def test_without_an_indicator_it_is_local_training_with_l2(fed):
    ours = run(ClusterFL(alpha=0.02, update_every=100), fed)
    theirs = run("local", fed, weight_decay=0.04)
    want = theirs.history.values("personal_loss", round=3)
    assert len(want) == 5
    assert ours.history.values("personal_loss", round=3) == pytest.approx(want, rel=1e-4)
    bare = run(ClusterFL(alpha=0.0, update_every=100), fed)
    assert bare.history.values("personal_loss", round=3) == pytest.approx(
        run("local", fed).history.values("personal_loss", round=3), rel=1e-5
    )


def test_the_pull_has_a_gradient(make_client):
    client = make_client(batch_size=10_000, lr=0.1)
    c = torch.randn(client.net.layout.parameters)
    got = ClusterFL(alpha=0.5).local(client, Message(own=(c, torch.tensor(0.25)))).body[0]
    w = client.net.initial
    slope, _ = gradient(client.net, w, client.data.train)
    np.testing.assert_allclose(got, w - 0.1 * (slope + 1.25 * w - c), atol=1e-6)


def test_with_defaults_members_are_drawn_together_and_it_is_not_local_training():
    """Four nodes with different labels: models of one node come closer than alone, those of different nodes do not."""
    fed = fedkin.federate("digits", partition="topology", nodes=4, clients=12, samples_per_client=60, seed=0)
    default, inert = (
        run(ClusterFL(**fields), fed, rounds=20, epochs=2) for fields in ({}, {"alpha": 0.0, "beta": 0.0})
    )
    local = run("local", fed, rounds=20, epochs=2)

    def apart(result):
        distance = torch.cdist(result.state["models"], result.state["models"])
        same = torch.as_tensor(fed.groups)[:, None] == torch.as_tensor(fed.groups)
        return float(distance[same].mean()), float(distance[~same].mean())

    (inside, between), (inside_alone, between_alone) = apart(default), apart(inert)
    assert inside < 0.75 * inside_alone
    assert between > 0.9 * between_alone
    losses = [r.history.values("personal_loss", round=20) for r in (default, local)]
    assert np.mean([abs(losses[0][i] / losses[1][i] - 1) for i in range(12)]) > 0.05
    assert default.summary["personal"]["mean"] > local.summary["personal"]["mean"] - 0.02
    members = np.array([record.value for record in default.history.select("indicator")][-1])
    assert (
        members[fed.groups[:, None] == fed.groups].sum() > 0.7 * members.sum()
    )  # 0.25 by chance; neighbors share a label


def test_it_says_before_it_starts_that_clusters_cannot_act(fed):
    assert ["in round 4" in r.value for r in run(ClusterFL(), fed, rounds=3).history.select("warning")] == [True]
    assert not list(run(ClusterFL(), fed, rounds=4).history.select("warning"))


def test_losses_arrivals_resume_and_bytes(fed, tmp_path):
    method = ClusterFL(update_every=1)
    changes = {"lost": 0.4, "participation": 0.7, "arrive": {4: 2}, "leave": {0: 3}, "rounds": 4}
    straight = run(method, fed, **changes)
    run(method, fed, **{**changes, "rounds": 2}, out=tmp_path, checkpoint_every=1)
    assert equal(straight.state, run(method, fed, **changes, out=tmp_path, checkpoint_every=1).state)
    size = 4 * straight.state["models"].shape[1]
    assert {record.value for record in straight.history.select("bytes_up")} == {size}
    assert {record.value for record in straight.history.select("bytes_down")} == {size + 4}


@pytest.mark.parametrize("fields", [{"rho": 1e-3}, {"alpha": -1.0}, {"update_every": 0}])
def test_wrong_fields_are_named(fields):
    with pytest.raises(ValueError, match=f"{next(iter(fields))}="):
        ClusterFL(**fields)
