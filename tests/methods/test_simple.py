"""Local, FedAvg, FedAvg-FT and FedProx against their papers, in plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import fedkin
from fedkin.client.evaluate import evaluate
from fedkin.client.training import batches
from fedkin.engine.runner import client_seed
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.fedprox import FedProx
from fedkin.methods.local import Local
from fedkin.models.build import maker
from fedkin.models.network import Network
from fedkin.protocol import Client, Training
from fedkin.results.store import equal

LR, EPOCHS, BATCH, ROUNDS = 0.1, 2, 8, 3


@pytest.fixture(scope="module")
def fed():
    return fedkin.federate("digits", partition="dirichlet", clients=6, alpha=0.5, samples_per_client=50, seed=3)


def run(method, fed, **changes):
    settings = {"rounds": ROUNDS, "lr": LR, "epochs": EPOCHS, "batch_size": BATCH, "seed": 5, "engine": "serial"}
    return fedkin.run(method, fed, **{**settings, **changes})


class Plain:
    """The papers' algorithms in ordinary PyTorch: a module, torch.optim.SGD, state dicts."""

    def __init__(self, fed, seed=5):
        self.fed, self.seed = fed, seed
        self.module = maker("mlp", fed.shape, fed.classes, seed, {})(0)
        self.net = Network(maker("mlp", fed.shape, fed.classes, seed, {})(0), fed.example)
        self.start = {k: v.clone() for k, v in self.module.state_dict().items()}

    def train(self, weights, client_id, round, *, mu=0.0, epochs=EPOCHS):
        self.module.load_state_dict(weights)
        training = Training(LR, epochs, BATCH)
        client = Client({}, self.fed.data(client_id), client_seed(self.seed, round, client_id), self.net, training)
        optimizer = torch.optim.SGD(self.module.parameters(), lr=LR)
        center = [p.detach().clone() for p in self.module.parameters()]
        for epoch in range(epochs):
            for x, y in batches(client, epoch=epoch):
                optimizer.zero_grad()
                loss = F.cross_entropy(self.module(x), y)
                proximal = sum(((p - c) ** 2).sum() for p, c in zip(self.module.parameters(), center))
                (loss + mu / 2 * proximal).backward()  # FedProx eq. (2)
                optimizer.step()
        return {k: v.clone() for k, v in self.module.state_dict().items()}

    def row(self, weights):
        return self.net.layout.flatten(weights)

    def fedavg(self, rounds, *, mu=0.0):
        weights = self.start
        for round in range(1, rounds + 1):
            trained = [self.train(weights, k, round, mu=mu) for k in range(len(self.fed))]
            n = [len(s.train) for s in self.fed.splits]
            weights = {name: sum(nk * w[name] for nk, w in zip(n, trained)) / sum(n) for name in weights}
        return weights


def test_fedavg_is_mcmahans_algorithm(fed):
    got = run(FedAvg(), fed)
    plain = Plain(fed)
    want = plain.row(plain.fedavg(ROUNDS))
    assert torch.allclose(got.state["model"], want, atol=1e-5)
    assert not torch.allclose(got.state["model"], plain.row(plain.start), atol=1e-2)
    received = got.history.values("received", round=ROUNDS)
    for client, value in received.items():
        assert value == pytest.approx(evaluate(plain.net, want, fed.test(client))[0])


@pytest.mark.parametrize("mu", [0.1, 1.0])
def test_fedprox_is_lis_algorithm(fed, mu):
    got = run(FedProx(mu=mu), fed)
    plain = Plain(fed)
    assert torch.allclose(got.state["model"], plain.row(plain.fedavg(ROUNDS, mu=mu)), atol=1e-5)
    assert not torch.allclose(got.state["model"], run(FedAvg(), fed).state["model"], atol=1e-3)


def test_local_is_each_client_alone(fed):
    got = run(Local(), fed)
    plain = Plain(fed)
    for client in range(len(fed)):
        weights = plain.start
        for round in range(1, ROUNDS + 1):
            weights = plain.train(weights, client, round)
        want = evaluate(plain.net, plain.row(weights), fed.test(client))
        assert got.history.values("personal", round=ROUNDS)[client] == pytest.approx(want[0])
        assert got.history.values("personal_loss", round=ROUNDS)[client] == pytest.approx(want[1], rel=1e-4)
    assert got.summary["bytes_down"] == got.summary["bytes_up"] == 0
    assert "received" not in got.summary


def test_fine_tuning_starts_from_the_received_model(fed):
    got = run(FedAvg(fine_tune=True), fed)
    plain = Plain(fed)
    weights = plain.fedavg(ROUNDS)
    for client in range(len(fed)):
        tuned = plain.row(plain.train(weights, client, ROUNDS + 1))
        want = evaluate(plain.net, tuned, fed.test(client))
        assert got.history.values("personal_loss", round=ROUNDS)[client] == pytest.approx(want[1], rel=1e-4)
    assert equal(got.state, run(FedAvg(), fed).state), "fine-tuning must not touch the federation"
    longer = run(FedAvg(fine_tune=True, fine_tune_epochs=5), fed)
    tuned = plain.row(plain.train(weights, 0, ROUNDS + 1, epochs=5))
    want = evaluate(plain.net, tuned, fed.test(0))[1]
    assert longer.history.values("personal_loss", round=ROUNDS)[0] == pytest.approx(want, rel=1e-4)


