"""Per-FedAvg in plain loops, its two meta-gradients on quadratics and against autograd, and its reduction to FedAvg."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from plain_baselines import (
    BATCH,
    EPOCHS,
    LR,
    a_client,
    federation,
    gradient,
    losses,
    message,
    network,
    run,
    smooth,
    survives,
)
from torch.nn import functional as F

from fedkin.client.evaluate import evaluate
from fedkin.client.steps import OTHER_EPOCHS
from fedkin.client.training import batches
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.perfedavg import PerFedAvg
from fedkin.protocol import Examples
from fedkin.results.store import equal

ALPHA, DELTA = 0.1, 0.05


def paper(rounds, variant):
    """Algorithm 1, one number of the row at a time where it can be."""
    net = network()
    model = net.initial.clone()
    for round in range(1, rounds + 1):
        answers = []
        for i in range(6):
            client = a_client(i, round=round, net=net)
            w = model.clone()
            for epoch in range(EPOCHS):
                three = [list(batches(client, epoch=epoch + k * OTHER_EPOCHS)) for k in (1, 0, 2)]
                for d, d1, d2 in zip(*three):
                    u = w - ALPHA * gradient(net, w, *d)
                    v = gradient(net, u, *d1)
                    if variant == "hf":
                        shift = DELTA * v / v.norm()
                        hv = gradient(net, w + shift, *d2) - gradient(net, w - shift, *d2)
                        v = v - ALPHA * hv / (2 * DELTA / v.norm())
                    w = w - LR * v
            answers.append(w)
        model = sum(answers) / len(answers)  # plain mean
    return model


@pytest.mark.parametrize("variant", ["fo", "hf"])
def test_it_is_the_papers_algorithm(variant):
    got = run(PerFedAvg(variant=variant, alpha=ALPHA, delta=DELTA))
    want = paper(3, variant)
    assert torch.allclose(got.state["model"], want, atol=2e-5)
    assert not torch.allclose(want, paper(3, "hf" if variant == "fo" else "fo"), atol=2e-4)
    net = network()
    client = a_client(0, round=4, net=net)
    d = next(batches(client, epoch=OTHER_EPOCHS))
    adapted = want - ALPHA * gradient(net, want, *d)  # one step on training examples, then test
    assert losses(got)[0] == pytest.approx(evaluate(net, adapted, federation().test(0))[1], rel=1e-3)
    received = got.history.values("received_loss", round=3)[0]
    assert received == pytest.approx(evaluate(net, want, federation().test(0))[1], rel=1e-3)


def test_so_many_steps():
    three, more = (run(PerFedAvg(steps=k), rounds=1, batch_size=1, evaluate_every=0) for k in (3, 6))
    work = [{r.client: r.value for r in h.history.select("flops")} for h in (three, more)]
    assert all(work[1][c] == pytest.approx(2 * work[0][c]) for c in work[0])


@pytest.mark.parametrize("variant", ["fo", "hf"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_alpha_zero_is_fedavg_to_the_bit(variant, momentum):
    method = PerFedAvg(variant=variant, alpha=0.0, weighting="size")
    extras = {"momentum": momentum, "weight_decay": 0.01}
    assert equal(run(method, **extras).state["model"], run(FedAvg(), **extras).state["model"])


def test_the_mean_is_plain():
    share = run(PerFedAvg(), rounds=1).state["share"]
    assert torch.allclose(share, torch.full((6,), 1 / 6))


class Quadratic:
    """f(w) = ½ (w − c)ᵀ H (w − c) in place of a network."""

    def __init__(self):
        torch.manual_seed(0)
        root = torch.randn(4, 4)
        self.hessian, self.center = root @ root.t() / 4, torch.randn(4)
        self.trainable, self.parameters = torch.zeros(4), []

    def gradient_vector(self, x, y, loss=None):
        return self.hessian @ (self.trainable - self.center)


@pytest.mark.parametrize("delta", [1e-2, 1.0, 50.0])
def test_hf_on_a_quadratic_is_exact_for_any_delta(delta):
    net, w, alpha = Quadratic(), torch.ones(4), 0.2
    client = SimpleNamespace(net=net)
    rows = Examples(torch.zeros(1), torch.zeros(1))
    h, c, eye = net.hessian, net.center, torch.eye(4)
    u = w - alpha * h @ (w - c)
    v = h @ (u - c)
    assert torch.allclose(v, h @ (eye - alpha * h) @ (w - c), atol=1e-5)
    hv = PerFedAvg(variant="hf", delta=delta)._curvature(client, w, v, rows)
    assert torch.allclose(v - alpha * hv, (eye - alpha * h) @ h @ (eye - alpha * h) @ (w - c), atol=1e-3)


def test_hf_approaches_the_exact_meta_gradient():
    net = smooth()
    x, y = a_client().data.x[:12], a_client().data.y[:12]
    module, row = net.module, net.initial
    v = torch.randn(net.layout.parameters, generator=torch.Generator().manual_seed(1))
    net.load(row)
    slopes = torch.autograd.grad(F.cross_entropy(module(x), y), list(module.parameters()), create_graph=True)
    product = torch.autograd.grad((torch.cat([s.reshape(-1) for s in slopes]) * v).sum(), list(module.parameters()))
    exact = torch.cat([p.reshape(-1) for p in product])

    def error(delta):
        got = PerFedAvg(variant="hf", delta=delta)._curvature(SimpleNamespace(net=net), row, v, Examples(x, y))
        return float((got - exact).norm() / exact.norm())

    assert error(1e-3) < 0.02 < error(30.0)


def test_a_vanishing_rate_leaves_the_model():
    net = network()
    client = a_client(0, net=net, lr=1e-30)
    start = net.initial.clone()
    for variant in ("fo", "hf"):
        assert torch.equal(PerFedAvg(variant=variant).local(client, message(start)).body[0], start)


def test_adaptation_has_no_effect_on_the_federation():
    assert equal(run(PerFedAvg(adapt_steps=5)).state, run(PerFedAvg(adapt_steps=0)).state)


def test_faults_are_named():
    with pytest.raises(ValueError, match="variant='so' must be fo or hf"):
        PerFedAvg(variant="so")
    with pytest.raises(ValueError, match="delta=0 must be above 0"):
        PerFedAvg(delta=0)


def test_it_survives(tmp_path):
    survives(PerFedAvg(variant="hf"), tmp_path)


def test_batches_of_the_three_streams_differ():
    client = a_client()
    firsts = [next(batches(client, epoch=k * OTHER_EPOCHS)).x for k in range(3)]
    assert len(firsts[0]) == BATCH
    assert not torch.equal(firsts[0], firsts[1])
    assert not torch.equal(firsts[1], firsts[2])
