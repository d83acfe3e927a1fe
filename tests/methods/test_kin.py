"""kin in plain loops, its reductions to FedAvg, Local and kNN-Per, and its parts by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from plain_baselines import EPOCHS, LR, a_client, federation, gradient, losses, network, run, sizes, survives
from torch.nn import functional as F

from fedkin.client.training import batches, sgd
from fedkin.maths.neighbors import neighbor_probabilities
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.kin import EXPERTS, Kin
from fedkin.methods.local import Local
from fedkin.protocol import Message


def train(net, start, client, round):
    """Plain SGD, step by step."""
    w = start.clone()
    for epoch in range(EPOCHS):
        for x, y in batches(a_client(client, round=round, net=net), epoch=epoch):
            w = w - LR * gradient(net, w, x, y)
    return w


def outputs(net, w, x):
    net.load(w)
    hidden = torch.relu(net.module.fc1(x.flatten(1))).detach()
    return hidden, (hidden @ net.module.fc2.weight.t() + net.module.fc2.bias).detach()


def offers(models, mean, n, temperature):
    """The mixture that each client is offered: A_j = softmax over i of (s_ji / T + log n_i), number by number."""
    count = len(models)
    away = [(m - mean).double() for m in models]
    s = [[float(a @ b / (a.norm() * b.norm())) for b in away] for a in away]
    out = []
    for j in range(count):
        s[j][j] = max(s[j][i] for i in range(count) if i != j)
        weights = [math.exp(s[j][i] / temperature) * float(n[i]) for i in range(count)]
        out.append(sum(w / sum(weights) * m for w, m in zip(weights, models)).float())
    return out


def experts_of(net, client, parts, x, k, scale):
    """Probabilities of the five experts, in their order."""
    data = federation().data(client)
    p = {name: torch.softmax(outputs(net, parts[name], x)[1], 1) for name in ("own", "received", "tuned")}
    counts = np.array([int((data.y == c).sum()) + 0.5 for c in range(10)])
    raised = p["received"].numpy() * (counts / counts.sum())
    p["adjusted"] = torch.from_numpy(raised / raised.sum(1, keepdims=True)).float()
    stored, asked = outputs(net, parts["tuned"], data.x)[0], outputs(net, parts["tuned"], x)[0]
    votes = neighbor_probabilities(asked, stored, data.y, k=k, classes=10, scale=scale, squared=False)
    p["neighbors"] = votes
    return [p[name].numpy().astype(float) for name in EXPERTS]


def em(right, prior, steps=100):
    """Weights of a mixture by expectation and maximization; right[e][v]: what expert e gives to the true class of v."""
    count, examples = len(right), len(right[0])
    weights = [1 / count] * count
    for _ in range(steps):
        total = [prior / count] * count
        for v in range(examples):
            whole = sum(weights[e] * right[e][v] for e in range(count))
            for e in range(count):
                total[e] += weights[e] * right[e][v] / whole
        weights = [t / (examples + prior) for t in total]
    return weights


def plain(rounds, *, temperature=0.3, prior=4.0, k=10, scale=1.0):
    """The whole method; the loss of each client's mixture on its test examples after the last round."""
    fed, net, n = federation(), network(), sizes()
    start = net.initial.clone()
    mean, own = start, {i: start for i in range(6)}
    offered = [start] * 6

    def chosen(i):
        x, y = fed.data(i).validation
        fits = [float(F.cross_entropy(outputs(net, w, x)[1], y)) for w in (mean, offered[i])]
        return mean if fits[0] <= fits[1] else offered[i]

    for round in range(1, rounds + 1):
        replies = [train(net, chosen(i), i, round) for i in range(6)]
        own = {i: train(net, own[i], i, round) for i in range(6)}
        mean = sum(float(n[i] / n.sum()) * replies[i] for i in range(6))
        offered = offers(replies, mean, n, temperature)
    out = {}
    for i in range(6):
        received = chosen(i)
        parts = {"own": own[i], "received": received, "tuned": train(net, received, i, rounds + 1)}
        (x, y), (tx, ty) = fed.data(i).validation, fed.test(i)
        right = [np.clip(p[np.arange(len(y)), y], 1e-6, None) for p in experts_of(net, i, parts, x, k, scale)]
        mixed = sum(w * p for w, p in zip(em(right, prior), experts_of(net, i, parts, tx, k, scale)))
        out[i] = float(-np.log(np.clip(mixed[np.arange(len(ty)), ty], 1e-12, None)).mean())
    return out


