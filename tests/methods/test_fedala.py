"""FedALA against its paper, in plain loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import fedkin
from fedkin.client.evaluate import evaluate
from fedkin.client.training import batches, sgd
from fedkin.data.digits import load
from fedkin.engine.runner import client_seed
from fedkin.methods.fedala import APART, FedALA, mixed
from fedkin.models.build import maker
from fedkin.models.network import Network
from fedkin.protocol import Client, Examples, Message, Training
from fedkin.results.store import equal

SETTINGS = {"rounds": 3, "lr": 0.1, "epochs": 1, "batch_size": 8, "seed": 5, "engine": "serial"}


@pytest.fixture(scope="module")
def fed():
    """Clients of unlike sizes."""
    data = load()
    data = replace(data, x=data.x[:400], y=data.y[:400])
    return fedkin.federate(data, partition="dirichlet", clients=5, alpha=0.5, minimum=20, seed=3)


def run(method, fed, **changes):
    return fedkin.run(method, fed, model="mlp", **{**SETTINGS, **changes})


@pytest.mark.parametrize("tensors", [2, 0])
def test_golden(fed, tensors):
    got = run(FedALA(tensors=tensors, rate=0.5), fed)
    net = Network(maker("mlp", fed.shape, fed.classes, 5, {})(0), fed.example)
    module = maker("mlp", fed.shape, fed.classes, 5, {})(0)
    names = [name for name, _ in module.named_parameters()]
    upper = set(names[-tensors:]) if tensors else set(names)
    model, own, weight = net.initial.clone(), {}, {}
    for t in (1, 2, 3, 4):  # the fourth is what an evaluation after round 3 sees
        trained, start_of = {}, {}
        for i in range(5):
            client = Client({}, fed.data(i), client_seed(5, t, i), net, Training(0.1, 1, 8))
            start = model.clone()
            if i in own:
                theta, theta_i = net.layout.tensors(model), net.layout.tensors(own[i])
                first = i not in weight
                w = weight.setdefault(i, {name: torch.ones_like(theta[name]) for name in upper})
                generator = torch.Generator().manual_seed(client.seed + 0xA1A)
                size = len(fed.data(i).y)
                pick = torch.randperm(size, generator=generator)[: int(0.8 * size)]
                rows = Examples(fed.data(i).x[pick], fed.data(i).y[pick])
                hat = {n: theta_i[n] + (theta[n] - theta_i[n]) * w[n] if n in upper else theta[n] for n in theta}
                losses = []
                while True:
                    total = 0.0
                    for x, y in batches(client, epoch=APART + len(losses), examples=rows):
                        leaves = {n: v.clone().requires_grad_() for n, v in hat.items()}
                        loss = F.cross_entropy(torch.func.functional_call(module, leaves, x), y)
                        slope = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values()))))
                        for n in upper:  # W, then Θ̂_i
                            w[n] = (w[n] - 0.5 * slope[n] * (theta[n] - theta_i[n])).clamp(0, 1)
                            hat[n] = theta_i[n] + (theta[n] - theta_i[n]) * w[n]
                        total += float(loss.detach()) * len(y)
                    losses.append(total / len(rows.y))
                    if not first or (len(losses) > 10 and np.std(losses[-10:], ddof=1) < 0.1) or len(losses) == 50:
                        break
                start = net.layout.flatten(hat)
            start_of[i] = start
            trained[i] = sgd(client, start)
        if t == 4:
            break
        own = trained
        n = [len(split.train) for split in fed.splits]
        model = sum(n[i] * trained[i] for i in trained) / sum(n)
    np.testing.assert_allclose(got.state["model"], model, atol=5e-5)
    for i, loss in got.history.values("personal_loss", round=3).items():
        assert loss == pytest.approx(evaluate(net, start_of[i], fed.test(i))[1], rel=1e-3)
    size = 4 * net.layout.size
    assert {r.value for m in ("bytes_up", "bytes_down") for r in got.history.select(m)} == {size}


def test_weights_that_stay_1_are_fedavg(fed):
    ours, theirs = run(FedALA(rate=0.0), fed), run("fedavg", fed)
    np.testing.assert_allclose(ours.state["model"], theirs.state["model"], atol=1e-5)
    moved = run(FedALA(), fed)
    assert not torch.allclose(moved.state["model"], theirs.state["model"], atol=1e-3)


def test_weights_lie_in_0_1_and_equal_models_are_skipped(make_client):
    client = make_client(epochs=1, batch_size=8, lr=0.1)
    received = client.net.initial
    assert "weights" not in FedALA().local(client, Message(shared=(received,))).state  # nothing to mix yet
    same = client._replace(state={"model": received.clone()})
    assert "weights" not in FedALA().local(same, Message(shared=(received,))).state
    other = client._replace(state={"model": sgd(client, received, epochs=3)})
    state = FedALA(rate=100.0).local(other, Message(shared=(received,))).state
    assert state["weights"].min() >= 0
    assert state["weights"].max() <= 1
    assert len(state["weights"].unique()) > 1
    lower = client.net.layout.body
    assert torch.equal(state["mixed"][lower], received[lower])  # lower layers are the global ones


def test_mixed_by_hand():
    got = mixed(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0.0, 0.0, 0.0]), torch.tensor([0.5, 1.0]), slice(1, 3))
    assert got.tolist() == [1, 1, 4]


def test_losses_arrivals_and_resume(fed, tmp_path):
    changes = {"lost": 0.4, "participation": 0.7, "arrive": {4: 2}, "leave": {0: 3}, "rounds": 4}
    straight = run("fedala", fed, **changes)
    run("fedala", fed, **{**changes, "rounds": 2}, out=tmp_path, checkpoint_every=1)
    assert equal(straight.state, run("fedala", fed, **changes, out=tmp_path, checkpoint_every=1).state)


@pytest.mark.parametrize("fields", [{"rate": -1.0}, {"sample": 0.0}, {"tensors": -1}])
def test_wrong_fields_are_named(fields):
    with pytest.raises(ValueError, match=f"{next(iter(fields))}="):
        FedALA(**fields)
