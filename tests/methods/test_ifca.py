"""IFCA against its paper, in plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedkin
from fedkin.client.evaluate import evaluate, gradient
from fedkin.client.training import sgd
from fedkin.engine.runner import client_seed
from fedkin.methods.ifca import IFCA, choose
from fedkin.models.build import maker
from fedkin.models.network import Network
from fedkin.protocol import Client, Message, Training
from fedkin.results.store import equal

SETTINGS = {"rounds": 3, "lr": 0.1, "epochs": 1, "batch_size": 8, "seed": 5, "engine": "serial"}


def run(method, fed, **changes):
    return fedkin.run(method, fed, model="mlp", **{**SETTINGS, **changes})


def paper(fed, answered, *, clusters, averaging, share, size):
    """Algorithm 1 in plain loops (share: the variant of sec. 6 whose clusters differ in the head alone)."""
    make = maker("mlp", fed.shape, fed.classes, 5, {})
    net = Network(make(0), fed.example)
    head = set(net.layout.head.tolist())
    body = torch.tensor([p for p in range(net.layout.size) if p not in head])
    thetas = [Network(make(j), fed.example).initial.clone() for j in range(clusters)]
    if share:
        for theta in thetas:
            theta[body] = thetas[0][body]
    identity = {}
    for t, back in enumerate(answered, start=1):
        came = {}
        for i in back:
            losses = [evaluate(net, theta, fed.data(i).train)[1] for theta in thetas]
            identity[i] = int(np.argmin(losses))  # line 5
            client = Client({}, fed.data(i), client_seed(5, t, i), net, Training(0.1, 1, 8))
            start = thetas[identity[i]]
            came[i] = gradient(net, start, fed.data(i).train)[0] if averaging == "gradient" else sgd(client, start)
        n = {i: len(fed.splits[i].train) if size else 1 for i in back}
        new = []
        for j, theta in enumerate(thetas):
            mine = [i for i in back if identity[i] == j]
            if averaging == "gradient":  # option I: divided by m, whatever the cluster's size
                new.append(theta - 0.1 / len(back) * sum((came[i] for i in mine), torch.zeros_like(theta)))
            else:  # option II
                new.append(sum(n[i] * came[i] for i in mine) / sum(n[i] for i in mine) if mine else theta)
        if share:
            common = sum(n[i] * came[i] for i in back) / sum(n.values())
            if averaging == "gradient":
                common = thetas[0] - 0.1 / len(back) * sum(came.values())
            for theta in new:
                theta[body] = common[body]
        thetas = new
    return torch.stack(thetas), identity


@pytest.mark.parametrize(("averaging", "size"), [("model", False), ("model", True), ("gradient", False)])
@pytest.mark.parametrize("share", [False, True])
def test_golden(fed, averaging, share, size):
    assert len(set(fed.sizes.tolist())) > 1
    weighting = "size" if size else "equal"
    method = IFCA(clusters=3, averaging=averaging, share_body=share, weighting=weighting)
    got = run(method, fed, participation=0.7)
    answered = [[r.client for r in got.history.select("bytes_up", round=t)] for t in (1, 2, 3)]
    thetas, identity = paper(fed, answered, clusters=3, averaging=averaging, share=share, size=size)
    np.testing.assert_allclose(got.state["models"], thetas, atol=1e-5)
    assert got.state["labels"].tolist() == [identity.get(i, -1) for i in range(6)]
    assert len(set(identity.values())) > 1
    layout = Network(maker("mlp", fed.shape, fed.classes, 5, {})(0), fed.example).layout
    one, heads = 4 * layout.size, 4 * len(layout.head)
    down = {record.value for record in got.history.select("bytes_down")}
    assert down == {one - heads + 3 * heads if share else 3 * one}
    assert {record.value for record in got.history.select("bytes_up")} == {one + 4}


def test_one_cluster_is_fedavg_to_the_bit(fed):
    theirs = run("fedavg", fed, participation=0.7).state["model"]
    for share in (False, True):
        ours = run(IFCA(clusters=1, weighting="size", share_body=share), fed, participation=0.7)
        assert torch.equal(ours.state["models"][0], theirs)


def test_one_full_batch_step_is_a_gradient_step_of_another_size():
    """Option II with τ = 1 is option I with γ·m/|C_j|: here each of 2 clusters, if it is chosen, by its size."""
    fed = fedkin.federate("digits", partition="topology", nodes=3, clients=6, samples_per_client=40, seed=3)
    changes = {"rounds": 1, "batch_size": 10_000, "epochs": 1}
    by_model = run(IFCA(clusters=2), fed, **changes)
    by_gradient = run(IFCA(clusters=2, averaging="gradient"), fed, **changes)
    start = torch.stack([run(IFCA(clusters=2, averaging="gradient"), fed, **changes, lr=1e-30).state["models"]])[0]
    sizes = torch.bincount(by_model.state["labels"], minlength=2).float()
    assert sizes.min() > 0
    scaled = start + (by_gradient.state["models"] - start) * (6 / sizes)[:, None]
    np.testing.assert_allclose(by_model.state["models"], scaled, atol=1e-5)


def test_a_good_start_finds_the_groups_and_a_tie_goes_to_the_first(make_client):
    """Labels of the second group are shifted: a model trained in one group is bad in the other."""
    client = make_client(epochs=8, lr=0.2, batch_size=8)
    good = sgd(client, client.net.initial)
    shifted = good.clone()
    piece = next(p for p in client.net.layout.pieces if p.start == int(client.net.layout.head[0]))
    shifted[piece.start : piece.stop] = -good[piece.start : piece.stop]
    assert choose(client, Message(shared=(torch.stack([shifted, good]),))).position == 1
    assert choose(client, Message(shared=(torch.stack([good, shifted]),))).position == 0
    assert choose(client, Message(shared=(torch.stack([good, good, good]),))).position == 0


def test_from_a_good_start_every_client_finds_its_group():
    """One model near each group's optimum: the assignments are the truth at once."""
    fed = fedkin.federate("digits", partition="topology", nodes=3, clients=6, samples_per_client=60, seed=3)
    net = Network(maker("mlp", fed.shape, fed.classes, 5, {})(0), fed.example)

    def client(client_id):
        return Client({}, fed.data(client_id), client_id, net, Training(0.1, 10, 8))

    truth = fed.groups.tolist()
    models = torch.stack([sgd(client(truth.index(group)), net.initial) for group in range(3)])
    assert [choose(client(client_id), Message(shared=(models,))).position for client_id in range(6)] == truth