def test_it_is_the_algorithm_of_its_page():
    want = plain(3)
    assert losses(run(Kin())) == pytest.approx(want, rel=2e-3)


def test_with_the_mean_and_one_expert_it_is_fedavg():
    ours, fedavg = run(Kin(relation="mean", experts=("received",)), participation=0.5), run(FedAvg(), participation=0.5)
    assert torch.equal(ours.state["mean"], fedavg.state["model"]), "to the bit"
    assert losses(ours) == pytest.approx(losses(fedavg), rel=1e-4)


def test_alone_it_is_local():
    assert losses(run(Kin(experts=("own",)))) == pytest.approx(losses(run(Local())), rel=1e-4)


def test_two_experts_are_knnper_with_weights_by_em():
    """Neighbors and network of one model, as in kNN-Per, but λ is the one that EM finds."""
    method = Kin(relation="mean", experts=("tuned", "neighbors"), prior=0.0)
    client = a_client()
    model = method.personal(
        client, Message((client.net.initial,)), lambda: method.local(client, Message((client.net.initial,)))
    )
    x, y = client.data.validation
    p_net = torch.softmax(outputs(client.net, model["tuned"], x)[1], 1)[torch.arange(len(y)), y]
    features = outputs(client.net, model["tuned"], x)[0]
    votes = neighbor_probabilities(
        features, model["features"], model["labels"], k=10, classes=10, scale=1.0, squared=False
    )
    p_knn = votes[torch.arange(len(y)), y].clamp(min=1e-6)
    grid = torch.linspace(0, 1, 1001)[:, None]
    likelihood = ((1 - grid) * p_net + grid * p_knn).log().sum(1)
    lam = float(grid[likelihood.argmax()])
    assert float(model["weights"][1]) == pytest.approx(lam, abs=0.02)


def test_an_expert_that_is_wrong_gets_no_weight():
    method = Kin(experts=("own", "received"), prior=1.0)
    client = a_client()
    right = method._expert_weights(client, {"own": trained_long(client), "received": -trained_long(client)})
    assert float(right[0]) > 0.9
    few = Kin(experts=("own", "received"), prior=1e6)._expert_weights(
        client, {"own": trained_long(client), "received": -trained_long(client)}
    )
    assert few.tolist() == pytest.approx([0.5, 0.5], abs=0.01), "a strong prior holds the weights"


def trained_long(client):
    return sgd(client._replace(training=replace(client.training, epochs=30)), client.net.initial)


def test_without_validation_examples_every_expert_counts_the_same():
    fed = federation()
    none = replace(fed, splits=tuple(replace(s, validation=s.validation[:0]) for s in fed.splits))
    client = a_client(fed=none)
    message = Message((client.net.initial,), (client.net.initial,))
    model = Kin().personal(client, message, lambda: Kin().local(client, message))
    assert model["weights"].tolist() == pytest.approx([0.2] * 5)


def test_a_client_takes_the_offer_that_fits():
    client = a_client()
    good, bad = trained_long(client), client.net.initial
    for offer in (Message((good,), (bad,)), Message((bad,), (good,))):
        assert torch.equal(Kin().received(client, offer), good)


def test_kin_count_more_and_nobody_is_their_own():
    """Two kinds of clients: each is offered mostly the models of its kind, and a stranger the mean."""
    away = torch.tensor([[1.0, 0], [1, 0.1], [-1, 0], [-1, 0.1]])
    state = {
        "mean": away.mean(0), "share": torch.full((4,), 0.25), "models": away, "known": torch.ones(4, dtype=torch.bool),
    }  # fmt: skip
    rows = Kin()._weights_of(state, torch.arange(4))
    assert torch.allclose(rows.sum(1), torch.ones(4))
    assert float(rows[0, :2].sum()) > 0.95
    assert float(rows[0, 0]) == pytest.approx(float(rows[0, 1]), rel=0.1), "its own model counts as its kin's do"
    state["known"][0] = False
    assert Kin()._weights_of(state, torch.tensor([0])).tolist()[0] == pytest.approx([0.25] * 4)
    state["share"] = torch.tensor([0.5, 0.5, 0, 0])
    assert float(Kin()._weights_of(state, torch.arange(4))[:, 2:].abs().max()) == 0, "old replies do not count"


def test_it_survives(tmp_path):
    survives(Kin(), tmp_path)
