"""FedRoD in plain loops (both variants), its balanced loss, and who is trained by which loss."""

from __future__ import annotations

import pytest
import torch
from plain_baselines import LR, a_client, federation, isolated, losses, message, network, run, sizes, survives
from torch import nn
from torch.nn import functional as F

from fedkin.client.training import batches
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.fedrod import FedRoD, frequencies, linear_head
from fedkin.protocol import Message


def made(hyper, shares, hidden, head):
    """The hypernetwork as an nn.Module, from its flat numbers."""
    net = nn.Sequential(nn.Linear(10, hidden), nn.ReLU(), nn.Linear(hidden, head))
    nn.utils.vector_to_parameters(hyper.clone(), net.parameters())
    return net, shares


def paper(rounds, *, gamma, start="zero", hyper=None, hidden=4):
    net = network()
    module = net.module
    count = 10 * 16 + 10  # the head: weight and bias
    model, phis = net.initial.clone(), {}
    n = sizes()
    for round in range(1, rounds + 1):
        answers, hypers = [], []
        for i in range(6):
            client = a_client(i, round=round, net=net)
            counts = torch.tensor([float((client.data.y == c).sum()) for c in range(10)])
            net.load(model)
            net.train()
            phi = phis.get(i, torch.zeros(count) if start == "zero" else model[-count:]).clone().requires_grad_()
            if hyper is not None:
                maker, a = made(hyper, counts / counts.sum(), hidden, count)
            for epoch in range(2):
                for x, y in batches(client, epoch=epoch):
                    z = torch.relu(module.fc1(x.flatten(1)))
                    g = module.fc2(z)
                    balanced = torch.zeros(())
                    for row, label in zip(g, y):  # −log n_y exp(g_y) / Σ_c n_c exp(g_c)
                        weight = counts**gamma
                        balanced = balanced - (weight[label] * row[label].exp() / (weight * row.exp()).sum()).log()
                    slopes = torch.autograd.grad(balanced / len(y), list(module.parameters()))
                    head = phi if hyper is None else maker(a)
                    both = g.detach() + z.detach() @ head[:160].view(10, 16).t() + head[160:]
                    own = [phi] if hyper is None else list(maker.parameters())
                    own_slopes = torch.autograd.grad(F.cross_entropy(both, y), own)
                    with torch.no_grad():
                        for p, s in [*zip(module.parameters(), slopes), *zip(own, own_slopes)]:
                            p -= LR * s
            answers.append(net.vector())
            phis[i] = phi.detach()
            if hyper is not None:
                hypers.append(nn.utils.parameters_to_vector(maker.parameters()).detach())
        model = sum(k * w for k, w in zip(n, answers)).div(n.sum()).float()
        if hyper is not None:
            hyper = sum(k * w for k, w in zip(n, hypers)).div(n.sum()).float()
    return model, phis, hyper


def expected(model, phi, i):
    net = network()
    net.load(model)
    x, y = federation().test(i)
    with torch.no_grad():
        z = torch.relu(net.module.fc1(x.flatten(1)))
        return float(F.cross_entropy(net.module.fc2(z) + z @ phi[:160].view(10, 16).t() + phi[160:], y))


@pytest.mark.parametrize(("gamma", "start"), [(1.0, "zero"), (0.5, "generic")])
def test_it_is_the_papers_algorithm(gamma, start):
    got = run(FedRoD(gamma=gamma, start=start))
    model, phis, _ = paper(3, gamma=gamma, start=start)
    assert torch.allclose(got.state["model"], model, atol=1e-5)
    for i in range(6):
        assert losses(got)[i] == pytest.approx(expected(model, phis[i], i), rel=1e-3)
    generic = got.history.values("received_loss", round=3)
    assert generic[0] == pytest.approx(expected(model, torch.zeros(170), 0), rel=1e-3)


def test_the_hypernetwork_variant():
    method = FedRoD(hyper=True, hidden=4)
    begin = run(method, rounds=1, lr=1e-30).state["hyper"]
    got = run(method)
    model, _, hyper = paper(3, gamma=1.0, hyper=begin.clone())
    assert torch.allclose(got.state["model"], model, atol=1e-5)
    assert torch.allclose(got.state["hyper"], hyper, atol=1e-5)
    assert not torch.allclose(hyper, begin, atol=1e-3)
    maker, a = made(hyper, frequencies(federation().data(2)), 4, 170)
    assert losses(got)[2] == pytest.approx(expected(model, maker(a).detach(), 2), rel=1e-3)
    size = 4 * (len(model) + len(hyper))
    assert got.summary["bytes_up"] == got.summary["bytes_down"] == 3 * 6 * size


def test_without_balance_the_generic_model_is_fedavgs():
    a, b = run(FedRoD(gamma=0.0)), run(FedAvg())
    assert torch.allclose(a.state["model"], b.state["model"], atol=1e-5)
    for i, value in b.history.values("personal_loss", round=3).items():
        assert a.history.values("received_loss", round=3)[i] == pytest.approx(value, rel=1e-4)
    assert losses(a) != losses(b), "the personal heads have learned"


def test_balanced_softmax_of_uniform_counts_is_cross_entropy_and_scale_does_not_matter():
    logits, y = torch.randn(7, 10), torch.arange(7)
    assert torch.allclose(F.cross_entropy(logits + torch.full((10,), 0.1).log(), y), F.cross_entropy(logits, y))
    data = federation().data(1)
    double = type(data)(
        lambda: type(data.train)(data.x.repeat(2, 1, 1, 1), data.y.repeat(2)), lambda: data.validation, 10
    )
    assert torch.equal(frequencies(data), frequencies(double))
    assert min(float(frequencies(federation().data(i)).min()) for i in range(6)) == 0.0, (
        "a class is absent here, and the runs above stay finite"
    )


@pytest.mark.parametrize("hyper", [False, True])
def test_the_personal_loss_trains_the_personal_part_alone(hyper):
    """The generic model comes back the same to the bit, whatever φ a client has."""
    method = FedRoD(hyper=hyper)
    row = network().initial
    extra = torch.randn(10 * 32 + 32 + 170 * 33, generator=torch.Generator().manual_seed(0))
    back = [
        method.local(a_client(state={"phi": k * torch.ones(170)}), Message((row, k * extra) if hyper else (row,))).body[
            0
        ]
        for k in (0.0, 0.1)
    ]
    assert torch.equal(*back)


def test_phi_stays_and_a_zero_phi_is_the_generic_model():
    got = run(FedRoD(), rounds=1)
    assert set(got.state) == {"model", "share"}
    assert got.summary["bytes_up"] == 6 * 4 * network().layout.size
    client = a_client()
    method, row = FedRoD(), client.net.initial
    model = method.personal(client, message(row), lambda: None)
    client.net.load(row)
    assert torch.equal(method.predict(client, model, client.data.x), client.net(client.data.x))


def test_it_needs_a_linear_head():
    layout = network().layout
    weight, bias = linear_head(layout, torch.arange(170.0))
    assert weight.shape == (10, 16)
    assert bias.tolist() == list(range(160, 170))
    with pytest.raises(ValueError, match="FedRoD needs a linear head; layer '2'"):
        run(FedRoD(), model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10)), head="2",
            model_options={})  # fmt: skip
    with pytest.raises(ValueError, match="gamma=-1"):
        FedRoD(gamma=-1)


@pytest.mark.parametrize("hyper", [False, True])
def test_it_survives(tmp_path, hyper):
    survives(FedRoD(hyper=hyper, hidden=3), tmp_path)


def test_clients_states_are_their_own():
    isolated(FedRoD())
