"""FedFomo against its paper, in plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedkin
from fedkin.client.evaluate import evaluate
from fedkin.client.training import sgd
from fedkin.engine.runner import client_seed
from fedkin.methods.fedfomo import FedFomo, weights
from fedkin.models.build import maker
from fedkin.models.network import Network
from fedkin.protocol import Client, Training
from fedkin.results.store import equal

SETTINGS = {"rounds": 3, "lr": 0.1, "epochs": 1, "batch_size": 8, "seed": 5, "engine": "serial"}


@pytest.fixture(scope="module")
def fed():
    return fedkin.federate(
        "digits", partition="topology", nodes=3, clients=6, samples_per_client=60, validation=0.2, seed=3
    )


def run(method, fed, **changes):
    return fedkin.run(method, fed, model="mlp", **{**SETTINGS, **changes})


@pytest.mark.parametrize("participation", [1.0, 0.7])
def test_golden(fed, participation):
    """All models are downloaded, so nothing is left to chance."""
    got = run(FedFomo(downloads=10), fed, participation=participation)
    net = Network(maker("mlp", fed.shape, fed.classes, 5, {})(0), fed.example)
    models, affinity, used = {}, np.zeros((6, 6)), 0
    for t in (1, 2, 3):
        new = {}
        for i in [r.client for r in got.history.select("bytes_up", round=t)]:
            own = models.get(i, net.initial)
            validation = fed.data(i).validation
            gain = {}
            for n, other in models.items():
                if n != i:
                    better = evaluate(net, own, validation)[1] - evaluate(net, other, validation)[1]
                    gain[n] = max(0.0, better / float((other - own).norm()))
            total = sum(gain.values())
            start = own
            if total > 0:
                start = own + sum(g / total * (models[n] - own) for n, g in gain.items())
                used += 1
                for n, g in gain.items():
                    affinity[i, n] += g / total
            client = Client({}, fed.data(i), client_seed(5, t, i), net, Training(0.1, 1, 8))
            new[i] = sgd(client, start)
        models |= new
    assert used > 3
    heard = sorted(models)
    np.testing.assert_allclose(got.state["models"][heard], torch.stack([models[i] for i in heard]), atol=2e-5)
    np.testing.assert_allclose(got.state["affinity"], affinity, atol=1e-3)
    size = 4 * net.layout.size
    down = [record.value for record in got.history.select("bytes_down", round=3)]
    assert set(down) <= {size * k for k in (4, 5, 6)}
    assert "received" not in got.summary


def test_weights(make_client):
    """Non-negative, sum 1; a worse model gets nothing; where none is better the own model stays."""
    client = make_client(epochs=4, batch_size=8, lr=0.1)
    start = client.net.initial
    good, better = sgd(client, start, epochs=1), sgd(client, start, epochs=4)
    got = weights(client, start, torch.stack([good, better, start]))
    assert float(got.sum()) == pytest.approx(1)
    assert got[0] > 0
    assert got[1] > 0
    assert got[2] == 0
    loss = [evaluate(client.net, model, client.data.validation)[1] for model in (start, good, better)]
    gain = [(loss[0] - loss[k]) / float((model - start).norm()) for k, model in ((1, good), (2, better))]
    np.testing.assert_allclose(got[:2], np.array(gain) / sum(gain), atol=1e-5)
    assert float((better - start).norm()) > 1.3 * float((good - start).norm())  # so that distance matters
    assert weights(client, better, torch.stack([start, start])).tolist() == [0, 0]
    assert weights(client, better, torch.zeros(0, len(start))).shape == (0,)


def test_a_client_alone_trains_alone(fed):
    """Nobody else was ever heard in round 1: that round is local training."""
    ours, alone = run(FedFomo(), fed, rounds=1), run("local", fed, rounds=1)
    want = alone.history.values("personal_loss", round=1)
    assert len(want) == 6
    assert ours.history.values("personal_loss", round=1) == want


def test_downloads_follow_affinity_and_exploration():
    state = {
        "models": torch.zeros(6, 2), "known": torch.tensor([True] * 5 + [False]), "seed": 0, "round": 3,
        "affinity": torch.tensor([[0.0, 1, 5, 3, 0, 9]] * 6),
    }  # fmt: skip
    greedy = FedFomo(downloads=2, explore=0.0)
    assert greedy._offered(state, 0).tolist() == [2, 3]  # neither itself nor one never heard
    assert greedy._offered(state, 2).tolist() == [3, 1]
    drawn = {tuple(FedFomo(downloads=2, explore=1.0)._offered({**state, "round": 0}, c).tolist()) for c in (0, 4, 5)}
    drawn |= {tuple(FedFomo(2, 1.0, 0.0)._offered({**state, "round": r}, 0).tolist()) for r in range(20)}
    assert len(drawn) > 5
    late = FedFomo(downloads=2, explore=0.9, explore_decay=0.3)
    assert late._offered(state, 0).tolist() == [2, 3]  # ε has shrunk to 0


def test_losses_arrivals_and_resume(fed, tmp_path):
    method = FedFomo(downloads=2)
    changes = {"lost": 0.4, "participation": 0.7, "arrive": {5: 2}, "leave": {0: 3}, "rounds": 4}
    straight = run(method, fed, **changes)
    run(method, fed, **{**changes, "rounds": 2}, out=tmp_path, checkpoint_every=1)
    assert equal(straight.state, run(method, fed, **changes, out=tmp_path, checkpoint_every=1).state)
    np.testing.assert_allclose(method.mixing(straight.state).sum(1), 1, atol=1e-5)


@pytest.mark.parametrize("fields", [{"downloads": 0}, {"explore": 2.0}, {"explore_decay": -1.0}])
def test_wrong_fields_are_named(fields):
    with pytest.raises(ValueError, match=f"{next(iter(fields))}="):
        FedFomo(**fields)