def test_losses_are_computed_once_per_task(fed, monkeypatch):
    """In a round that also scores the clients, and in an evaluation of all: k passes over the training examples."""
    from fedkin.client import choice

    passes, real = [], choice.evaluate
    monkeypatch.setattr(choice, "evaluate", lambda *given: passes.append(1) or real(*given))
    run(IFCA(clusters=3), fed, rounds=2, evaluate_every=0)
    assert len(passes) == 3 * 6 * 3  # two rounds, and an evaluation after the last


def test_more_models_than_clients_are_named(fed):
    got = run(IFCA(clusters=7), fed, rounds=1)
    assert "IFCA has 7 clusters for 6 clients" in next(got.history.select("warning")).value
    assert not list(run(IFCA(clusters=6), fed, rounds=1).history.select("warning"))


def test_personal_is_the_chosen_model_as_sent(fed):
    result = run(IFCA(clusters=2), fed, rounds=1)
    assert result.history.values("personal", round=1) == result.history.values("received", round=1)


@pytest.mark.parametrize("method", [IFCA(clusters=3), IFCA(clusters=2, share_body=True)])
def test_losses_arrivals_and_resume(fed, method, tmp_path):
    changes = {"lost": 0.4, "participation": 0.7, "arrive": {5: 2}, "leave": {0: 3}, "rounds": 4}
    straight = run(method, fed, **changes)
    run(method, fed, **{**changes, "rounds": 2}, out=tmp_path, checkpoint_every=1)
    assert equal(straight.state, run(method, fed, **changes, out=tmp_path, checkpoint_every=1).state)
    mixing = method.mixing(straight.state)
    for matrix in mixing.values() if isinstance(mixing, dict) else [mixing]:
        np.testing.assert_allclose(matrix.sum(1), 1, atol=1e-5)


@pytest.mark.parametrize("fields", [{"clusters": 0}, {"averaging": "mean"}, {"weighting": "n"}])
def test_wrong_fields_are_named(fields):
    with pytest.raises(ValueError, match=f"{next(iter(fields))}="):
        IFCA(**fields)
