"""Ditto in plain loops (its two models in turns, as the authors do), and its reductions to FedAvg and Local."""

from __future__ import annotations

import pytest
import torch
from plain_baselines import LR, a_client, federation, gradient, isolated, losses, message, network, run, sizes, survives

from fedkin.client.evaluate import evaluate
from fedkin.client.training import batches
from fedkin.methods.ditto import Ditto
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.local import Local
from fedkin.results.store import equal


def paper(rounds, lam, weights):
    """Algorithm 1; one step of w and one of v on each batch."""
    net = network()
    model, own = net.initial.clone(), {}
    for round in range(1, rounds + 1):
        answers = []
        for i in range(6):
            client = a_client(i, round=round, net=net)
            w, v = model.clone(), own.get(i, net.initial).clone()
            for epoch in range(2):
                for x, y in batches(client, epoch=epoch):
                    w = w - LR * gradient(net, w, x, y)
                    v = v - LR * (gradient(net, v, x, y) + lam * (v - model))
            answers.append(w)
            own[i] = v
        model = sum(g * (w - model) for g, w in zip(weights, answers)).div(sum(weights)).float() + model
    return model, own


@pytest.mark.parametrize("weighting", ["size", "equal"])
def test_it_is_the_papers_algorithm(weighting):
    got = run(Ditto(lam=0.7, weighting=weighting))
    model, own = paper(3, 0.7, sizes().tolist() if weighting == "size" else [1.0] * 6)
    assert torch.allclose(got.state["model"], model, atol=1e-5)
    for i in range(6):
        assert losses(got)[i] == pytest.approx(evaluate(network(), own[i], federation().test(i))[1], rel=1e-3)


def test_the_global_model_is_fedavgs_to_the_bit():
    assert equal(run(Ditto(lam=2.0), participation=0.5).state, run(FedAvg(), participation=0.5).state)


def test_without_its_term_the_personal_models_are_local_to_the_bit():
    assert losses(run(Ditto(lam=0.0))) == losses(run(Local()))
    apart = {"participation": 0.5}
    assert losses(run(Ditto(lam=0.0), **apart)) == losses(run(Local(everyone=False), **apart))


def test_the_term_has_a_gradient_towards_the_received_model():
    net = network()
    away = {"model": net.initial + 1.0}
    whole = {"epochs": 1, "batch_size": 1000}
    held, free = (
        Ditto(lam=lam).local(a_client(0, net=net, state=away, **whole), message(net.initial)).state["model"]
        for lam in (0.5, 0.0)
    )
    assert torch.allclose(held - free, torch.full_like(held, -LR * 0.5), atol=1e-5)


def test_personal_epochs_do_not_touch_the_global_model():
    a, b = run(Ditto(personal_epochs=4)), run(Ditto())
    assert equal(a.state, b.state)
    assert losses(a) != losses(b)


def test_faults_are_named():
    with pytest.raises(ValueError, match="lam=-1"):
        Ditto(lam=-1)


def test_it_survives(tmp_path):
    survives(Ditto(), tmp_path)


def test_clients_states_are_their_own():
    isolated(Ditto())
