"""FedPer in plain loops, and its ends: FedAvg and Local, to the bit."""

from __future__ import annotations

import pytest
import torch
from plain_baselines import LR, a_client, federation, gradient, isolated, losses, message, network, run, sizes, survives
from torch import nn

from fedkin.client.evaluate import evaluate
from fedkin.client.training import batches
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.fedper import FedPer
from fedkin.methods.local import Local

BASE, OWN = slice(0, 64 * 16 + 16), slice(64 * 16 + 16, None)


def trained_row(net, client, row):
    for epoch in range(2):
        for x, y in batches(client, epoch=epoch):
            row = row - LR * gradient(net, row, x, y)
    return row


def paper(rounds):
    net = network()
    base, own = net.initial[BASE], {}
    n = sizes()
    for round in range(1, rounds + 1):
        answers = []
        for i in range(6):
            row = torch.cat([base, own.get(i, net.initial[OWN])])
            row = trained_row(net, a_client(i, round=round, net=net), row)
            own[i] = row[OWN]
            answers.append(row[BASE])
        base = sum(k * b for k, b in zip(n, answers)).div(n.sum()).float()
    return base, own


@pytest.mark.parametrize("use", ["received", "trained"])
def test_it_is_the_papers_algorithm(use):
    got = run(FedPer(use=use))
    base, own = paper(3)
    assert torch.allclose(got.state["base"], base, atol=1e-5)
    net = network()
    for i in range(6):
        row = torch.cat([base, own[i]])
        if use == "trained":
            row = trained_row(net, a_client(i, round=4, net=net), row)
        assert losses(got)[i] == pytest.approx(evaluate(net, row, federation().test(i))[1], rel=1e-3)
    assert got.summary["bytes_up"] == got.summary["bytes_down"] == 3 * 6 * 4 * (64 * 16 + 16), "heads never leave"


def test_without_personal_layers_it_is_fedavg_to_the_bit():
    a, b = run(FedPer(personal_layers=0), participation=0.5), run(FedAvg(), participation=0.5)
    assert torch.equal(a.state["base"], b.state["model"])
    assert losses(a) == losses(b)


def test_with_all_layers_personal_it_is_local_to_the_bit():
    a, b = run(FedPer(personal_layers=2)), run(Local())
    assert losses(a) == losses(b)
    assert a.summary["bytes_up"] == a.summary["bytes_down"] == 0


def test_layers_are_counted_back_from_the_head():
    def make():
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 10))

    result = run(FedPer(personal_layers=2), model=make, model_options={}, rounds=1)
    assert len(result.state["base"]) == 64 * 9 + 9, "the head and the batch norm, with its running means, stay"
    with pytest.raises(ValueError, match="5 layers were requested; this network has 3 up to its head: 1, 2, 4"):
        run(FedPer(personal_layers=5), model=make, model_options={})


def test_the_own_layers_come_back():
    net = network()
    state = {"layers": torch.arange(170.0)}
    row = FedPer().personal(a_client(0, net=net, state=state), message(net.initial[BASE]), lambda: None)
    assert torch.equal(row[OWN], state["layers"])
    assert torch.equal(row[BASE], net.initial[BASE])


def test_it_survives(tmp_path):
    survives(FedPer(), tmp_path)


def test_clients_layers_are_their_own():
    isolated(FedPer())
