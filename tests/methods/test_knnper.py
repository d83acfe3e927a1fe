"""kNN-Per in plain loops, its reductions to FedAvg, and the neighbors by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from plain_baselines import a_client, federation, isolated, losses, message, network, run, survives

from fedkin.maths.neighbors import neighbor_probabilities
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.knnper import KNNPer
from fedkin.results.store import equal


def vote(f, stored, labels, k, scale, squared, classes=10):
    """p_knn(y|x) ∝ Σ over the k nearest 1[y_j = y] exp(−d), number by number."""
    distance = [float(np.sqrt(((f - s) ** 2).sum())) for s in stored]
    nearest = sorted(range(len(stored)), key=lambda j: (distance[j], j))[:k]
    p = np.zeros(classes)
    for j in nearest:
        d = distance[j] ** 2 / len(f) if squared else distance[j]
        p[labels[j]] += np.exp(-d / scale)
    return p / p.sum()


def paper(i, model, *, lam, k, scale, squared):
    """Loss of client i on its test examples; λ chosen on validation examples where lam is None."""
    net, fed = network(), federation()
    net.load(model)
    data = fed.data(i)
    weight, bias = net.module.fc2.weight.detach(), net.module.fc2.bias.detach()

    def both(x):
        z = torch.relu(net.module.fc1(x.flatten(1))).detach()
        p_h = torch.softmax(z @ weight.t() + bias, 1).numpy().astype(float)
        stored = torch.relu(net.module.fc1(data.x.flatten(1))).detach().numpy().astype(float)
        p_k = np.stack([vote(f, stored, data.y.tolist(), k, scale, squared) for f in z.numpy().astype(float)])
        return p_k, p_h

    def scores(rows, lam):
        p_k, p_h = both(rows.x)
        p = lam * p_k + (1 - lam) * p_h
        return (p.argmax(1) == rows.y.numpy()).sum(), -np.log(p[np.arange(len(p)), rows.y] + 1e-12).mean()

    if lam is None:
        table = [(g, *scores(data.validation, g)) for g in np.arange(101) / 100]
        most = max(right for _, right, _ in table)
        lam = min((loss, g) for g, right, loss in table if right == most)[1]
    return scores(fed.test(i), lam)[1]


@pytest.mark.parametrize(("lam", "squared"), [(0.4, False), (0.4, True), (None, False)])
def test_it_is_the_papers_algorithm(lam, squared):
    kernel = "squared" if squared else "distance"
    got = run(KNNPer(k=4, lam=lam or 0.0, choose=lam is None, scale=0.7, kernel=kernel))
    assert equal(got.state, run(FedAvg()).state), "its server is FedAvg's to the bit"
    for i in range(0, 6, 2):
        want = paper(i, got.state["model"], lam=lam, k=4, scale=0.7, squared=squared)
        assert losses(got)[i] == pytest.approx(want, rel=2e-3)


@pytest.mark.parametrize("off", [{"lam": 0.0, "choose": False}, {"capacity": 0.0}])
def test_without_neighbors_it_is_fedavg(off):
    a, b = run(KNNPer(**off)), run(FedAvg())
    assert a.history.values("personal", round=3) == b.history.values("personal", round=3)
    for i, value in losses(b).items():
        assert losses(a)[i] == pytest.approx(value, rel=1e-5)


def test_neighbors():
    rng = np.random.default_rng(0)
    stored, labels = torch.from_numpy(rng.normal(size=(30, 4))).float(), torch.from_numpy(rng.integers(0, 3, 30))
    rows = torch.from_numpy(rng.normal(size=(5, 4))).float()
    options = {"k": 7, "classes": 3, "scale": 1.0, "squared": False}
    p = neighbor_probabilities(rows, stored, labels, **options)
    assert torch.allclose(p.sum(1), torch.ones(5))
    for f, got in zip(rows, p):
        assert got.numpy() == pytest.approx(
            vote(f.numpy(), stored.numpy(), labels.tolist(), 7, 1.0, False, 3), rel=1e-4
        )
    turn = torch.from_numpy(np.linalg.qr(rng.normal(size=(4, 4)))[0]).float()
    assert torch.allclose(neighbor_probabilities(rows @ turn, stored @ turn, labels, **options), p, atol=1e-5)
    itself = neighbor_probabilities(stored, stored, labels, **{**options, "k": 1})
    assert torch.equal(itself.argmax(1), labels), "one neighbor remembers the stored examples"
    everyone = neighbor_probabilities(rows, stored[:3], labels[:3], **options)
    assert torch.allclose(everyone.sum(1), torch.ones(5)), "k beyond what is stored"
    far = neighbor_probabilities(rows + 1e4, stored, labels, **options)
    assert torch.allclose(far.sum(1), torch.ones(5)), "no 0 / 0 far away"


def test_ties_go_to_the_lower_row():
    stored, labels = torch.zeros(3, 2), torch.tensor([2, 0, 1])
    p = neighbor_probabilities(torch.ones(1, 2), stored, labels, k=1, classes=3, scale=1.0, squared=False)
    assert p.tolist() == [[0.0, 0.0, 1.0]]


def test_capacity_and_choice():
    client = a_client()
    row = client.net.initial
    model = KNNPer(capacity=0.5).personal(client, message(row), lambda: None)
    assert len(model["labels"]) == len(model["features"]) == round(0.5 * len(client.data.y))
    assert 0 <= float(model["lam"]) <= 1
    none = replace(federation(), splits=tuple(replace(s, validation=s.validation[:0]) for s in federation().splits))
    alone = KNNPer(lam=0.3).personal(a_client(fed=none), message(row), lambda: None)
    assert float(alone["lam"]) == pytest.approx(0.3), "no validation examples: the field's λ"


def test_faults_are_named():
    with pytest.raises(ValueError, match="k=0 must be at least 1"):
        KNNPer(k=0)
    with pytest.raises(ValueError, match="lam=2"):
        KNNPer(lam=2)


def test_it_survives(tmp_path):
    survives(KNNPer(k=3), tmp_path)


def test_clients_memories_are_their_own():
    isolated(KNNPer())
