"""Floco and Floco+ in plain loops, the projection onto the simplex, and M = 1 as FedAvg."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from plain_baselines import SEED, a_client, federation, losses, network, run, sizes, survives
from plain_parts import BODY, HEAD, descend, feature, keeps_frozen, linear, loaded, mean_of
from sklearn.decomposition import PCA
from torch.nn import functional as F

from fedkin.client.evaluate import evaluate
from fedkin.client.training import batches
from fedkin.maths.peers import on_simplex
from fedkin.maths.simplex import near, principal_scores, spread_on_simplex
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.floco import Floco
from fedkin.models.build import maker
from fedkin.models.network import Network
from fedkin.protocol import Message, Server, Training


def draw(center, radius, rng):
    uniform = rng.dirichlet(np.ones(len(center)))
    if not radius:
        return uniform
    apart = np.abs(uniform - center).sum()
    return center + min(1, radius / apart) * rng.random() ** (1 / (len(center) - 1)) * (uniform - center)


def train(net, client, body, heads, center, radius, *, epochs=2, personal=False, lam=0.0, around=None):
    rng = np.random.default_rng([client.seed, int(personal)])
    module = loaded(net, torch.cat([body, heads[0]]))
    heads = [head.clone().requires_grad_() for head in heads]
    first = [p.detach().clone() for p in module.fc1.parameters()] if around is None else around[0]
    ends = [head.detach().clone() for head in heads] if around is None else around[1]
    for epoch in range(epochs):
        for x, y in batches(client, epoch=epoch):
            alpha = draw(center, radius, rng)  # (2)
            head = sum(float(np.float32(a)) * h for a, h in zip(alpha, heads))  # (1)
            value = F.cross_entropy(F.linear(feature(module, x), *linear(head)), y)
            tensors = [*module.fc1.parameters(), *heads]
            for tensor, center_of in zip(tensors, [*first, *ends]):  # (5)
                value = value + lam / 2 * ((tensor - center_of) ** 2).sum()
            descend(value, tensors)
    return net.vector()[BODY], [head.detach() for head in heads]


def started(count):
    """The heads' weights from a normal distribution of variance 2 / (fan in + fan out) = 2 / (16 + 10), one by one."""
    fed = federation()
    make = maker("mlp", fed.shape, fed.classes, SEED, {"width": 0.25})
    generator = torch.Generator().manual_seed(int(Server.rng(SimpleNamespace(seed=SEED), 0, 0xF10C0).integers(1 << 62)))
    heads = [Network(make(m), fed.example).initial[HEAD].clone() for m in range(count)]
    for head in heads:
        head[:160] = torch.empty(160).normal_(0, (2 / 26) ** 0.5, generator=generator)
    return heads


def energy(points):
    total = 0.0
    for i in range(len(points)):
        for j in range(i):
            total += 1 / max(np.linalg.norm(points[i] - points[j]), 1e-4) ** 2
    return total


@pytest.mark.parametrize("personal", [0, 1])
def test_it_is_the_papers_algorithm(personal):
    got = run(Floco(endpoints=3, tau=2, rho=0.3, personal_epochs=personal, lam=0.5))
    net, n, fed = network(), sizes(), federation()
    body = net.initial[BODY]
    heads = started(3)
    centers, radius, own = np.full((6, 3), 1 / 3), 0.0, {}
    for round in (1, 2, 3):
        answers, mine = [], {}
        for i in range(6):
            client = a_client(i, round=round, net=net)
            answers.append(train(net, client, body, heads, centers[i], radius))
            if personal:
                around = ([body[:1024].view(16, 64), body[1024:]], heads)
                mine[i] = train(net, client, *own.get(i, (body, heads)), centers[i], radius, epochs=personal,
                                personal=True, lam=0.5, around=around)  # fmt: skip
        own = mine
        if round == 2:
            changes = np.stack([torch.cat([a - b for a, b in zip(h, heads)]).double().numpy() for _, h in answers])
            scores = PCA(3).fit_transform(changes)
            axes = PCA(3).fit(changes).components_
            scores = scores * np.sign([axis[np.abs(axis).argmax()] for axis in axes])
            tried = [on_simplex(scores / z) for z in np.linspace(1e-4, 1, 1000)]
            centers, radius = min(tried, key=energy), 0.3  # (3), (4)
        body = mean_of([a for a, _ in answers], n)
        heads = [mean_of([h[m] for _, h in answers], n) for m in range(3)]
    assert torch.allclose(got.state["body"], body, atol=1e-4)
    assert torch.allclose(got.state["endpoints"], torch.stack(heads), atol=1e-4)
    np.testing.assert_allclose(got.state["centers"], centers, atol=1e-3)
    assert len({tuple(row) for row in centers.round(3)}) > 1
    for i in range(6):
        base, ends = own[i] if personal else (body, heads)
        row = torch.cat([base, sum(float(a) * h for a, h in zip(centers[i], ends))])
        assert losses(got)[i] == pytest.approx(evaluate(net, row, fed.test(i))[1], rel=1e-3)


