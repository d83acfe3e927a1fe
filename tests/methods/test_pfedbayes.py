"""pFedBayes with autograd and Adam written out, the Gaussians' divergence, and the ends of its parameters."""

from __future__ import annotations

import pytest
import torch
from plain_baselines import a_client, federation, isolated, losses, network, run, sizes, survives
from torch.func import functional_call
from torch.nn import functional as F

import fedkin
from fedkin.client.evaluate import evaluate
from fedkin.client.training import batches
from fedkin.methods.pfedbayes import PFedBayes, kl_gradient, kl_gradient_other
from fedkin.protocol import Message

RATE = 0.01


class Adam:
    """Kingma and Ba's algorithm 1."""

    def __init__(self, *values):
        self.values = values
        self.m, self.v = [torch.zeros_like(v) for v in values], [torch.zeros_like(v) for v in values]
        self.t = 0

    @torch.no_grad()
    def step(self, slopes):
        self.t += 1
        for value, g, m, v in zip(self.values, slopes, self.m, self.v):
            m.mul_(0.9).add_(0.1 * g)
            v.mul_(0.999).add_(0.001 * g**2)
            value -= RATE * (m / (1 - 0.9**self.t)) / ((v / (1 - 0.999**self.t)).sqrt() + 1e-8)


def divergence(m1, r1, m2, r2):
    """Σ log(s2/s1) + (s1² + (m1 − m2)²) / 2 s2² − 1/2, in double."""
    s1, s2 = F.softplus(r1.double()), F.softplus(r2.double())
    return ((s2 / s1).log() + (s1**2 + (m1.double() - m2.double()) ** 2) / (2 * s2**2) - 0.5).sum()


