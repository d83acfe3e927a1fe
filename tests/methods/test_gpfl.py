"""GPFL in plain loops, its valve, and what guides what."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from plain_baselines import SEED, a_client, isolated, losses, network, run, sizes, survives
from plain_parts import BODY, HEAD, descend, feature, keeps_frozen, loaded, loss_on_test, mean_of
from torch import nn
from torch.nn import functional as F

from fedkin.client.training import batches
from fedkin.methods.gpfl import GPFL, condition, opened
from fedkin.protocol import Message

HALF = 16 * 17 + 32


class Valve(nn.Module):
    """The CoV as an nn.Module, from its flat numbers."""

    def __init__(self, flat):
        super().__init__()
        self.gamma = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.LayerNorm(16))
        self.beta = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.LayerNorm(16))
        nn.utils.vector_to_parameters(flat.clone(), self.parameters())

    def forward(self, f, given):
        return torch.relu((self.gamma(given) + 1) * f + self.beta(given))  # (2)


def start():
    rng = np.random.default_rng([SEED, 0, 0x5E21, 0x6F])
    parts = []
    for _ in range(2):
        parts += [rng.uniform(-1, 1, 16 * 17) / 4, np.ones(16), np.zeros(16)]
    embeddings = rng.normal(size=(10, 16))
    return torch.from_numpy(embeddings).float(), torch.from_numpy(np.concatenate(parts)).float()


def conditions(embeddings, y):
    g = sum(embeddings[u] for u in range(10)) / 10
    p = sum(float((y == u).float().mean()) * embeddings[u] for u in range(10)) / 10  # (1)
    return g, p


@pytest.mark.parametrize(("lam", "mu", "guidance"), [(0.01, 0.1, True), (0.5, 0.0, True), (0.01, 0.1, False)])
def test_it_is_the_papers_algorithm(lam, mu, guidance):
    got = run(GPFL(lam=lam, mu=mu, guidance=guidance))
    net, n = network(), sizes()
    body, heads = net.initial[BODY], dict.fromkeys(range(6), net.initial[HEAD])
    embeddings, valve = start()
    for round in (1, 2, 3):
        answers = []
        for i in range(6):
            client = a_client(i, round=round, net=net)
            module = loaded(net, torch.cat([body, heads[i]]))
            cov, own = Valve(valve), embeddings.clone().requires_grad_()
            g, p = conditions(embeddings, client.data.y)
            for epoch in range(2):
                for x, y in batches(client, epoch=epoch):
                    f = feature(module, x)
                    value = F.cross_entropy(module.fc2(cov(f, p)), y)  # (3)
                    if guidance:
                        for guided, label in zip(cov(f, g), y):
                            cosines = torch.stack([F.cosine_similarity(guided, e, dim=0) for e in own])
                            value = value - F.log_softmax(cosines, 0)[label] / len(y)  # (4)
                            value = value + lam * (guided - embeddings[label]).norm() / len(y)  # (5)
                    squares = (own**2).sum() + sum((v**2).sum() for v in cov.parameters())
                    value = value + mu / 2 * squares  # (6)
                    descend(value, [*module.parameters(), own, *cov.parameters()])
            row = net.vector()
            heads[i] = row[HEAD]
            answers.append((row[BODY], own.detach(), nn.utils.parameters_to_vector(cov.parameters()).detach()))
        body, embeddings, valve = (mean_of(part, n) for part in zip(*answers))
    assert torch.allclose(got.state["body"], body, atol=1e-4)
    assert torch.allclose(got.state["embeddings"], embeddings, atol=1e-4)
    assert torch.allclose(got.state["valve"], valve, atol=1e-4)
    cov = Valve(valve)
    for i in range(6):
        module = loaded(net, torch.cat([body, heads[i]]))
        p = conditions(embeddings, a_client(i).data.y)[1]
        want = loss_on_test(i, lambda x, m=module, p=p: m.fc2(cov(feature(m, x), p)))
        assert losses(got)[i] == pytest.approx(want, rel=1e-3)
    assert got.summary["bytes_up"] == got.summary["bytes_down"] == 3 * 6 * 4 * (len(body) + 160 + len(valve))


def test_a_closed_layer_norm_leaves_features_as_they_are():
    """γ = β = 0 where the layer norms are zero: the valve is the identity on non-negative features."""
    flat = torch.randn(2 * HALF, generator=torch.Generator().manual_seed(0))
    for half in flat.split(HALF):
        half[16 * 17 :] = 0
    f = torch.rand(4, 16)
    assert torch.allclose(opened(flat, f, torch.randn(16)), f)


def test_conditions_tell_clients_apart():
    embeddings = torch.eye(10, 16)
    a, b = (condition(a_client(i), embeddings) for i in (0, 1))
    assert float(a.sum()) == pytest.approx(0.1)
    assert not torch.allclose(a, b, atol=1e-3)


def test_without_guidance_embeddings_only_shrink():
    embeddings, valve = start()
    client = a_client()
    message = Message(shared=(client.net.initial[BODY], embeddings, valve))
    alone = GPFL(guidance=False, mu=0.0).local(client, message)
    assert torch.equal(alone.body[1], embeddings)
    assert not torch.equal(GPFL(mu=0.0).local(client, message).body[1], embeddings)


def test_frozen_parameters_stay_frozen():
    half = torch.cat([0.1 * torch.ones(72), torch.ones(8), torch.zeros(8)])
    keeps_frozen(
        GPFL(), lambda net: Message(shared=(net.initial[net.layout.body], torch.eye(10, 8), torch.cat([half, half])))
    )


def test_it_needs_a_linear_head():
    with pytest.raises(ValueError, match="GPFL needs a linear head with a bias"):
        run(GPFL(), model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias=False)), model_options={})


def test_faults_are_named():
    with pytest.raises(ValueError, match="mu=-1 must be at least 0"):
        GPFL(mu=-1)


def test_it_survives(tmp_path):
    survives(GPFL(), tmp_path)


def test_clients_heads_are_their_own():
    isolated(GPFL())
