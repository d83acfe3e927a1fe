"""FedNova against its paper: in plain loops, at its fixed point, and where all clients work alike."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedkin
from fedkin.client.evaluate import gradient
from fedkin.client.training import batches
from fedkin.engine.runner import client_seed
from fedkin.maths.steps import accumulation, local_steps
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.fednova import FedNova
from fedkin.methods.fedprox import FedProx
from fedkin.models.build import maker
from fedkin.models.network import Network
from fedkin.protocol import Client, Data, Examples, Replies, Training
from fedkin.results.store import equal

SETTINGS = {"rounds": 3, "lr": 0.1, "epochs": 2, "batch_size": 8, "seed": 5, "engine": "serial", "model": "mlp"}


def cut(sizes):
    whole = fedkin.federate("digits", partition="dirichlet", clients=5, alpha=0.5, samples_per_client=80, seed=3)
    splits = tuple(replace(split, train=split.train[:size]) for split, size in zip(whole.splits, sizes))
    return fedkin.Federation(whole.arrays, whole.partition, splits)


@pytest.fixture(scope="module")
def fed():
    return cut([12, 20, 28, 36, 50])


@pytest.fixture(scope="module")
def alike():
    """Unlike numbers of rows, the same number of batches of eight."""
    return cut([17, 19, 21, 23, 24])


def run(method, fed, **changes):
    return fedkin.run(method, fed, **{**SETTINGS, **changes})


# ---- how much steps add up to
def test_a_is_the_number_of_steps_of_plain_sgd():
    assert accumulation(7, lr=0.1) == 7
    assert local_steps(17, 8, 2) == 6, "the last, smaller batch is a step too"
    assert local_steps(3, 8, 2) == 2, "a small client takes steps"


def test_a_under_momentum_is_the_papers_sum():
    rho = 0.9
    want = sum((1 - rho**k) / (1 - rho) for k in range(1, 8))
    assert accumulation(7, lr=0.1, momentum=rho) == pytest.approx(want)


def test_a_under_a_proximal_term_is_the_papers_recursion():
    a = 0.0
    for _ in range(7):
        a = (1 - 0.1 * 0.5) * a + 1
    assert accumulation(7, lr=0.1, mu=0.5) == pytest.approx(a)


@pytest.mark.parametrize(("momentum", "mu"), [(0.0, 0.0), (0.9, 0.0), (0.0, 2.0), (0.5, 1.0)])
def test_a_is_how_far_sgd_goes_on_a_constant_gradient(make_client, momentum, mu):
    """Momentum and proximal term together, too: the local solver itself, not the formula again."""
    from fedkin.client.training import sgd

    client = make_client(lr=0.1, momentum=momentum)
    start = client.net.initial.clone()
    end = sgd(
        client,
        start,
        steps=9,
        loss=lambda net, x, y: sum(p.sum() for p in net.parameters),
        regularizer_gradient=lambda w: mu * (w - start),
    )
    assert torch.allclose(
        (start - end) / 0.1, torch.tensor(accumulation(9, lr=0.1, momentum=momentum, mu=mu)), atol=1e-3
    )


# ---- the whole algorithm
def paper(fed, rounds, *, momentum=0.0, mu=0.0, effective="vector"):
    make = maker("mlp", fed.shape, fed.classes, 5, {})
    module, net = make(0), Network(make(0), fed.example)
    x = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    lr, epochs, size = SETTINGS["lr"], SETTINGS["epochs"], SETTINGS["batch_size"]
    n = [len(s.train) for s in fed.splits]
    p = [k / sum(n) for k in n]
    for t in range(1, rounds + 1):
        d, lengths, steps = [], [], []
        for i in range(len(fed)):
            client = Client({}, fed.data(i), client_seed(5, t, i), net, Training(lr, epochs, size))
            nn.utils.vector_to_parameters(x.clone(), module.parameters())
            optimizer = torch.optim.SGD(module.parameters(), lr=lr, momentum=momentum)
            center = [q.detach().clone() for q in module.parameters()]
            a, counter, tau = 0.0, 0.0, 0
            for epoch in range(epochs):
                for batch in batches(client, epoch=epoch):
                    optimizer.zero_grad()
                    near = sum(((q - c) ** 2).sum() for q, c in zip(module.parameters(), center))
                    (F.cross_entropy(module(batch.x), batch.y) + mu / 2 * near).backward()
                    optimizer.step()
                    counter = momentum * counter + 1
                    a = (1 - lr * mu) * a + 1 if mu else a + counter
                    tau += 1
            x_i = torch.cat([q.detach().reshape(-1) for q in module.parameters()])
            d.append((x - x_i) / (lr * a))
            lengths.append(a)
            steps.append(tau)
        tau_eff = sum(w * v for w, v in zip(p, lengths if effective == "vector" else steps))
        x = x - tau_eff * sum(w * lr * g for w, g in zip(p, d))
    return x


@pytest.mark.parametrize(
    ("mu", "momentum", "effective"),
    [(0.0, 0.0, "vector"), (0.0, 0.5, "vector"), (1.0, 0.0, "vector"), (1.0, 0.0, "steps")],
)
def test_it_is_the_papers_algorithm(fed, mu, momentum, effective):
    got = run(FedNova(mu=mu, effective=effective), fed, momentum=momentum).state["model"]
    want = paper(fed, 3, mu=mu, momentum=momentum, effective=effective)
    assert torch.allclose(got, want, atol=5e-5)
    other = run(FedProx(mu=mu), fed, momentum=momentum).state["model"]
    assert not torch.allclose(want, other, atol=1e-3), "the sizes are unlike, so normalizing matters"


# ---- reductions
def test_clients_that_take_as_many_steps_give_fedavg(alike):
    a, b = run(FedNova(), alike).state["model"], run(FedAvg(), alike).state["model"]
    assert torch.allclose(a, b, atol=1e-7)
    c, d = run(FedNova(mu=0.5), alike).state["model"], run(FedProx(mu=0.5), alike).state["model"]
    assert torch.allclose(c, d, atol=1e-7)


def test_its_fixed_point_is_the_optimum_where_that_of_fedavg_is_not():
    """One step a client would be enough for FedAvg; unlike numbers of steps move its solution, not FedNova's."""
    generator = torch.Generator().manual_seed(0)
    x = [torch.randn(size, 2, generator=generator) for size in (8, 24)]
    tables = [Examples(a, (a @ torch.tensor(d) > 0).long()) for a, d in zip(x, [[1.0, 0.3], [-1.0, 0.5]])]
    net = Network(nn.Linear(2, 2), torch.zeros(1, 2))
    # One small step each, repeated: no drift within a client, so what is left is the weight of each client.
    training = [Training(lr=0.02, epochs=e, batch_size=1000, weight_decay=0.1) for e in (1, 6)]
    n = torch.tensor([8, 24])
    ids = torch.arange(2)

    def solve(method):
        server = SimpleNamespace(
            equal_shares=lambda: torch.full((2,), 1 / 2),
            size=2,
            n=n,
            layout=net.layout,
            training=training[1],
            initial=lambda k: net.initial.clone(),
        )
        state = method.init(server)
        for t in range(350):
            sent = method.send(state, ids)
            done = [
                method.local(Client({}, Data(lambda i=i: tables[i], lambda: None, 2), t, net, training[i]), sent)
                for i in range(2)
            ]
            body = tuple(torch.stack(parts) for parts in zip(*(d.body for d in done)))
            state = method.merge(state, sent, Replies(ids, n, body, ids, 0))
        at = state["model"]
        slopes = [gradient(net, at, table)[0] + 0.1 * at for table in tables]
        return float((n[0] * slopes[0] + n[1] * slopes[1]).norm() / n.sum())

    assert solve(FedNova()) < 0.15 * solve(FedAvg())


