"""pFedFDA in plain loops, its classifier against scikit-learn, and how β is chosen."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from plain_baselines import SEED, a_client, isolated, losses, network, run, sizes, survives
from plain_parts import BODY, descend, feature, keeps_frozen, loaded, loss_on_test, mean_of
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import nn
from torch.nn import functional as F

from fedkin.client.training import batches
from fedkin.maths.gaussian import Gaussian
from fedkin.methods.pfedfda import PFedFDA
from fedkin.protocol import Message


def prior_of(y):
    share = np.bincount(y, minlength=10) / len(y) + 1e-4
    return share / share.sum()


def classifier(means, covariance, prior):
    """(1), class by class."""
    covariance = (1 - 1e-4) * covariance + 1e-4 * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    inverse = np.linalg.inv(covariance)
    weight = np.stack([inverse @ mean for mean in means])
    return weight, np.array([-0.5 * mean @ inverse @ mean + np.log(p) for mean, p in zip(means, prior)])


def estimate(z, y, global_means, ridge):
    """(3), example by example."""
    means = global_means.copy()
    for c in range(10):
        if (y == c).sum() >= 2:
            means[c] = z[y == c].mean(0)
    scatter = sum(np.outer(row - means[c], row - means[c]) for row, c in zip(z, y))
    return means, scatter / (len(y) - 1) + ridge * np.eye(z.shape[1])


def adapted(client, z, everyone, ridge, mode):
    """(5) by a bounded search over one β, and (4)."""
    y = client.data.y.numpy()
    own = estimate(z, y, everyone[0], ridge)
    if mode == "local":
        return own, 1.0, None
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(client.seed)).numpy()
    folds = [[], []]
    for c in range(10):
        inside = [k for k in order if y[k] == c]
        if len(inside) >= 2:
            for index, k in enumerate(inside):
                folds[index % 2].append(k)

    def mix(a, beta):
        return tuple(beta * mine + (1 - beta) * theirs for mine, theirs in zip(a, everyone))

    def held_out(beta):
        total = 0.0
        for out, inside in (folds, folds[::-1]):
            inside = sorted(inside)
            weight, bias = classifier(*mix(estimate(z[inside], y[inside], everyone[0], ridge), beta), prior_of(y))
            scores = log_softmax(z[out] @ weight.T + bias, axis=1)
            total -= scores[range(len(out)), y[out]].mean()
        return total

    beta = minimize_scalar(held_out, bounds=(0, 1), method="bounded", options={"xatol": 1e-6}).x
    return mix(own, beta), beta, held_out


def features_of(module, data):
    with torch.no_grad():
        return feature(module, data.x).double().numpy()


def row_of(body, gaussian, y):
    weight, bias = classifier(*gaussian, prior_of(y))
    return torch.cat([body, torch.from_numpy(np.concatenate([weight.flatten(), bias])).float()])


@pytest.mark.parametrize(("mode", "ridge"), [("one", 1.0), ("local", 0.1)])
def test_it_is_the_papers_algorithm(mode, ridge):
    got = run(PFedFDA(interpolation=mode, ridge=ridge), rounds=2)
    net, n = network(), sizes()
    begin = run(PFedFDA(interpolation=mode, ridge=ridge), rounds=1, lr=1e-30, evaluate_every=0)
    assert torch.allclose(begin.state["body"], net.initial[BODY]), "the start"
    means = np.random.default_rng([SEED, 0, 0x5E21, 0xFDA]).random((10, 16))
    body, everyone = net.initial[BODY], (means, np.eye(16))
    for round in (1, 2):
        bodies, gaussians = [], []
        for i in range(6):
            client = a_client(i, round=round, net=net)
            module = loaded(net, row_of(body, everyone, client.data.y.numpy()))
            for epoch in range(2):
                for x, y in batches(client, epoch=epoch):
                    descend(F.cross_entropy(module(x), y), list(module.fc1.parameters()))  # (2)
            bodies.append(net.vector()[BODY])
            gaussians.append(adapted(client, features_of(module, client.data), everyone, ridge, mode)[0])
        body = mean_of(bodies, n)
        everyone = tuple(mean_of([g[part] for g in gaussians], n) for part in (0, 1))  # (6)
    tolerance = 1e-4 if mode == "local" else 5e-3
    assert torch.allclose(got.state["body"], body, atol=tolerance)
    np.testing.assert_allclose(got.state["means"], everyone[0], atol=10 * tolerance)
    np.testing.assert_allclose(got.state["covariance"], everyone[1], atol=10 * tolerance)
    for i in range(6):
        client = a_client(i, round=3, net=net)
        y = client.data.y.numpy()
        module = loaded(net, row_of(body, everyone, y))
        own = adapted(client, features_of(module, client.data), everyone, ridge, mode)[0]
        module = loaded(net, row_of(body, own, y))
        assert losses(got, 2)[i] == pytest.approx(loss_on_test(i, module), rel=1e-3 if mode == "local" else 3e-2)


@pytest.mark.parametrize("number", range(6))
def test_beta_minimizes_the_held_out_loss(number):
    """One β against a bounded search; two are at least as good as one."""
    client = a_client(number)
    rng = np.random.default_rng(3)
    net = client.net
    z = features_of(loaded(net, net.initial), client.data)
    everyone = (z.mean(0) + 0.1 * rng.normal(size=(10, 16)), np.eye(16) * 0.5)
    message = Message(shared=(net.initial[BODY], *(torch.from_numpy(part).float() for part in everyone)))
    everyone = tuple(part.astype(np.float32).astype(float) for part in everyone)
    _, beta, held_out = adapted(client, z, everyone, 0.1, "one")
    got = PFedFDA(interpolation="one", ridge=0.1)._adapted(client, net.initial, message)
    own = estimate(z, client.data.y.numpy(), everyone[0], 0.1)
    mine = (got.covariance.numpy() - everyone[1])[0, 0] / (own[1] - everyone[1])[0, 0]
    assert held_out(mine) <= held_out(beta) + 1e-3
    assert 0 <= mine <= 1 + 1e-6


def test_the_classifier_is_linear_discriminant_analysis():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 400)
    z = rng.normal(size=(400, 5)) @ rng.normal(size=(5, 5)) + 2 * rng.normal(size=(3, 5))[y]
    lda = LinearDiscriminantAnalysis(solver="lsqr").fit(z, y)
    means, covariance = torch.from_numpy(lda.means_), torch.from_numpy(lda.covariance_)
    weight, bias = Gaussian(means, covariance).classifier(torch.from_numpy(lda.priors_))
    scores = torch.from_numpy(z) @ weight.t() + bias
    assert (scores.argmax(1).numpy() == lda.predict(z)).mean() > 0.99
    np.testing.assert_allclose(F.softmax(scores, 1), lda.predict_proba(z), atol=0.02)


def test_interpolation_by_hand():
    a, b = Gaussian(torch.ones(1, 2), torch.eye(2)), Gaussian(torch.zeros(1, 2), 3 * torch.eye(2))
    mixed = a.mixed(b, torch.tensor([0.25, 0.5]))
    assert mixed.means.tolist() == [[0.25, 0.25]]
    assert mixed.covariance.tolist() == [[2.0, 0.0], [0.0, 2.0]]


def test_too_few_examples_for_folds_take_the_global_statistics():
    client = a_client()
    data = client.data
    first = torch.tensor([int((data.y == c).nonzero()[0]) for c in data.y.unique()])  # one of each class
    few = type(data)(lambda: type(data.train)(data.x[first], data.y[first]), lambda: data.validation, 10)
    shared = (client.net.initial[BODY], torch.rand(10, 16), torch.eye(16))
    got = PFedFDA()._adapted(client._replace(data=few), client.net.initial, Message(shared=shared))
    assert torch.equal(got.means, shared[1].double())
    assert torch.equal(got.covariance, shared[2].double())


def test_it_needs_a_linear_head():
    with pytest.raises(ValueError, match="pFedFDA needs a linear head with a bias; layer '1'"):
        run(PFedFDA(), model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias=False)), model_options={})


def test_frozen_parameters_stay_frozen():
    keeps_frozen(PFedFDA(), lambda net: Message((net.initial[net.layout.body], torch.rand(10, 8), torch.eye(8))))


def test_faults_are_named():
    with pytest.raises(ValueError, match=r"ridge=0.0 must be above 0"):
        PFedFDA(ridge=0.0)


def test_it_survives(tmp_path):
    survives(PFedFDA(), tmp_path)


def test_clients_are_their_own_in_round_1():
    isolated(PFedFDA())
