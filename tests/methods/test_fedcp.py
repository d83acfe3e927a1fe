"""FedCP in plain loops, and the properties of its policy and its discrepancy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from plain_baselines import SEED, a_client, isolated, losses, network, run, sizes, survives
from plain_parts import BODY, COUNT, HEAD, descend, feature, keeps_frozen, linear, loaded, loss_on_test, mean_of
from torch import nn
from torch.nn import functional as F

from fedkin.client.training import batches
from fedkin.maths.discrepancy import discrepancy
from fedkin.methods.fedcp import FedCP, separate
from fedkin.protocol import Message


def policy_module(flat):
    """The CPN as an nn.Module, from its flat numbers."""
    module = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.ReLU())
    nn.utils.vector_to_parameters(flat.clone(), module.parameters())
    return module


def logits_of(h, vector, policy, own, shared):
    a = policy(vector * h)
    first, second = a[:, :16].exp(), a[:, 16:].exp()
    r, s = first / (first + second), second / (first + second)  # (3)
    (w, b), (v, c) = linear(own), linear(shared)
    return (r * h) @ w.t() + b + (s * h) @ v.t() + c  # (4)


def vector_of(head):
    total = linear(head)[0].detach().sum(0)
    return total / total.norm()  # (1)


def mmd(x, y):
    """Pair by pair."""
    total = torch.zeros(())
    for width in (10, 15, 20, 50):
        for a, b, sign in ((x, x, 1), (y, y, 1), (x, y, -2)):
            for one in a:
                for two in b:
                    total = total + sign * torch.exp(-((one - two) ** 2).sum() / (2 * width)) / (len(a) * len(b))
    return total


@pytest.mark.parametrize(("lam", "mix"), [(0.5, 0.5), (0.0, 0.8)])
def test_it_is_the_papers_algorithm(lam, mix):
    got = run(FedCP(lam=lam, mix=mix), rounds=2)
    net, n = network(), sizes()
    first = np.random.default_rng([SEED, 0, 0x5E21, 0xC9]).uniform(-1, 1, 2 * 16 * 17) / 4
    model = net.initial.clone()
    policy = torch.cat([torch.from_numpy(first).float(), torch.ones(32), torch.zeros(32)])
    heads = dict.fromkeys(range(6), net.initial[HEAD])
    for round in (1, 2):
        answers, policies = [], []
        for i in range(6):
            client = a_client(i, round=round, net=net)
            module = loaded(net, model)
            with torch.no_grad():
                received = feature(module, client.data.x)
            where = {tuple(x.flatten().tolist()): k for k, x in enumerate(client.data.x)}
            cpn, own, vector = policy_module(policy), heads[i].clone().requires_grad_(), vector_of(heads[i])
            for epoch in range(2):
                for x, y in batches(client, epoch=epoch):
                    h = feature(module, x)
                    value = F.cross_entropy(logits_of(h, vector, cpn, own, model[HEAD]), y)
                    if lam:
                        target = received[[where[tuple(row.flatten().tolist())] for row in x]]
                        value = value + lam * mmd(h, target)  # (5)
                    descend(value, [*module.fc1.parameters(), own, *cpn.parameters()])
            heads[i] = own.detach()
            answers.append(torch.cat([net.vector()[BODY], mix * heads[i] + (1 - mix) * model[HEAD]]))  # (6)
            policies.append(nn.utils.parameters_to_vector(cpn.parameters()).detach())
        model, policy = mean_of(answers, n), mean_of(policies, n)
    assert torch.allclose(got.state["model"], model, atol=2e-5)
    assert torch.allclose(got.state["policy"], policy, atol=2e-5)
    module, cpn = loaded(net, model), policy_module(policy)
    for i in range(6):
        vector = vector_of(heads[i])
        want = loss_on_test(i, lambda x, i=i, v=vector: logits_of(feature(module, x), v, cpn, heads[i], model[HEAD]))
        assert losses(got, 2)[i] == pytest.approx(want, rel=1e-3)
    assert got.summary["bytes_up"] == got.summary["bytes_down"] == 2 * 6 * 4 * (len(model) + len(policy))


def test_the_policy_splits_features_without_loss():
    flat = torch.randn(2 * 16 * 17 + 64, generator=torch.Generator().manual_seed(0))
    condition = torch.randn(5, 16)
    r, s = separate(flat, condition, noise=False)
    assert torch.allclose(r + s, torch.ones(5, 16))
    assert r.min() >= 0
    assert r.std() > 0.01
    torch.manual_seed(1)
    a, b = separate(flat, condition, noise=True)
    assert torch.allclose(a + b, torch.ones(5, 16))
    assert not torch.allclose(a, r, atol=1e-3)


def test_equal_heads_make_the_policy_irrelevant():
    """W(r ⊙ h) + W(s ⊙ h) = Wh, with the bias twice."""
    client = a_client()
    method, row = FedCP(), client.net.initial
    policy = torch.randn(2 * 16 * 17 + 64, generator=torch.Generator().manual_seed(0))
    model = {"model": row, "policy": policy, "head": row[HEAD]}
    got = method.predict(client, model, client.data.x)
    client.net.load(row)
    assert torch.allclose(got, client.net(client.data.x) + linear(row[HEAD])[1], atol=1e-5)


def test_the_discrepancy():
    x, y = torch.randn(6, 3), torch.randn(4, 3)
    assert float(discrepancy(x, x)) == pytest.approx(0, abs=1e-5)
    assert float(discrepancy(x, y)) == pytest.approx(float(mmd(x, y)), abs=1e-5)
    assert discrepancy(x, y + 5) > discrepancy(x, y) > 0


def test_a_strong_lam_holds_features_at_the_received_ones():
    moved = []
    for lam in (0.0, 5.0):
        client = a_client(lr=0.01)
        row = client.net.initial
        policy = torch.cat(
            [0.1 * torch.randn(544, generator=torch.Generator().manual_seed(0)), torch.ones(32), torch.zeros(32)]
        )
        reply = FedCP(lam=lam).local(client, Message(shared=(row, policy)))
        with torch.no_grad():
            before, after = (feature(loaded(client.net, r), client.data.x) for r in (row, reply.body[0]))
        moved.append(float((before.mean(0) - after.mean(0)).norm()))
    assert moved[1] < moved[0]


def test_the_personal_head_stays():
    client = a_client()
    policy = torch.cat([torch.zeros(544), torch.ones(32), torch.zeros(32)])
    reply = FedCP(mix=0.0).local(client, Message(shared=(client.net.initial, policy)))
    assert torch.equal(reply.body[0][HEAD], client.net.initial[HEAD]), "mix = 0 sends the global head back"
    assert not torch.equal(reply.state["head"], client.net.initial[HEAD])
    assert len(reply.state["head"]) == COUNT


def test_frozen_parameters_stay_frozen():
    policy = torch.cat([0.1 * torch.ones(144), torch.ones(16), torch.zeros(16)])
    keeps_frozen(FedCP(), lambda net: Message(shared=(net.initial, policy)))


def test_it_needs_a_linear_head():
    with pytest.raises(ValueError, match="FedCP needs a linear head with a bias"):
        run(FedCP(), model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias=False)), model_options={})


def test_faults_are_named():
    with pytest.raises(ValueError, match=r"mix=2 must lie in \[0, 1\]"):
        FedCP(mix=2)


def test_it_survives(tmp_path):
    survives(FedCP(), tmp_path)


def test_clients_heads_are_their_own():
    isolated(FedCP())