# ---- reductions and properties of the spec
def test_fedprox_without_its_term_is_fedavg_to_the_bit(fed):
    assert equal(run(FedProx(mu=0.0), fed).state["model"], run(FedAvg(), fed).state["model"])


def test_one_client_of_fedavg_is_local(fed):
    one = fedkin.federate("digits", partition="iid", clients=1, samples_per_client=60)
    avg, local = run(FedAvg(), one), run(Local(), one)
    a, b = avg.history.values("personal_loss", round=ROUNDS), local.history.values("personal_loss", round=ROUNDS)
    assert a == b


def test_one_full_batch_step_does_not_feel_the_proximal_term(fed):
    whole = {"rounds": 1, "epochs": 1, "batch_size": 1000}
    a, b = run(FedProx(mu=7.0), fed, **whole), run(FedAvg(), fed, **whole)
    assert torch.allclose(a.state["model"], b.state["model"], atol=1e-7)


def test_one_full_batch_step_of_fedavg_is_central_gradient_descent(fed):
    got = run(FedAvg(), fed, rounds=1, epochs=1, batch_size=1000).state["model"]
    plain = Plain(fed)
    rows = [fed.data(c) for c in range(len(fed))]
    x, y = torch.cat([r.x for r in rows]), torch.cat([r.y for r in rows])
    gradient = torch.autograd.grad(F.cross_entropy(plain.module(x), y), list(plain.module.parameters()))
    want = plain.row(plain.start) - LR * torch.cat([g.reshape(-1) for g in gradient])
    assert torch.allclose(got, want, atol=1e-6)


def test_a_strong_proximal_term_holds_clients_at_the_center(fed):
    near = run(FedProx(mu=9.0), fed, rounds=1).state["model"] - Plain(fed).net.initial
    far = run(FedAvg(), fed, rounds=1).state["model"] - Plain(fed).net.initial
    assert near.norm() < 0.5 * far.norm()


def test_clients_of_local_are_independent(fed):
    """Another client's data does not change mine by a bit."""
    arrays = fed.arrays
    x = arrays.x.copy()
    x[fed.splits[2].train] = 7
    other = fedkin.Federation(
        fedkin.Arrays(x, arrays.y, 10, image=True, mean=arrays.mean, std=arrays.std), fed.partition, fed.splits
    )
    a = run(Local(), fed).history.values("personal_loss", round=ROUNDS)
    b = run(Local(), other, model="mlp").history.values("personal_loss", round=ROUNDS)
    assert {c for c in a if a[c] != b[c]} == {2}


def test_local_trains_everybody_whatever_the_participation(fed):
    result = run(Local(), fed, participation=0.5)
    assert {record.client for record in result.history.select("flops") if record.round == 1} == set(range(6))
    fewer = run(Local(everyone=False), fed, participation=0.5)
    assert len({record.client for record in fewer.history.select("flops") if record.round == 1}) == 3


def test_stragglers_do_less_and_are_kept(fed):
    slow = run(FedProx(stragglers=1.0), fed, epochs=5)
    full = run(FedProx(), fed, epochs=5)
    for client in range(6):
        work = [record.value for record in slow.history.select("flops") if record.client == client]
        most = [record.value for record in full.history.select("flops") if record.client == client]
        assert all(0 < w < m for w, m in zip(work, most))
    assert not list(slow.history.select("dropped"))
    share = slow.state["share"]
    n = torch.tensor([float(len(s.train)) for s in fed.splits])
    assert torch.allclose(share, n / n.sum()), "a straggler keeps its weight n_k"


def test_stragglers_that_cannot_be_slow_are_refused(fed):
    with pytest.raises(ValueError, match="epochs of at least 2"):
        run(FedProx(stragglers=0.5), fed, epochs=1)


def test_sampling_by_size_draws_by_size_and_takes_the_plain_mean(fed):
    from fedkin.protocol import Server

    n = torch.tensor([1, 1, 8])
    server = Server(torch.arange(3), n, 10, 0, 1.0, Training(), None, lambda k: torch.zeros(2))  # type: ignore[arg-type]
    method = FedProx(sampling="size")
    drawn = np.concatenate([method.select({}, server, r).numpy() for r in range(2000)])
    assert np.bincount(drawn, minlength=3) / len(drawn) == pytest.approx([0.1, 0.1, 0.8], abs=0.02)
    result = run(method, fed, rounds=1, participation=1.0)
    assert result.state["share"].sum() == pytest.approx(1)
    sixths = result.state["share"] * 6
    assert torch.allclose(sixths, sixths.round(), atol=1e-5), "each of the six draws counts one sixth"


def test_bytes_are_those_of_the_models(fed):
    result = run(FedAvg(), fed, participation=0.5)
    size = 4 * result.state["model"].numel()
    assert result.summary["bytes_down"] == result.summary["bytes_up"] == ROUNDS * 3 * size


def test_batch_norm_statistics_are_averaged_and_counters_are_not(fed):
    from torch import nn

    def make():
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))

    result = run(FedAvg(), fed, model=make, rounds=1)
    net = Network(make(), fed.example)
    tensors = net.layout.tensors(result.state["model"])
    assert "2.num_batches_tracked" not in tensors
    assert not torch.equal(tensors["2.running_mean"], torch.zeros(8))
