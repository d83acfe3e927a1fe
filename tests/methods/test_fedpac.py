"""FedPAC in plain loops, its quadratic program against another solver, and its reduction to FedRep."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from plain_baselines import LR, a_client, federation, isolated, losses, network, run, sizes, survives
from plain_parts import BODY, HEAD, descend, feature, keeps_frozen, loaded, mean_of
from scipy.optimize import minimize
from torch.nn import functional as F

from fedkin.client.evaluate import evaluate
from fedkin.client.training import batches
from fedkin.maths.collaboration import head_weights
from fedkin.methods.fedpac import FedPAC
from fedkin.methods.fedrep import FedRep
from fedkin.protocol import Message


def statistics(module, data):
    """P(k), class means, and V, from single examples."""
    with torch.no_grad():
        z = feature(module, data.x).double()
    n, h, second = len(z), torch.zeros(10, 16, dtype=torch.double), 0.0
    for k in range(10):
        inside = z[data.y == k]
        if len(inside):
            share = len(inside) / n
            h[k] = share * inside.mean(0)
            second += share * float(sum((row**2).sum() for row in inside) / len(inside))
    return h, (second - float((h**2).sum())) / n


def solved(i, hs, variances):
    """(5) by a general solver, from its definition."""
    h = torch.stack(hs).numpy()

    def objective(alpha):
        bias = h[i] - np.tensordot(alpha, h, 1)
        return 1e3 * (np.sum(alpha**2 * np.array(variances)) + np.sum(bias**2))

    count = len(hs)
    result = minimize(
        objective,
        np.full(count, 1 / count),
        bounds=[(0, 1)] * count,
        method="SLSQP",
        constraints={"type": "eq", "fun": lambda a: a.sum() - 1},
        options={"ftol": 1e-12, "maxiter": 500},
    )
    return np.where(result.x < 1e-3, 0, result.x) / result.x[result.x >= 1e-3].sum()


def train(net, client, row, centroids, lam, lr):
    module = loaded(net, row)
    for x, y in batches(client, epoch=0):
        descend(F.cross_entropy(module(x), y), list(module.fc2.parameters()), lr)
    for epoch in (1, 2):
        for x, y in batches(client, epoch=epoch):
            z = feature(module, x)
            value = F.cross_entropy(module.fc2(z), y)
            for example, label in zip(z, y):  # (1)
                if int(label) in centroids:
                    value = value + lam * ((example - centroids[int(label)]) ** 2).mean() / len(y)
            descend(value, list(module.fc1.parameters()))
    return net.vector()


@pytest.mark.parametrize(("lam", "lr"), [(1.0, 0.0), (0.3, 0.2)])
def test_it_is_the_papers_algorithm(lam, lr):
    got = run(FedPAC(lam=lam, head_lr=lr, use="trained"))
    net, n = network(), sizes()
    body, heads, centroids = net.initial[BODY], dict.fromkeys(range(6), net.initial[HEAD]), {}
    for round in (1, 2, 3):
        rows, hs, variances, means = [], [], [], []
        for i in range(6):
            client = a_client(i, round=round, net=net)
            start = torch.cat([body, heads[i]])
            h, variance = statistics(loaded(net, start), client.data)  # (3), (4)
            hs.append(h)
            variances.append(variance)
            rows.append(train(net, client, start, centroids, lam, lr or LR))
            with torch.no_grad():
                means.append((feature(net.module, client.data.x), client.data.y))
        body = mean_of([row[BODY] for row in rows], n)
        for k in range(10):  # (2): the mean over all examples of the class
            inside = torch.cat([z[y == k] for z, y in means])
            if len(inside):
                centroids[k] = inside.mean(0)
        alphas = [solved(i, hs, variances) for i in range(6)]
        heads = {i: mean_of([row[HEAD] for row in rows], alphas[i]) for i in range(6)}  # (6)
    assert torch.allclose(got.state["body"], body, atol=2e-3)
    np.testing.assert_allclose(got.state["alpha"], np.stack(alphas), atol=5e-3)
    assert np.abs(np.stack(alphas) - np.eye(6)).max() > 0.05, "heads are combined"
    for i in range(6):
        row = train(net, a_client(i, round=4, net=net), torch.cat([body, heads[i]]), centroids, lam, lr or LR)
        assert losses(got)[i] == pytest.approx(evaluate(net, row, federation().test(i))[1], rel=2e-2)
        sent = evaluate(net, torch.cat([body, heads[i]]), federation().test(i))[1]
        assert got.history.values("received_loss", round=3)[i] == pytest.approx(sent, rel=2e-2)


def test_by_default_a_client_uses_what_it_receives():
    got = run(FedPAC())
    assert losses(got) == got.history.values("received_loss", round=3)


def test_without_alignment_and_collaboration_it_is_fedrep():
    a = run(FedPAC(lam=0.0, collaborate=False))
    b = run(FedRep(head_epochs=1, body_epochs=2, weighting="size"))
    assert torch.allclose(a.state["body"], b.state["body"], atol=1e-6)
    assert torch.equal(a.state["alpha"], torch.eye(6))


@pytest.mark.parametrize("seed", range(5))
def test_the_quadratic_program(seed):
    rng = np.random.default_rng(seed)
    h = rng.normal(size=(7, 12)) * 0.3
    variance = rng.uniform(0.01, 0.5, 7)
    got = head_weights(h, variance)
    np.testing.assert_allclose(got.sum(1), 1)
    assert got.min() >= 0
    want = [solved(i, [torch.from_numpy(row)[None] for row in h], variance) for i in range(7)]
    np.testing.assert_allclose(got, want, atol=2e-3)


def test_weights_of_equal_and_of_far_clients():
    same = head_weights(np.ones((4, 3)), np.array([1.0, 1.0, 1.0, 3.0]))
    np.testing.assert_allclose(same[0], np.array([3, 3, 3, 1]) / 10, atol=1e-6)  # inverse variances
    apart = head_weights(1e3 * np.eye(3), np.full(3, 1e-3))
    np.testing.assert_allclose(apart, np.eye(3), atol=1e-6)  # too unlike to help


def test_who_did_not_answer_keeps_the_head_and_a_newcomer_gets_the_mean():
    got = run(FedPAC(), participation=0.5, rounds=1, evaluate_every=0)
    state, known = got.state, got.state["known"]
    assert int(known.sum()) == 3
    sent = FedPAC().send(state, torch.arange(6)).own[0]
    assert torch.equal(sent[known], state["heads"][known])
    assert all(torch.equal(row, state["head"]) for row in sent[~known])


def test_frozen_parameters_stay_frozen():
    def send(net):
        layout, has = net.layout, torch.ones(10, dtype=torch.bool)
        return Message(shared=(net.initial[layout.body], torch.zeros(10, 8), has), own=(net.initial[layout.head],))

    keeps_frozen(FedPAC(), send)


def test_faults_are_named():
    with pytest.raises(ValueError, match="head_epochs=0 must be at least 1"):
        FedPAC(head_epochs=0)


def test_it_survives(tmp_path):
    survives(FedPAC(), tmp_path)


def test_clients_are_their_own_in_round_1():
    isolated(FedPAC())
