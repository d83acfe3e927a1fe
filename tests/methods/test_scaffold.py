"""SCAFFOLD against its paper: in plain loops, at its fixed point, and in its first round."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedkin
from fedkin.client.evaluate import gradient
from fedkin.client.training import batches, sgd
from fedkin.engine.runner import client_seed
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.scaffold import Scaffold
from fedkin.models.build import maker
from fedkin.models.network import Network
from fedkin.protocol import Client, Data, Examples, Message, Replies, Training
from fedkin.results.store import equal

SETTINGS = {"rounds": 3, "lr": 0.1, "epochs": 2, "batch_size": 8, "seed": 5, "engine": "serial", "model": "mlp"}


@pytest.fixture(scope="module")
def fed():
    """Five clients of 20 to 52 rows."""
    whole = fedkin.federate("digits", partition="dirichlet", clients=5, alpha=0.5, samples_per_client=80, seed=3)
    splits = tuple(replace(split, train=split.train[: 20 + 8 * i]) for i, split in enumerate(whole.splits))
    return fedkin.Federation(whole.arrays, whole.partition, splits)


@pytest.fixture(scope="module")
def equal_sizes():
    return fedkin.federate("digits", partition="iid", clients=4, samples_per_client=30, seed=3)


def run(method, fed, **changes):
    return fedkin.run(method, fed, **{**SETTINGS, **changes})


def paper(fed, participants, *, server_lr=1.0, option="II"):
    """Algorithm 1 in plain loops. x, c, y, c_i are the paper's letters."""
    make = maker("mlp", fed.shape, fed.classes, 5, {})
    module, net = make(0), Network(make(0), fed.example)
    x = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    c, c_i = torch.zeros_like(x), [torch.zeros_like(x) for _ in range(len(fed))]
    lr, epochs, size = SETTINGS["lr"], SETTINGS["epochs"], SETTINGS["batch_size"]

    def slope(at, rows):
        nn.utils.vector_to_parameters(at.clone(), module.parameters())
        loss = F.cross_entropy(module(rows.x), rows.y)
        return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))])

    for t, chosen in enumerate(participants, start=1):
        ways, changes = [], []
        for i in chosen:
            client = Client({}, fed.data(i), client_seed(5, t, i), net, Training(lr, epochs, size))
            y, K = x.clone(), 0
            for epoch in range(epochs):
                for batch in batches(client, epoch=epoch):
                    y = y - lr * (slope(y, batch) - c_i[i] + c)  # eq. (3)
                    K += 1
            new = slope(x, client.data.train) if option == "I" else c_i[i] - c + (x - y) / (K * lr)  # eq. (4)
            ways.append(y - x)
            changes.append(new - c_i[i])
            c_i[i] = new
        x = x + server_lr * sum(ways) / len(chosen)  # eq. (5)
        c = c + len(chosen) / len(fed) * sum(changes) / len(chosen)
    return x, c, c_i


@pytest.mark.parametrize(("server_lr", "option"), [(1.0, "II"), (0.5, "II"), (1.0, "I")])
def test_it_is_the_papers_algorithm(fed, server_lr, option):
    got = run(Scaffold(server_lr=server_lr, option=option), fed)
    x, c, c_i = paper(fed, [range(5)] * 3, server_lr=server_lr, option=option)
    assert torch.allclose(got.state["model"], x, atol=2e-5)
    assert torch.allclose(got.state["control"], c, atol=2e-4)
    assert torch.allclose(c, sum(c_i) / 5, atol=1e-6), "c is the mean of the c_i"
    assert not torch.allclose(x, run(FedAvg(), fed).state["model"], atol=1e-2)


def test_it_is_the_papers_algorithm_with_some_of_the_clients(fed):
    got = run(Scaffold(), fed, participation=0.6, rounds=4)
    who = [[record.client for record in got.history.select("flops") if record.round == t] for t in range(1, 5)]
    assert all(len(w) == 3 for w in who)
    assert len({tuple(w) for w in who}) > 1
    x, c, _ = paper(fed, who)
    assert torch.allclose(got.state["model"], x, atol=2e-5)
    assert torch.allclose(got.state["control"], c, atol=2e-4), "Δc counts 1/N, not 1/|S|"


@pytest.mark.parametrize("weighting", ["equal", "size"])
def test_its_first_round_is_fedavg_to_the_bit_where_clients_have_the_same_number_of_examples(equal_sizes, weighting):
    method = Scaffold(weighting=weighting)
    assert equal(run(method, equal_sizes, rounds=1).state["model"], run(FedAvg(), equal_sizes, rounds=1).state["model"])
    second = run(method, equal_sizes, rounds=2).state["model"]
    assert not torch.allclose(second, run(FedAvg(), equal_sizes, rounds=2).state["model"], atol=1e-4)


def test_weighting_by_size_is_the_first_round_of_fedavg_on_unlike_sizes(fed):
    want = run(FedAvg(), fed, rounds=1).state["model"]
    assert equal(run(Scaffold(weighting="size"), fed, rounds=1).state["model"], want)
    assert not equal(run(Scaffold(), fed, rounds=1).state["model"], want)


