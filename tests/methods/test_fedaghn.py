"""FedAGHN against its paper, in plain loops with autograd through the whole mixing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedkin
from fedkin.client.training import sgd
from fedkin.engine.runner import client_seed
from fedkin.methods.fedaghn import FedAGHN, slopes, weights_of
from fedkin.models.build import maker
from fedkin.models.network import Network
from fedkin.protocol import Client, Training
from fedkin.results.store import equal

SETTINGS = {"rounds": 3, "lr": 0.1, "epochs": 1, "batch_size": 8, "seed": 5, "engine": "serial"}


@pytest.fixture(scope="module")
def fed():
    return fedkin.federate("digits", partition="dirichlet", clients=5, alpha=0.5, samples_per_client=50, seed=3)


def run(method, fed, **changes):
    return fedkin.run(method, fed, model="mlp", **{**SETTINGS, **changes})


@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_golden(fed, participation):
    method = FedAGHN(p=0.3, q=2.0, server_lr=0.05)
    got = run(method, fed, participation=participation)
    net = Network(maker("mlp", fed.shape, fed.classes, 5, {})(0), fed.example)
    layers = [layer.positions for layer in net.layout.layers]
    p = {(i, k): torch.tensor(0.3) for i in range(5) for k in range(len(layers))}
    q = {key: torch.tensor(2.0) for key in p}
    models, delta = {}, {}

    def aggregated(i):
        """θ_i as a differentiable function of p and q, which are returned too."""
        if i not in models:
            return (sum(models.values()) / len(models) if models else net.initial), []
        out, scalars = net.initial.clone(), []
        for k, where in enumerate(layers):
            leaf = p[i, k].clone().requires_grad_(), q[i, k].clone().requires_grad_()
            scalars.append(leaf)
            others = [j for j in models if j != i]
            total = models[i][where]
            if others:
                score = torch.stack(
                    [leaf[1] * torch.cosine_similarity(delta[i][where], delta[j][where], dim=0) for j in others]
                )
                attention = torch.softmax(score, 0)
                total = leaf[0] * models[i][where] + sum(a * models[j][where] for a, j in zip(attention, others))
                total = total / (1 + leaf[0])
            out = out.index_put((where,), total)
        return out, scalars

    for t in (1, 2, 3):
        came = {}
        for i in [r.client for r in got.history.select("bytes_up", round=t)]:
            theta, scalars = aggregated(i)
            client = Client({}, fed.data(i), client_seed(5, t, i), net, Training(0.1, 1, 8))
            trained = sgd(client, theta.detach())
            came[i] = (trained, trained - theta.detach())
            if scalars and len(models) > 1:
                leaves = [leaf for pair in scalars for leaf in pair]
                slope = torch.autograd.grad(theta, leaves, theta.detach() - trained)
                for k in range(len(layers)):
                    p[i, k] = (p[i, k] - 0.05 * slope[2 * k]).clamp(min=0)
                    q[i, k] = q[i, k] - 0.05 * slope[2 * k + 1]
        models |= {i: v[0] for i, v in came.items()}
        delta |= {i: v[1] for i, v in came.items()}
    np.testing.assert_allclose(got.state["p"], [[p[i, k] for i in range(5)] for k in range(2)], atol=1e-4)
    np.testing.assert_allclose(got.state["q"], [[q[i, k] for i in range(5)] for k in range(2)], atol=1e-4)
    assert len(set(got.state["p"].flatten().tolist())) > 3  # they were learned
    want = torch.stack([aggregated(i)[0].detach() for i in range(5)])
    np.testing.assert_allclose(method.send(got.state, torch.arange(5)).own[0], want, atol=2e-5)
    size = 4 * net.layout.size
    assert {r.value for m in ("bytes_up", "bytes_down") for r in got.history.select(m)} == {size}


# ---- the rows
def test_rows():
    cosines = torch.tensor([0.2, 1.0, -0.5, 0.9])
    got = weights_of(cosines, 1, torch.tensor(0.5), torch.tensor(3.0))
    assert float(got.sum()) == pytest.approx(1)
    assert float(got[1]) == pytest.approx(0.5 / 1.5)
    assert got[3] > got[0] > got[2]
    uniform = weights_of(cosines, 1, torch.tensor(1 / 3), torch.tensor(0.0))
    np.testing.assert_allclose(uniform, 0.25, atol=1e-7)
    alone = weights_of(cosines, 1, torch.tensor(1e9), torch.tensor(1.0))
    np.testing.assert_allclose(alone, [0, 1, 0, 0], atol=1e-6)
    assert weights_of(cosines, 1, torch.tensor(-1.0), torch.tensor(1.0))[1] == 0
    down = slopes(cosines, 1, torch.tensor(0.5), torch.tensor(3.0), torch.tensor([0.0, 1.0, 0.0, 0.0]))
    assert float(down[0]) == pytest.approx(1 / 1.5 - 0.5 / 1.5**2)  # of p / (1 + p)
    assert float(down[1]) == pytest.approx(0, abs=1e-7)


# ---- reductions
def test_uniform_weights_are_fedavg_and_a_large_own_weight_is_local_training(fed):
    assert len(set(fed.sizes.tolist())) == 1
    even = run(FedAGHN(q=0.0, p=0.25, server_lr=0.0), fed)
    sent = FedAGHN().send(even.state, torch.arange(5)).own[0]
    np.testing.assert_allclose(sent, run("fedavg", fed).state["model"].expand(5, -1), atol=1e-6)
    alone = run(FedAGHN(p=1e9, server_lr=0.0), fed)
    want = run("local", fed, rounds=4, evaluate_every=1).history.values("personal_loss", round=4)
    assert len(want) == 5
    # an evaluation after round 3 trains what would be sent: the fourth round of local training
    assert alone.history.values("personal_loss", round=3) == pytest.approx(want, rel=1e-4)


def test_losses_arrivals_and_resume(fed, tmp_path):
    changes = {"lost": 0.4, "participation": 0.7, "arrive": {4: 2}, "leave": {0: 3}, "rounds": 4}
    straight = run("fedaghn", fed, **changes)
    run("fedaghn", fed, **{**changes, "rounds": 2}, out=tmp_path, checkpoint_every=1)
    assert equal(straight.state, run("fedaghn", fed, **changes, out=tmp_path, checkpoint_every=1).state)
    for matrix in FedAGHN().mixing(straight.state).values():
        np.testing.assert_allclose(matrix.sum(1), 1, atol=1e-5)


@pytest.mark.parametrize("fields", [{"p": -1.0}, {"server_lr": -1.0}])
def test_wrong_fields_are_named(fields):
    with pytest.raises(ValueError, match=f"{next(iter(fields))}="):
        FedAGHN(**fields)
