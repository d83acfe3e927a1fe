"""FedDBE in plain loops, its reduction to FedAvg, and what each of its two terms does."""

from __future__ import annotations

import pytest
import torch
from plain_baselines import a_client, losses, network, run, sizes, survives
from plain_parts import descend, feature, keeps_frozen, loaded, loss_on_test, mean_of
from torch import nn
from torch.nn import functional as F

from fedkin.client.training import batches
from fedkin.methods import method
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.feddbe import FedDBE
from fedkin.protocol import Message


def train(net, client, model, memory, *, kappa, mu, consensus):
    module = loaded(net, model)
    memory = memory.clone().requires_grad_()
    running = None
    for epoch in range(2):
        for x, y in batches(client, epoch=epoch):
            z = feature(module, x)
            new = z.sum(0) / len(z)
            running = new if running is None else (1 - mu) * running.detach() + mu * new
            if consensus is None:
                descend(F.cross_entropy(module.fc2(z), y), list(module.parameters()))
                continue
            value = F.cross_entropy(module.fc2(z + memory), y) + kappa * ((running - consensus) ** 2).sum() / 16
            descend(value, [*module.parameters(), memory])
    return net.vector(), running.detach(), memory.detach()


@pytest.mark.parametrize(("kappa", "mu"), [(2.5, 1.0), (0.5, 0.3)])
def test_it_is_the_papers_algorithm(kappa, mu):
    got = run(FedDBE(kappa=kappa, mean_momentum=mu))
    net, n = network(), sizes()
    model, memories = net.initial.clone(), {i: torch.zeros(16) for i in range(6)}
    options = {"kappa": kappa, "mu": mu}
    first = [train(net, a_client(i, net=net), model, memories[i], consensus=None, **options)[1] for i in range(6)]
    consensus = mean_of(first, n)
    assert torch.allclose(got.state["consensus"], consensus, atol=1e-5)
    for round in (1, 2, 3):
        answers = []
        for i in range(6):
            client = a_client(i, round=round, net=net)
            trained, _, memories[i] = train(net, client, model, memories[i], consensus=consensus, **options)
            answers.append(trained)
        model = mean_of(answers, n)
    assert torch.allclose(got.state["model"], model, atol=1e-5)
    module = loaded(net, model)
    for i in range(6):
        want = loss_on_test(i, lambda x, i=i: module.fc2(feature(module, x) + memories[i]))
        assert losses(got)[i] == pytest.approx(want, rel=1e-3)
        generic = loss_on_test(i, module)
        assert got.history.values("received_loss", round=3)[i] == pytest.approx(generic, rel=1e-3)
    size = 4 * len(model)
    assert got.summary["bytes_up"] == 6 * (3 * size + 4 * 16)
    assert got.summary["bytes_down"] == 6 * (4 * size + 3 * 4 * 16)


def test_without_its_terms_it_is_fedavg():
    a, b = run(FedDBE(kappa=0.0, memory=False)), run(FedAvg())
    assert torch.allclose(a.state["model"], b.state["model"], atol=1e-5)
    for i, value in losses(b).items():
        assert losses(a)[i] == pytest.approx(value, rel=1e-4)


def test_the_regularizer_pulls_means_together():
    """A strong κ brings the clients' mean features nearer to the consensus than none."""
    apart = []
    for kappa in (0.0, 5.0):
        net = network()
        consensus = torch.full((16,), 0.3)
        reply = FedDBE(kappa=kappa).local(a_client(net=net), Message(shared=(net.initial, consensus)))
        module = loaded(net, reply.body[0])
        apart.append(float((feature(module, a_client().data.x).mean(0) - consensus).detach().norm()))
    assert apart[1] < 0.7 * apart[0]


def test_memory_stays_and_a_zero_memory_is_the_generic_model():
    client = a_client()
    method, row = FedDBE(), client.net.initial
    model = method.personal(client, Message(shared=(row,)), lambda: None)
    assert model["memory"].tolist() == [0.0] * 16
    client.net.load(row)
    assert torch.allclose(method.predict(client, model, client.data.x), client.net(client.data.x))
    reply = method.local(client, Message(shared=(row, torch.zeros(16))))
    assert [tuple(part.shape) for part in reply.body] == [tuple(row.shape)]
    assert reply.state["memory"].abs().sum() > 0


def test_frozen_parameters_stay_frozen():
    keeps_frozen(FedDBE(), lambda net: Message(shared=(net.initial, torch.zeros(8))))


@pytest.mark.parametrize("name", ["feddbe", "pfedfda", "floco", "fedcp", "gpfl"])
def test_a_head_that_does_not_give_the_scores_is_refused(name):
    """With a frozen last layer the head is an inner layer; these methods would train another model."""

    def make():
        module = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))
        module[3].requires_grad_(False)
        return module

    with pytest.raises(ValueError, match="needs a head that gives the scores of the 10 classes; layer '1' gives 12"):
        run(method(name), model=make, model_options={})


def test_faults_are_named():
    with pytest.raises(ValueError, match=r"mean_momentum=0.0 must lie in \(0, 1\]"):
        FedDBE(mean_momentum=0.0)


def test_it_survives(tmp_path):
    survives(FedDBE(), tmp_path)
