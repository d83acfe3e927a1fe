"""APFL in plain loops, the gradients of its mixture, and its ends: FedAvg and Local."""

from __future__ import annotations

import pytest
import torch
from plain_baselines import LR, a_client, federation, gradient, isolated, losses, message, network, run, sizes, survives
from torch.func import functional_call
from torch.nn import functional as F

from fedkin.client.evaluate import evaluate
from fedkin.client.training import batches
from fedkin.methods.apfl import APFL
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.local import Local
from fedkin.results.store import equal


def slopes(net, alpha, v, w, x, y):
    """∂f(αv + (1 − α)w) / ∂v and / ∂α, by autograd through the mixture."""
    v, a = v.clone().requires_grad_(), torch.tensor(alpha).requires_grad_()
    bar = a * v + (1 - a) * w
    named = {p.name: bar[p.start : p.stop].view(p.shape) for p in net.layout.pieces}
    return torch.autograd.grad(F.cross_entropy(functional_call(net.module, named, (x,)), y), [v, a])


def paper(rounds, alpha, adaptive):
    net = network()
    model, own, alphas = net.initial.clone(), {}, {}
    n = sizes()
    for round in range(1, rounds + 1):
        answers = []
        for i in range(6):
            client = a_client(i, round=round, net=net)
            w, v, a = model.clone(), own.get(i, net.initial).clone(), alphas.get(i, alpha)
            for epoch in range(2):
                for k, (x, y) in enumerate(batches(client, epoch=epoch)):
                    by_v, by_alpha = slopes(net, a, v, w, x, y)
                    w, v = w - LR * gradient(net, w, x, y), v - LR * by_v
                    if adaptive and epoch == k == 0:
                        a = min(max(a - LR * float(by_alpha), 0.0), 1.0)
            answers.append(w)
            own[i], alphas[i] = v, a
        model = sum(k * w for k, w in zip(n, answers)).div(n.sum()).float()
    return model, own, alphas


@pytest.mark.parametrize("adaptive", [True, False])
def test_it_is_the_papers_algorithm(adaptive):
    got = run(APFL(alpha=0.4, adaptive=adaptive), lr=LR)
    model, own, alphas = paper(3, 0.4, adaptive)
    assert torch.allclose(got.state["model"], model, atol=1e-5)
    assert (len(set(alphas.values())) > 1) == adaptive
    for i in range(6):
        bar = alphas[i] * own[i] + (1 - alphas[i]) * model
        assert losses(got)[i] == pytest.approx(evaluate(network(), bar, federation().test(i))[1], rel=1e-3)


@pytest.mark.parametrize("extras", [{}, {"momentum": 0.9, "weight_decay": 0.01}])
def test_its_ends_are_fedavg_and_local(extras):
    fixed = {"adaptive": False}
    none, avg = run(APFL(alpha=0.0, **fixed), **extras), run(FedAvg(), **extras)
    assert equal(none.state, avg.state), "the global model is FedAvg's to the bit"
    assert losses(none) == losses(avg)
    assert losses(run(APFL(alpha=1.0, **fixed), **extras)) == losses(run(Local(), **extras))


def test_alpha_is_cut_to_its_interval():
    net = network()
    far = {"model": net.initial + 5.0, "alpha": 0.5}
    near = {"model": net.initial - 5.0, "alpha": 0.5}
    values = [
        APFL().local(a_client(0, net=net, state=state, lr=lr), message(net.initial)).state["alpha"]
        for state in (far, near)
        for lr in (1e-3, 10.0)
    ]
    assert all(0 <= a <= 1 for a in values)
    assert {0.0, 1.0} & set(values)


def test_the_own_model_is_not_overwritten_by_the_mixture():
    net = network()
    state = {"model": net.initial + 0.5, "alpha": 0.0}
    kept = APFL(adaptive=False).local(a_client(0, net=net, state=state), message(net.initial)).state["model"]
    assert torch.equal(kept, state["model"]), "α = 0: v has no gradient, and stays"


def test_faults_are_named():
    with pytest.raises(ValueError, match=r"alpha=1.5 must lie in \[0, 1\]"):
        APFL(alpha=1.5)


def test_it_survives(tmp_path):
    survives(APFL(), tmp_path)


def test_clients_states_are_their_own():
    isolated(APFL())
