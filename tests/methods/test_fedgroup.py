"""FedGroup against its paper, in plain loops."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

import fedkin
from fedkin.client.training import sgd
from fedkin.data.digits import load
from fedkin.engine.runner import client_seed
from fedkin.maths.cluster import rand_index
from fedkin.methods.fedgroup import FedGroup, decomposed
from fedkin.models.build import maker
from fedkin.models.network import Network
from fedkin.protocol import Client, Message, Replies, Server, Training
from fedkin.results.store import equal

SETTINGS = {"rounds": 4, "lr": 0.1, "epochs": 1, "batch_size": 8, "seed": 5, "engine": "serial"}


@pytest.fixture(scope="module")
def fed():
    """Clients of unlike sizes."""
    data = load()
    data = replace(data, x=data.x[:500], y=data.y[:500])
    return fedkin.federate(data, partition="dirichlet", clients=7, alpha=0.3, minimum=20, seed=3)


def run(method, fed, **changes):
    return fedkin.run(method, fed, model="mlp", **{**SETTINGS, **changes})


@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_golden(fed, mu):
    """Four of seven clients in the cold start; the others are newcomers later."""
    method = FedGroup(groups=2, pretrain_factor=2, pretrain_steps=12, mu=mu)
    got = run(method, fed, participation=0.6)
    asked = [[r.client for r in got.history.select("bytes_up", round=t)] for t in (1, 2, 3, 4)]
    assert len(asked[0]) == 4
    net = Network(maker("mlp", fed.shape, fed.classes, 5, {})(0), fed.example)
    w0, group, models, first = net.initial, {}, [], {}
    for t, ids in enumerate(asked, start=1):
        trained = {}
        for i in ids:
            client = Client({}, fed.data(i), client_seed(5, t, i), net, Training(0.1, 1, 8))
            start = models[group[i]] if i in group else w0
            regularizer_gradient = lambda w, c=start: mu * (w - c)  # noqa: E731
            trained[i] = sgd(client, start, steps=None if i in group else 12, regularizer_gradient=regularizer_gradient)
        if t == 1:
            u = {i: ((trained[i] - w0) / (trained[i] - w0).norm()).double().numpy() for i in ids}
            _, _, v = np.linalg.svd(np.stack(list(u.values())), full_matrices=False)
            edc = np.array([[u[i] @ v[k] for k in range(2)] for i in ids])
            label = KMeans(2, n_init=20, random_state=0).fit(edc).labels_
            label = label if label[0] == 0 else 1 - label  # numbered by first appearance
            group = dict(zip(ids, label.tolist()))
            first = {k: np.mean([u[i] for i in ids if group[i] == k], 0) for k in (0, 1)}
            models = [None, None]
            mine = dict(group)
        else:
            mine = {i: group[i] for i in ids if i in group}
            for i in set(ids) - set(group):
                change = (trained[i] - w0).double().numpy()
                near = [change @ first[k] / np.linalg.norm(first[k]) for k in (0, 1)]
                group[i] = int(np.argmax(near))
        for k in (0, 1):
            members = [i for i in ids if mine.get(i) == k]
            if members:
                n = [len(fed.splits[i].train) for i in members]
                models[k] = sum(a * trained[i] for a, i in zip(n, members)) / sum(n)
    assert len(group) > 4  # newcomers came
    assert got.state["labels"].tolist() == [group.get(i, -1) for i in range(7)]
    np.testing.assert_allclose(got.state["models"], torch.stack(models), atol=2e-5)
    size = 4 * net.layout.size
    assert {record.value for record in got.history.select("bytes_up")} == {size}
    assert {record.value for record in got.history.select("bytes_down")} == {size + 1}
    assert got.history.values("personal", round=4) == got.history.values("received", round=4)


# ---- grouping by hand
def test_decomposed_is_the_cosine_with_singular_directions():
    torch.manual_seed(0)
    rows = torch.randn(6, 9)
    unit = torch.nn.functional.normalize(rows, dim=1).double().numpy()
    _, _, v = np.linalg.svd(unit, full_matrices=False)
    np.testing.assert_allclose(np.abs(decomposed(rows, 3)), np.abs(unit @ v[:3].T), atol=1e-6)
    np.testing.assert_allclose(
        np.abs(decomposed(rows * torch.rand(6, 1) * 9, 3)), np.abs(decomposed(rows, 3)), atol=1e-5
    )


def server(size, initial):
    return Server(
        ids=torch.arange(size), n=torch.ones(size, dtype=torch.long), classes=2, seed=0, participation=1.0,
        training=Training(), layout=SimpleNamespace(parameters=len(initial)), initial=lambda k: torch.tensor(initial),
    )  # fmt: skip


def merged(method, state, answers):
    ids = torch.tensor(list(answers))
    rows = torch.tensor(list(answers.values()))
    return method.merge(state, Message(), Replies(ids, torch.ones(len(ids)), (rows,), torch.arange(len(ids)), 0))


def test_opposite_families_are_parted_whatever_their_lengths_and_newcomers_join():
    method = FedGroup(groups=2)
    state = merged(
        method, method.init(server(6, [0.0, 0.0])), {0: [1.0, 0.1], 2: [-9.0, 0.2], 1: [50.0, 1.0], 3: [-0.1, 0.0]}
    )
    assert rand_index(state["labels"][:4].tolist(), [0, 0, 1, 1]) == 1
    before = state["models"].clone()
    state = merged(method, state, {4: [-3.0, 3.1], 5: [2.0, 2.0]})
    assert state["labels"][4] == state["labels"][2]
    assert state["labels"][5] == state["labels"][0]
    assert torch.equal(state["models"], before)  # their first training began at w_0
    np.testing.assert_allclose(method.mixing(state).sum(1), 1, atol=1e-6)


# ---- reductions
def test_one_group_is_fedavg(fed):
    ours = run(FedGroup(groups=1, pretrain_factor=99, pretrain_steps=0), fed)
    np.testing.assert_allclose(ours.state["models"][0], run("fedavg", fed).state["model"], atol=1e-6)
    prox = run(FedGroup(groups=1, pretrain_factor=99, pretrain_steps=0, mu=0.5), fed)
    theirs = run(fedkin.method("fedprox", mu=0.5), fed)
    np.testing.assert_allclose(prox.state["models"][0], theirs.state["model"], atol=1e-6)


def test_losses_arrivals_and_resume(fed, tmp_path):
    method = FedGroup(groups=2, pretrain_steps=5)
    changes = {"lost": 0.4, "participation": 0.7, "arrive": {5: 2}, "leave": {0: 3}, "rounds": 4}
    straight = run(method, fed, **changes)
    run(method, fed, **{**changes, "rounds": 2}, out=tmp_path, checkpoint_every=1)
    assert equal(straight.state, run(method, fed, **changes, out=tmp_path, checkpoint_every=1).state)
    np.testing.assert_allclose(method.mixing(straight.state).sum(1), 1, atol=1e-5)


@pytest.mark.parametrize("fields", [{"groups": 0}, {"pretrain_factor": 0}, {"pretrain_steps": -1}, {"mu": -1.0}])
def test_wrong_fields_are_named(fields):
    with pytest.raises(ValueError, match=f"{next(iter(fields))}="):
        FedGroup(**fields)