def test_one_endpoint_is_fedavg():
    a, b = run(Floco(endpoints=1, tau=1)), run(FedAvg())
    row = torch.cat([a.state["body"], a.state["endpoints"][0]])
    assert torch.allclose(row, b.state["model"], atol=1e-5)
    for i, value in losses(b).items():
        assert losses(a)[i] == pytest.approx(value, rel=1e-4)


def test_principal_scores_do_not_depend_on_the_order():
    rows = np.random.default_rng(0).normal(size=(8, 30))
    order = np.random.default_rng(1).permutation(8)
    scores = principal_scores(rows, 4)
    np.testing.assert_allclose(principal_scores(rows[order], 4), scores[order], atol=1e-9)
    np.testing.assert_allclose(np.abs(scores), np.abs(PCA(4).fit_transform(rows)), atol=1e-9)
    assert principal_scores(rows[:2], 4)[:, 1:].tolist() == [[0.0] * 3] * 2, "two rows have one axis"


def test_unlike_clients_lie_apart_on_the_simplex():
    rng = np.random.default_rng(2)
    scores = np.repeat(5 * np.eye(3), 3, axis=0) + 0.01 * rng.normal(size=(9, 3))
    points = spread_on_simplex(scores)
    np.testing.assert_allclose(points.sum(1), 1)
    assert points.min() >= 0
    within = np.linalg.norm(points[0] - points[1])
    assert np.linalg.norm(points[0] - points[3]) > 5 * within
    assert spread_on_simplex(np.zeros((1, 3))).tolist() == [[1 / 3] * 3]


def test_draws_stay_in_the_subregion():
    rng = np.random.default_rng(0)
    center = np.array([0.9, 0.1, 0.0])
    points = np.stack([near(center, 0.2, rng) for _ in range(500)])
    assert points.min() >= 0
    np.testing.assert_allclose(points.sum(1), 1)
    apart = np.abs(points - center).sum(1)
    assert apart.max() <= 0.2 + 1e-9
    assert apart.max() > 0.19
    anywhere = np.stack([near(center, 0.0, rng) for _ in range(4000)])
    np.testing.assert_allclose(anywhere.mean(0), 1 / 3, atol=0.02)


def test_all_are_asked_at_tau_and_late_clients_keep_the_simplex():
    got = run(Floco(endpoints=3, tau=2), participation=0.5, arrive={5: 3})
    asked = {round: {r.client for r in got.history.select("flops") if r.round == round} for round in (1, 2, 3)}
    assert [len(asked[1]), len(asked[2])] == [3 if len(asked[1]) == 3 else 2, 5]
    assert got.state["assigned"].tolist() == [True] * 5 + [False]
    assert torch.allclose(got.state["centers"][5], torch.full((3,), 1 / 3))


def test_frozen_parameters_stay_frozen():
    def send(net):
        head = net.initial[net.layout.head]
        return Message(
            shared=(net.initial[net.layout.body], torch.stack([head, head + 0.1])),
            own=(torch.tensor([0.5, 0.5]), torch.tensor(1.0)),
        )

    keeps_frozen(Floco(endpoints=2), send)
    keeps_frozen(Floco(endpoints=2, personal_epochs=1), send)


def test_faults_are_named():
    with pytest.raises(ValueError, match="endpoints=0 must be at least 1"):
        Floco(endpoints=0)


@pytest.mark.parametrize("personal", [0, 1])
def test_it_survives(tmp_path, personal):
    survives(Floco(endpoints=3, tau=2, personal_epochs=personal), tmp_path)


def test_fewer_rounds_than_tau_are_named_before_it_starts():
    short, enough = run(Floco(endpoints=1, tau=3), rounds=2), run(Floco(endpoints=1, tau=3), rounds=3)
    (text,) = [record.value for record in short.history.select("warning")]
    assert "after round 3" in text
    assert not short.state["assigned"].any()
    assert not list(enough.history.select("warning"))
    assert enough.state["assigned"].all()


def test_too_few_steps_for_so_many_endpoints_are_named_before_it_starts():
    """50 clients' steps for each endpoint; with 2 epochs of batches of 8 a client of 33 examples takes 10 a round."""
    fed = SimpleNamespace(
        ids=torch.arange(4), n=torch.tensor([30, 36, 30, 36]), training=Training(epochs=2, batch_size=8)
    )
    (text,) = Floco(endpoints=10, tau=1).warnings(fed, 49)
    assert "about 490 steps train each like 49 of FedAvg" in text
    assert not Floco(endpoints=10, tau=1).warnings(fed, 50)
    assert not Floco(endpoints=9, tau=1).warnings(fed, 49)
    assert not Floco(endpoints=1, tau=1).warnings(fed, 1)
