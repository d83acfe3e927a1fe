"""ClusterFL as DC-PFL reads it, in plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

import fedkin
from fedkin.client.evaluate import gradient
from fedkin.client.training import sgd
from fedkin.engine.runner import client_seed
from fedkin.maths.cluster import rand_index
from fedkin.methods.clusterfl_kmeans import ClusterFLKMeans
from fedkin.models.build import maker
from fedkin.models.network import Network
from fedkin.protocol import Client, Message, Training
from fedkin.results.store import equal

SETTINGS = {"rounds": 3, "lr": 0.1, "epochs": 1, "batch_size": 8, "seed": 5, "engine": "serial"}


def run(method, fed, **changes):
    return fedkin.run(method, fed, model="mlp", **{**SETTINGS, **changes})


def paper(fed, answered, *, clusters, lam, own_start, size):
    net = Network(maker("mlp", fed.shape, fed.classes, 5, {})(0), fed.example)
    n = [len(split.train) if size else 1 for split in fed.splits]
    models, centers, label = {}, [net.initial], {}
    for t, back in enumerate(answered, start=1):
        for i in back:
            c = centers[label[i]] if i in label else sum(centers) / len(centers)
            client = Client({}, fed.data(i), client_seed(5, t, i), net, Training(0.1, 1, 8))
            start = models.get(i, net.initial) if own_start else c
            models[i] = sgd(client, start, regularizer_gradient=lambda w, c=c: lam * (w - c))
        heard = sorted(models)
        found = (
            KMeans(clusters, n_init=20, random_state=0).fit(torch.stack([models[i] for i in heard]).double()).labels_
        )
        label = dict(zip(heard, found.tolist()))
        centers = []
        for k in range(clusters):
            mine = [i for i in heard if label[i] == k]
            centers.append(sum(n[i] * models[i] for i in mine) / sum(n[i] for i in mine))
    return centers, label, models


@pytest.mark.parametrize(
    "method",
    [ClusterFLKMeans(clusters=2, lam=0.5), ClusterFLKMeans(clusters=2, lam=0.5, start="center", weighting="size")],
    ids=["own", "center"],
)
def test_golden(fed, method):
    got = run(method, fed, participation=0.7)
    answered = [[r.client for r in got.history.select("bytes_up", round=t)] for t in (1, 2, 3)]
    centers, label, models = paper(
        fed, answered, clusters=2, lam=0.5, own_start=method.start == "own", size=method.weighting == "size"
    )
    heard = sorted(models)
    np.testing.assert_allclose(got.state["models"][heard], torch.stack([models[i] for i in heard]), atol=1e-5)
    assert rand_index([int(got.state["labels"][i]) for i in heard], [label[i] for i in heard]) == 1
    sent = method.send(got.state, torch.arange(6)).own[0]
    for i in range(6):
        np.testing.assert_allclose(sent[i], centers[label[i]] if i in label else sum(centers) / 2, atol=1e-5)
    heard_rows = torch.zeros_like(got.state["models"])
    heard_rows[heard] = got.state["models"][heard]
    np.testing.assert_allclose(method.mixing(got.state) @ heard_rows, sent, atol=1e-5)


def test_without_pull_it_is_local_training(fed):
    each = {"evaluate_every": 1}
    ours, alone = run(ClusterFLKMeans(lam=0.0), fed, **each), run("local", fed, **each)
    for round in (1, 2, 3):
        want = alone.history.values("personal_loss", round=round)
        assert len(want) == 6
        assert ours.history.values("personal_loss", round=round) == want


def test_one_cluster_from_its_center_is_fedprox(fed):
    ours = run(ClusterFLKMeans(clusters=1, lam=0.3, start="center", weighting="size"), fed)
    theirs = run(fedkin.method("fedprox", mu=0.3), fed)
    np.testing.assert_allclose(ours.state["centers"][0], theirs.state["model"], atol=1e-6)


def test_as_many_clusters_as_clients_pull_nowhere_at_the_start(fed):
    state = run(ClusterFLKMeans(clusters=6), fed).state
    sent = ClusterFLKMeans(clusters=6).send(state, torch.arange(6)).own[0]
    np.testing.assert_allclose(sent, state["models"], atol=1e-7)


def test_it_says_before_it_starts_that_every_client_is_its_own_center(fed):
    assert ["6 clusters for 6" in r.value for r in run(ClusterFLKMeans(clusters=6), fed).history.select("warning")] == [
        True
    ]
    assert not list(run(ClusterFLKMeans(clusters=5), fed).history.select("warning"))


def test_the_pull_has_a_gradient(make_client):
    client = make_client(batch_size=10_000, lr=0.1)
    c = torch.randn(client.net.layout.size)
    got = ClusterFLKMeans(lam=0.7).local(client, Message(own=(c,))).body[0]
    w = client.net.initial
    np.testing.assert_allclose(
        got, w - 0.1 * (gradient(client.net, w, client.data.train)[0] + 0.7 * (w - c)), atol=1e-6
    )


def test_losses_arrivals_and_resume(fed, tmp_path):
    method = ClusterFLKMeans(clusters=2)
    changes = {"lost": 0.4, "participation": 0.7, "arrive": {5: 2}, "leave": {0: 3}, "rounds": 4}
    straight = run(method, fed, **changes)
    run(method, fed, **{**changes, "rounds": 2}, out=tmp_path, checkpoint_every=1)
    assert equal(straight.state, run(method, fed, **changes, out=tmp_path, checkpoint_every=1).state)
    np.testing.assert_allclose(method.mixing(straight.state).sum(1), 1, atol=1e-5)


@pytest.mark.parametrize(
    "fields", [{"clusters": 0}, {"start": "u"}, {"weighting": "n"}, {"restarts": 0}, {"lam": -1.0}]
)
def test_wrong_fields_are_named(fields):
    with pytest.raises(ValueError, match=f"{next(iter(fields))}="):
        ClusterFLKMeans(**fields)
