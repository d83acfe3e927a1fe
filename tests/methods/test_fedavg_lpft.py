"""FedAvg with LP-FT in plain loops, and its reductions to FedAvg-FT and to a linear probe."""

from __future__ import annotations

import pytest
import torch
from plain_baselines import LR, a_client, federation, gradient, isolated, losses, message, network, run, sizes, survives
from plain_parts import BODY, HEAD, frozen_network

from fedkin.client.evaluate import evaluate
from fedkin.client.training import batches
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.fedavg_lpft import FedAvgLPFT


def train(net, client, row, epochs, held=None):
    for epoch in epochs:
        for x, y in batches(client, epoch=epoch):
            slope = gradient(net, row, x, y)
            if held is not None:
                slope[held] = 0
            row = row - LR * slope
    return row


@pytest.mark.parametrize(("probe", "tune"), [(5, 1), (1, 2), (2, 0)])
def test_it_is_the_papers_algorithm(probe, tune):
    got = run(FedAvgLPFT(probe_epochs=probe, tune_epochs=tune))
    net, n = network(), sizes()
    model = net.initial
    for round in (1, 2, 3):
        answers = [train(net, a_client(i, round=round, net=net), model, range(2)) for i in range(6)]
        model = (sum(k * w for k, w in zip(n, answers)) / n.sum()).float()
    assert torch.allclose(got.state["model"], model, atol=1e-5)
    for i in range(6):
        client = a_client(i, round=4, net=net)
        probed = train(net, client, model, range(probe), BODY)
        tuned = train(net, client, probed, range(probe, probe + tune))
        assert losses(got)[i] == pytest.approx(evaluate(net, tuned, federation().test(i))[1], rel=1e-3)


def test_without_the_probe_it_is_fedavg_ft():
    a, b = run(FedAvgLPFT(probe_epochs=0, tune_epochs=2)), run(FedAvg(fine_tune=True))
    assert torch.equal(a.state["model"], b.state["model"])
    assert losses(a) == losses(b)


def test_without_both_it_is_fedavg():
    assert losses(run(FedAvgLPFT(probe_epochs=0, tune_epochs=0))) == losses(run(FedAvg()))


def test_the_probe_moves_the_head_alone():
    client = a_client(momentum=0.9, weight_decay=0.1)
    row = client.net.initial
    got = FedAvgLPFT(tune_epochs=0).personal(client, message(row), lambda: None)
    assert torch.equal(got[BODY], row[BODY])
    assert not torch.equal(got[HEAD], row[HEAD])


def test_frozen_parameters_stay_frozen():
    net = frozen_network()
    before = net.layout.tensors(net.initial)
    got = net.layout.tensors(FedAvgLPFT().personal(a_client(net=net), message(net.initial), lambda: None))
    assert all(torch.equal(got[name], before[name]) for name in ("1.weight", "1.bias") if name in got)
    assert not torch.equal(got["3.weight"], before["3.weight"])


def test_faults_are_named():
    with pytest.raises(ValueError, match="probe_epochs=-1 must be at least 0"):
        FedAvgLPFT(probe_epochs=-1)


def test_it_survives(tmp_path):
    survives(FedAvgLPFT(), tmp_path)


def test_clients_are_alone_in_tuning():
    isolated(FedAvgLPFT())