def paper(rounds, *, zeta, beta, updates, weights, keep):
    net = network()
    pieces, count = net.layout.pieces, net.layout.parameters
    w = [net.initial.clone(), torch.full((count,), -2.5)]
    q, kept = {}, {}
    for round in range(1, rounds + 1):
        answers = []
        for i in range(6):
            client = a_client(i, round=round, net=net)
            mean, rho = (v.clone().requires_grad_() for v in q.get(i, w))
            local = [v.clone().requires_grad_() for v in w]
            own, theirs = Adam(mean, rho), Adam(*local)
            if i in kept:  # moments go on, values are this round's
                for new, old in zip((own, theirs), kept[i]):
                    new.m, new.v, new.t = old.m, old.v, old.t
            draw = torch.Generator().manual_seed(client.seed)
            share = zeta / -(-len(client.data.y) // 8)
            for epoch in range(2):
                for x, y in batches(client, epoch=epoch):
                    for _ in range(updates):
                        theta = mean + F.softplus(rho) * torch.randn(count, generator=draw)
                        named = {p.name: theta[p.start : p.stop].view(p.shape) for p in pieces}
                        likelihood = -F.cross_entropy(functional_call(net.module, named, (x,)), y, reduction="sum")
                        loss = -likelihood + share * divergence(mean, rho, *[v.detach() for v in local])
                        own.step(torch.autograd.grad(loss, [mean, rho]))
                    loss = share * divergence(mean.detach(), rho.detach(), *local)
                    theirs.step(torch.autograd.grad(loss, local))
            q[i] = [mean.detach(), rho.detach()]
            kept |= {i: (own, theirs)} if keep else {}
            answers.append([v.detach() for v in local])
        means = [sum(g * a[k] for g, a in zip(weights, answers)) / sum(weights) for k in (0, 1)]
        w = [(1 - beta) * old + beta * new for old, new in zip(w, means)]
    return w, q


@pytest.mark.parametrize(
    ("zeta", "beta", "updates", "weighting", "keep"), [(10.0, 1.0, 1, "equal", True), (1.0, 0.5, 2, "size", False)]
)
def test_it_is_the_papers_algorithm(zeta, beta, updates, weighting, keep):
    method = PFedBayes(
        zeta=zeta, rho=-2.5, beta=beta, updates=updates, weighting=weighting, adam_lr=RATE, keep_adam=keep
    )
    got = run(method, rounds=2)
    weights = [1.0] * 6 if weighting == "equal" else sizes().tolist()
    w, q = paper(2, zeta=zeta, beta=beta, updates=updates, weights=weights, keep=keep)
    # Adam divides by the gradient's size: numbers whose gradient is nearly 0 take steps of either sign
    for mine, want, start in ((got.state["model"], w[0], network().initial), (got.state["rho"], w[1], -2.5)):
        assert (mine - want).norm() < 0.02 * (want - start).norm()
    for i in range(6):
        want = evaluate(network(), q[i][0], federation().test(i))[1]
        assert losses(got, 2)[i] == pytest.approx(want, rel=0.01), "the network of q_i's means"
    count = network().layout.size
    assert got.summary["bytes_up"] == got.summary["bytes_down"] == 2 * 6 * 2 * 4 * count


def test_divergence_and_its_gradients():
    torch.manual_seed(0)
    m1, r1, m2, r2 = (torch.randn(9, dtype=torch.double, requires_grad=True) for _ in range(4))
    value = divergence(m1, r1, m2, r2)
    normal = torch.distributions.Normal
    want = torch.distributions.kl_divergence(normal(m1, F.softplus(r1)), normal(m2, F.softplus(r2))).sum()
    assert value.item() == pytest.approx(want.item())
    assert value > 0
    assert value.item() != pytest.approx(divergence(m2, r2, m1, r1).item())
    assert divergence(m1, r1, m1, r1).item() == pytest.approx(0, abs=1e-12)
    slopes = torch.autograd.grad(value, [m1, r1, m2, r2])
    s1, s2 = F.softplus(r1), F.softplus(r2)
    for got, want, rho in (
        (kl_gradient(m1, s1, m2, s2), slopes[:2], r1),
        (kl_gradient_other(m1, s1, m2, s2), slopes[2:], r2),
    ):
        assert torch.allclose(got[0], want[0])
        assert torch.allclose(got[1] * torch.sigmoid(rho), want[1]), "dσ/dρ is the sigmoid"
    for gradient in (kl_gradient, kl_gradient_other):
        assert all(bool((g == 0).all()) for g in gradient(m1, s1, m1, s1)), "q = w: exactly zero, or Adam would step"


def test_the_minimizer_over_w_is_q():
    torch.manual_seed(1)
    mean, rho, w_mean, w_rho = (torch.randn(5, dtype=torch.double) for _ in range(4))
    for _ in range(4000):
        a, b = kl_gradient_other(mean, F.softplus(rho), w_mean, F.softplus(w_rho))
        w_mean, w_rho = w_mean - 0.05 * a, w_rho - 0.05 * b * torch.sigmoid(w_rho)
    assert torch.allclose(w_mean, mean, atol=1e-3)
    assert torch.allclose(w_rho, rho, atol=1e-2)


def local(method, **training):
    net = network()
    sent = Message(shared=(net.initial.clone(), torch.full((net.layout.parameters,), -2.5)))
    return method.local(a_client(0, net=net, **training), sent), sent


def test_without_divergence_the_global_one_never_moves():
    done, sent = local(PFedBayes(zeta=0.0))
    assert torch.equal(done.body[0], sent.shared[0])
    assert torch.equal(done.body[1], sent.shared[1])
    assert not torch.equal(done.state["model"], sent.shared[0]), "q_i learns alone"


def test_without_noise_it_is_a_plain_network_and_rho_feels_no_data():
    done, sent = local(PFedBayes(noise=0.0, zeta=0.0))
    assert torch.equal(done.state["rho"], sent.shared[1])
    client = a_client(0, state=done.state)
    method = PFedBayes(noise=0.0, samples=3)
    model = method.personal(client, sent, lambda: None)
    client.net.load(done.state["model"])
    client.net.eval()
    assert torch.allclose(
        F.softmax(method.predict(client, model, client.data.x), 1), F.softmax(client.net(client.data.x), 1), atol=1e-6
    )


def test_drawn_networks_average_their_probabilities():
    client = a_client(0)
    method = PFedBayes(samples=4)
    sent = Message(shared=(client.net.initial.clone(), torch.full((client.net.layout.parameters,), -2.5)))
    drawn = method.personal(client, sent, lambda: None)["models"]
    assert 0.06 < float((drawn - client.net.initial).std()) < 0.1, "softplus(−2.5) = 0.079"
    each = []
    for row in drawn:
        client.net.load(row)
        each.append(F.softmax(client.net(client.data.x), 1))
    got = F.softmax(method.predict(client, {"models": drawn}, client.data.x), 1)
    assert torch.allclose(got, sum(each) / 4, atol=1e-5)


def test_it_learns_with_its_defaults():
    """Twenty rounds on digits: better than local training, which it was not with σ = 0.08 and one update a batch."""
    fed = fedkin.federate("digits", partition="dirichlet", clients=10, samples_per_client=80, seed=0)
    accuracy = {}
    for name in ("pfedbayes", "local"):
        result = fedkin.run(name, fed, rounds=15, engine="serial", evaluate_every=0)
        values = result.history.values("personal", round=15).values()
        accuracy[name] = sum(values) / len(values)
    assert accuracy["pfedbayes"] > accuracy["local"]


def test_faults_are_named():
    with pytest.raises(ValueError, match="updates=0 must be at least 1"):
        PFedBayes(updates=0)


def test_it_survives(tmp_path):
    survives(PFedBayes(adam_lr=RATE), tmp_path)


def test_clients_states_are_their_own():
    isolated(PFedBayes())