# ---- by hand: clients that are no engine's, on problems with one solution
class Site:
    """Clients of a convex problem (softmax regression with decay), run one after the other without an engine."""

    def __init__(self, tables, **training):
        self.net = Network(nn.Linear(2, 2), torch.zeros(1, 2))
        self.tables, self.training = tables, Training(batch_size=10_000, **training)

    def client(self, client, state, round=1):
        rows = self.tables[client]
        return Client(
            state, Data(lambda: rows, lambda: rows, 2), client_seed(0, round, client), self.net, self.training
        )

    def run(self, method, rounds):
        from types import SimpleNamespace

        n = torch.tensor([len(t.y) for t in self.tables])
        server = SimpleNamespace(
            equal_shares=lambda: torch.full((len(n),), 1 / len(n)),
            size=len(n),
            n=n,
            layout=self.net.layout,
            training=self.training,
            initial=lambda k: self.net.initial.clone(),
        )
        ids = torch.arange(len(n))
        state, private = method.init(server), [{} for _ in n]
        for t in range(1, rounds + 1):
            sent = method.send(state, ids)
            done = [method.local(self.client(i, private[i], t), Message(sent.shared)) for i in ids.tolist()]
            private = [d.state for d in done]
            body = tuple(torch.stack(parts) for parts in zip(*(d.body for d in done)))
            state = method.merge(state, sent, Replies(ids, n, body, ids, 0))
        return state, private

    def slope(self, row):
        """Gradient of the mean of the clients' objectives."""
        parts = [gradient(self.net, row, table)[0] + self.training.weight_decay * row for table in self.tables]
        return torch.stack(parts).mean(0)


@pytest.fixture
def unlike():
    generator = torch.Generator().manual_seed(0)
    x = [torch.randn(30, 2, generator=generator) * scale for scale in (0.5, 1.0, 3.0)]
    return [Examples(a, (a @ torch.tensor(d) > 0).long()) for a, d in zip(x, [[1.0, 0.3], [-0.2, 1.0], [0.8, -1.0]])]


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_its_fixed_point_is_the_optimum_where_that_of_fedavg_is_not(unlike, momentum):
    site = Site(unlike, lr=0.3, epochs=5, weight_decay=0.1, momentum=momentum)
    ours, _ = site.run(Scaffold(), 60)
    biased, _ = site.run(FedAvg(), 60)
    assert site.slope(biased["model"]).norm() > 1e-2
    assert site.slope(ours["model"]).norm() < 1e-4


def test_the_control_variates_are_the_clients_gradients_at_the_optimum(unlike):
    site = Site(unlike, lr=0.3, epochs=5, weight_decay=0.1)
    state, private = site.run(Scaffold(), 60)
    for client, table in enumerate(unlike):
        want = gradient(site.net, state["model"], table)[0] + 0.1 * state["model"]
        assert torch.allclose(private[client]["control"], want, atol=1e-3)
    assert torch.allclose(state["control"], torch.zeros(6), atol=1e-4)


def test_identical_clients_have_nothing_to_correct(unlike):
    """c_i = c for all, so that every round is one of FedAvg."""
    site = Site([unlike[0]] * 3, lr=0.2, epochs=4)
    state, private = site.run(Scaffold(), 3)
    assert all(torch.allclose(p["control"], state["control"], atol=1e-5) for p in private)
    assert torch.allclose(state["model"], site.run(FedAvg(), 3)[0]["model"], atol=1e-5)


def test_the_correction_reaches_every_step_and_the_reply_is_the_change_of_the_control(unlike):
    site = Site(unlike, lr=0.2, epochs=3)
    x, c, mine = site.net.initial.clone(), torch.full((6,), 0.3), torch.arange(6) / 10
    reply = Scaffold().local(site.client(0, {"control": mine}), Message((x, c)))
    assert not torch.allclose(reply.body[0], sgd(site.client(0, {}), x), atol=1e-2)
    new = mine - c + (x - reply.body[0]) / (3 * 0.2)
    assert torch.allclose(reply.state["control"], new, atol=1e-5)
    assert torch.allclose(reply.body[1], new - mine, atol=1e-5)


# ---- in a federation
def test_variances_of_batch_norm_stay_variances_when_the_server_goes_too_far(fed):
    def make():
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))

    state = run(Scaffold(server_lr=3.0), fed, model=make, lr=0.01).state
    net = Network(make(), fed.example)
    assert bool((net.layout.tensors(state["model"])["2.running_var"] > 0).all())
    assert len(state["control"]) == net.layout.parameters < net.layout.size


def test_two_models_travel_each_way(fed):
    result = run(Scaffold(), fed)
    size = 2 * 4 * result.state["model"].numel()
    assert result.summary["bytes_down"] == result.summary["bytes_up"] == 3 * 5 * size


def test_lost_replies_absent_clients_and_a_stop(fed, tmp_path):
    result = run(Scaffold(), fed, lost=0.4, participation=0.6, arrive={4: 2}, leave={0: 3}, rounds=4)
    assert bool(torch.isfinite(result.state["model"]).all())
    assert torch.allclose(Scaffold().mixing(result.state).sum(1), torch.ones(5))
    run(Scaffold(), fed, rounds=2, out=tmp_path, checkpoint_every=1)
    assert equal(
        run(Scaffold(), fed, rounds=4, out=tmp_path, checkpoint_every=1).state, run(Scaffold(), fed, rounds=4).state
    )


def test_a_server_that_never_moves_is_refused():
    with pytest.raises(ValueError, match="server_lr=0"):
        Scaffold(server_lr=0.0)