# ---- in a federation
def test_clients_draw_their_epochs(fed):
    few = run(FedNova(fewest_epochs=1), fed, epochs=4, rounds=4)
    all_of_them = run(FedNova(), fed, epochs=4, rounds=4)
    ratio = {
        (r.round, r.client): r.value / w.value
        for r, w in zip(few.history.select("flops"), all_of_them.history.select("flops"))
    }
    assert {round(4 * v) for v in ratio.values()} == {1, 2, 3, 4}


def test_buffers_take_the_plain_weighted_mean(fed):
    def make():
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))

    nova, avg = (run(m, fed, model=make, rounds=1).state["model"] for m in (FedNova(), FedAvg()))
    count = Network(make(), fed.example).layout.parameters
    assert torch.allclose(nova[count:], avg[count:])
    assert not torch.allclose(nova[:count], avg[:count], atol=1e-4)


def test_a_model_and_a_number_travel(fed):
    result = run(FedNova(), fed)
    size = 4 * result.state["model"].numel()
    assert result.summary["bytes_down"] == 3 * 5 * size
    assert result.summary["bytes_up"] == 3 * 5 * (size + 4)


def test_lost_replies_absent_clients_and_a_stop(fed, tmp_path):
    method = FedNova(mu=0.1)
    result = run(method, fed, lost=0.4, participation=0.6, arrive={4: 2}, leave={0: 3}, rounds=4)
    assert bool(torch.isfinite(result.state["model"]).all())
    assert torch.allclose(method.mixing(result.state).sum(1), torch.ones(5))
    run(method, fed, rounds=2, out=tmp_path, checkpoint_every=1)
    assert equal(run(method, fed, rounds=4, out=tmp_path, checkpoint_every=1).state, run(method, fed, rounds=4).state)


def test_settings_that_cannot_be_are_refused(fed):
    with pytest.raises(ValueError, match="below 1"):
        run(FedNova(mu=20.0), fed)
    with pytest.raises(ValueError, match="at most the run's epochs, 2"):
        run(FedNova(fewest_epochs=3), fed)
    with pytest.raises(ValueError, match="at least 0"):
        FedNova(mu=-1.0)
