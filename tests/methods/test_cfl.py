"""CFL against its paper: plain loops, brute force, opposite groups."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import fedkin
from fedkin.client.training import sgd
from fedkin.data.digits import load
from fedkin.engine.runner import client_seed
from fedkin.methods.cfl import CFL, bipartition
from fedkin.models.build import maker
from fedkin.models.network import Network
from fedkin.protocol import Client, Message, Replies, Server, Training
from fedkin.results.store import equal

SETTINGS = {"rounds": 3, "lr": 0.1, "epochs": 1, "batch_size": 8, "seed": 5, "engine": "serial"}
ABSOLUTE = {"eps1": 0.4, "eps2": 1.6, "scale": "absolute"}  # the authors' code


@pytest.fixture(scope="module")
def fed():
    return fedkin.federate("digits", partition="topology", nodes=3, clients=9, samples_per_client=40, seed=3)


@pytest.fixture(scope="module")
def unlike():
    """Clients of unlike sizes."""
    data = load()
    data = replace(data, x=data.x[:400], y=data.y[:400])
    return fedkin.federate(data, partition="dirichlet", clients=6, alpha=0.5, minimum=20, seed=3)


def run(method, fed, **changes):
    return fedkin.run(method, fed, model="mlp", **{**SETTINGS, **changes})


def unit(a, b):
    return float(a.double() @ b.double() / a.double().norm() / b.double().norm())


def best_cut(similarity):
    """The min-max cut by trying every bipartition."""
    ids = list(range(len(similarity)))
    cuts = []
    for size in range(1, len(ids)):
        for part in itertools.combinations(ids[1:], size):
            rest = [i for i in ids if i not in part]
            cuts.append((max(similarity[i][j] for i in part for j in rest), part))
    return min(cuts)


def paper(fed, *, rounds, eps1, eps2, gamma):
    """Algorithms 1 and 3 in plain loops with brute-force bipartitions; all clients in every round."""
    net = Network(maker("mlp", fed.shape, fed.classes, 5, {})(0), fed.example)
    clusters = [(list(range(len(fed))), net.initial.clone())]
    for t in range(1, rounds + 1):
        after = []
        for members, theta in clusters:
            delta = {}
            for i in members:
                client = Client({}, fed.data(i), client_seed(5, t, i), net, Training(0.1, 1, 8))
                delta[i] = sgd(client, theta) - theta
            total = sum(len(fed.splits[i].train) for i in members)
            mean = sum(len(fed.splits[i].train) / total * delta[i] for i in members)
            theta = theta + mean
            split = float(mean.norm()) < eps1 and max(float(d.norm()) for d in delta.values()) > eps2
            if split and len(members) > 2:
                cross, part = best_cut([[unit(delta[i], delta[j]) for j in members] for i in members])
                if ((1 - cross) / 2) ** 0.5 > gamma:
                    one = [members[p] for p in part]
                    after += [([i for i in members if i not in one], theta), (one, theta)]
                    continue
            after.append((members, theta))
        clusters = after
    return clusters


def test_golden(fed):
    method = CFL(eps1=1e9, eps2=0.5, gamma_max=0.2, wait=0, scale="absolute")
    got = run(method, fed)
    clusters = paper(fed, rounds=3, eps1=1e9, eps2=0.5, gamma=0.2)
    assert len(clusters) > 2  # a second split: positions are no longer ids
    sent = method.send(got.state, torch.arange(9)).own[0]
    labels = got.state["labels"].tolist()
    assert len({labels[members[0]] for members, _ in clusters}) == len(clusters)
    for members, theta in clusters:
        assert len({labels[i] for i in members}) == 1
        for i in members:
            np.testing.assert_allclose(sent[i], theta, atol=1e-5)


def test_bipartition_is_optimal():
    rng = np.random.default_rng(0)
    for _ in range(60):
        x = rng.normal(size=(rng.integers(2, 8), 3))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        other, cross = bipartition(x @ x.T)
        assert cross == pytest.approx(best_cut(x @ x.T)[0])
        assert 0 < other.sum() < len(x)
    other, _ = bipartition(np.ones((5, 5)))  # all alike: still two parts
    assert 0 < other.sum() < 5


# ---- by hand
def server(size, initial):
    return Server(
        ids=torch.arange(size), n=torch.ones(size, dtype=torch.long), classes=2, seed=0, participation=1.0,
        training=Training(), layout=SimpleNamespace(parameters=len(initial)), initial=lambda k: torch.tensor(initial),
    )  # fmt: skip


def merged(method, state, answers):
    ids = torch.tensor(list(answers))
    rows = torch.tensor([answers[i] for i in answers])
    return method.merge(state, Message(), Replies(ids, torch.ones(len(ids)), (rows,), torch.arange(len(ids)), 0))


def test_opposite_groups_split_and_every_client_stays_somewhere():
    u, v = [2.0, 0.0, 0.1], [-2.0, 0.0, 0.1]
    method = CFL(wait=0, **ABSOLUTE)
    state = merged(method, method.init(server(8, [0.0, 0.0, 0.0])), {0: u, 3: u, 1: v, 2: v, 4: u, 5: v, 6: u, 7: v})
    assert state["labels"].tolist() == [0, 1, 1, 0, 0, 1, 0, 1]
    np.testing.assert_allclose(state["models"], [[0, 0, 0.1]] * 2, atol=1e-6)  # both start where they parted
    # the second cluster, clients 1, 2, 5, 7, splits in turn: the sub-matrix's positions are not ids
    a, b, same = [0.0, 3.0, 0.0], [0.0, -3.0, 0.0], [0.1, 0.0, 0.0]
    state = merged(method, state, {0: same, 3: same, 4: same, 6: same, 7: a, 5: b, 2: a, 1: b})
    assert state["labels"].tolist() == [0, 1, 2, 0, 0, 1, 0, 2] or state["labels"].tolist() == [0, 2, 1, 0, 0, 2, 0, 1]
    np.testing.assert_allclose(method.mixing(state).sum(1), 1, atol=1e-6)


def test_congruent_updates_and_small_or_incomplete_clusters_do_not_split():
    method = CFL(wait=0, **ABSOLUTE)
    start = method.init(server(4, [0.0, 0.0]))
    assert len(merged(method, start, {i: [2.0, 0.1 * i] for i in range(4)})["models"]) == 1
    known = merged(method, start, {i: [0.1, 0.0] for i in range(4)})
    opposite = {0: [2.0, 0.0], 1: [-2.0, 0.0], 2: [2.0, 0.1], 3: [-2.0, -0.1]}
    assert len(merged(method, known, opposite)["models"]) == 2
    assert len(merged(method, known, dict(list(opposite.items())[:2]))["models"]) == 1
    assert len(merged(CFL(wait=0, least=5, **ABSOLUTE), known, opposite)["models"]) == 1
    assert len(merged(CFL(wait=2, **ABSOLUTE), known, opposite)["models"]) == 1
    assert len(merged(CFL(wait=0, gamma_max=1.0, **ABSOLUTE), known, opposite)["models"]) == 1


def test_thresholds_are_relative_to_the_longest_mean_update_of_the_cluster():
    """The same updates ten times as long split in the same round; a new cluster measures itself anew."""
    rounds = [
        {0: [4.0, 0.0], 1: [2.0, 0.0], 2: [4.0, 0.1], 3: [2.0, 0.0]},  # mean 3: the unit
        {0: [6.0, 0.0], 1: [-1.9, 0.0], 2: [6.0, 0.1], 3: [-1.9, 0.0]},  # mean 2.05 > 0.6 · 3
        {0: [4.0, 0.0], 1: [-2.0, 0.0], 2: [4.0, 0.1], 3: [-2.0, 0.0]},  # mean 1 < 1.8, longest 4 > 3: split
        {0: [0.3, 0.0], 1: [-0.1, 0.0], 2: [-0.2, 0.1], 3: [-0.1, 0.0]},  # now 0.3 is the unit of two new clusters
    ]
    for length in (1.0, 10.0):
        method = CFL(wait=0, least=2)
        state = method.init(server(4, [0.0, 0.0]))
        counts = []
        for updates in rounds:
            state = merged(method, state, {i: [length * v for v in u] for i, u in updates.items()})
            counts.append(len(state["models"]))
        assert counts == [1, 1, 2, 2]
        assert state["labels"].tolist() == [0, 1, 0, 1]
        np.testing.assert_allclose(state["longest"], length * np.array([np.hypot(0.05, 0.05), 0.1]), rtol=1e-5)


def test_it_says_before_it_starts_when_it_cannot_split(unlike):
    there = Server(torch.arange(6), unlike.sizes, 10, 0, 0.3, Training(), SimpleNamespace(parameters=1), lambda k: None)
    assert CFL(quorum=0.3).warnings(there, 20) == []
    assert "quorum" in CFL().warnings(there, 20)[0]
    assert "waits for 20" in CFL(wait=20, quorum=0.3).warnings(there, 20)[0]
    got = run(CFL(wait=3), unlike, rounds=2)
    assert "CFL splits no cluster in 2 rounds" in next(got.history.select("warning")).value


def test_it_splits_in_twenty_rounds_of_the_default(fed):
    got = run("cfl", fed, rounds=20)
    assert [record.value for record in got.history.select("models")][-1] > 1
    assert [record.value for record in got.history.select("rand_index")][-1] > 0.8


def test_a_missing_member_and_a_newcomer_join_by_direction():
    method = CFL(wait=0, quorum=0.6, least=2, **ABSOLUTE)
    start = merged(method, method.init(server(5, [0.0, 0.0])), {i: [0.1, 0.0] for i in range(4)})
    state = merged(method, start, {0: [2.0, 0.0], 1: [-2.0, 0.0], 2: [2.0, 0.0], 3: [-2.0, 0.0]})
    state = merged(method, state, {0: [1.0, 0.0], 1: [-1.0, 0.0]})
    before = state["models"].clone()
    state = merged(method, state, {4: [-3.0, 0.2]})
    assert state["labels"].tolist() == [0, 1, 0, 1, 1]
    assert torch.equal(state["models"], before)  # its update began elsewhere
    lacking = merged(method, start, {0: [2.0, 0.0], 1: [-2.0, 0.0], 2: [0.0, 0.1]})
    assert lacking["labels"].tolist()[3:] == [-1, -1]
    assert torch.equal(method.send(lacking, torch.tensor([3])).own[0][0], lacking["models"][0])


# ---- reductions, and in a federation
def test_without_splits_it_is_fedavg(unlike):
    assert len(set(unlike.sizes.tolist())) > 1
    ours = run(CFL(eps2=float("inf"), wait=0, eps1=1e9), unlike, participation=0.5)
    theirs = run("fedavg", unlike, participation=0.5)
    equal_weights = run(CFL(eps2=float("inf"), weighting="equal"), unlike, participation=0.5)
    assert not torch.allclose(equal_weights.state["models"][0], theirs.state["model"], atol=1e-3)
    np.testing.assert_allclose(ours.state["models"][0], theirs.state["model"], atol=1e-5)
    assert len(ours.state["models"]) == 1


def test_losses_arrivals_and_resume(fed, tmp_path):
    method = CFL(wait=0, eps1=1e9, eps2=0.0, quorum=0.4)
    changes = {"lost": 0.3, "participation": 0.8, "arrive": {8: 3}, "leave": {0: 3}, "rounds": 4}
    straight = run(method, fed, **changes)
    assert len(straight.state["models"]) > 1
    run(method, fed, **{**changes, "rounds": 2}, out=tmp_path, checkpoint_every=1)
    assert equal(straight.state, run(method, fed, **changes, out=tmp_path, checkpoint_every=1).state)
    np.testing.assert_allclose(method.mixing(straight.state).sum(1), 1, atol=1e-5)
    size = 4 * straight.state["models"].shape[1]
    assert {r.value for m in ("bytes_up", "bytes_down") for r in straight.history.select(m)} == {size}
    assert straight.history.values("personal", round=4) == straight.history.values("received", round=4)


@pytest.mark.parametrize(
    "fields", [{"eps1": -1.0}, {"gamma_max": 2.0}, {"quorum": 0.0}, {"least": 1}, {"weighting": "n"}]
)
def test_wrong_fields_are_named(fields):
    with pytest.raises(ValueError, match=f"{next(iter(fields))}="):
        CFL(**fields)
