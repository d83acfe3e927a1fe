"""FedBN against its paper: in plain loops, what travels and what stays, and where there is no batch norm."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedkin
from fedkin.client.evaluate import evaluate
from fedkin.client.training import batches
from fedkin.engine.runner import client_seed
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.fedbn import FedBN, assembled, batch_norms
from fedkin.models.network import Network, build
from fedkin.protocol import Client, Message, Training
from fedkin.results.store import equal

SETTINGS = {"rounds": 3, "lr": 0.1, "epochs": 2, "batch_size": 8, "seed": 5, "engine": "serial"}


class Residual(nn.Module):
    """Batch norm under names without "bn" in them, and another norm that is none: a filter by name gets both wrong."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 8)
        self.norm = nn.BatchNorm1d(8)
        self.downsample = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8))
        self.subnet = nn.LayerNorm(8)  # "bn" is in the name of this one
        self.last = nn.Linear(8, 10)

    def forward(self, x):
        x = x.flatten(1)
        return self.last(self.subnet(torch.relu(self.norm(self.first(x)) + self.downsample(x))))


def make():
    return build(Residual, 4)


@pytest.fixture(scope="module")
def fed():
    """Five clients of 20 to 52 rows."""
    whole = fedkin.federate("digits", partition="dirichlet", clients=5, alpha=0.5, samples_per_client=80, seed=3)
    splits = tuple(replace(split, train=split.train[: 20 + 8 * i]) for i, split in enumerate(whole.splits))
    return fedkin.Federation(whole.arrays, whole.partition, splits)


def run(method, fed, **changes):
    return fedkin.run(method, fed, **{"model": make, **SETTINGS, **changes})


def paper(fed, participants, weighting):
    """Algorithm 1 in plain loops over named tensors: all but batch norm is averaged."""
    net, start = Network(make(), fed.example), make().state_dict()
    stays = {k for k in start if k.startswith(("norm.", "downsample.1."))}
    models = {i: copy.deepcopy(start) for i in range(len(fed))}
    n = [len(s.train) if weighting == "size" else 1 for s in fed.splits]
    shared = {k: v.clone() for k, v in start.items() if k not in stays}
    for t, chosen in enumerate(participants, start=1):
        for i in chosen:
            module = make()
            module.load_state_dict(models[i] | shared)
            client = Client({}, fed.data(i), client_seed(5, t, i), net, Training(0.1, 2, 8))
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
            for epoch in range(2):
                for x, y in batches(client, epoch=epoch):
                    optimizer.zero_grad()
                    F.cross_entropy(module(x), y).backward()
                    optimizer.step()
            models[i] = copy.deepcopy(module.state_dict())
        total = sum(n[i] for i in chosen)
        shared = {k: sum(n[i] * models[i][k] for i in chosen) / total for k in shared}
    return net, {i: net.layout.flatten(models[i] | shared) for i in models}


@pytest.mark.parametrize("weighting", ["size", "equal"])
@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_it_is_the_papers_algorithm(fed, weighting, participation):
    got = run(FedBN(weighting=weighting), fed, participation=participation)
    who = [[record.client for record in got.history.select("flops") if record.round == t] for t in (1, 2, 3)]
    net, want = paper(fed, who, weighting)
    assert torch.allclose(got.state["model"], want[0][~batch_norms(net)], atol=2e-5)
    losses = got.history.values("personal_loss", round=3)
    for client, row in want.items():
        assert losses[client] == pytest.approx(evaluate(net, row, fed.test(client))[1], rel=1e-3)


def test_it_is_told_by_type_not_by_name(fed):
    net = Network(make(), fed.example)
    inside = batch_norms(net)
    names = {piece.name for piece in net.layout.pieces if bool(inside[piece.start : piece.stop].all())}
    assert names == {
        f"{layer}.{part}"
        for layer in ("norm", "downsample.1")
        for part in ("weight", "bias", "running_mean", "running_var")
    }
    assert int(inside.sum()) == 2 * 4 * 8, "and nothing in part"


def test_a_module_that_is_itself_a_batch_norm_and_one_without_statistics():
    assert bool(batch_norms(Network(nn.BatchNorm1d(3), torch.zeros(2, 3))).all())
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, track_running_stats=False))
    assert int(batch_norms(Network(module, torch.zeros(2, 3))).sum()) == 6


# ---- reductions
@pytest.mark.parametrize("newcomers", ["initial", "average"])
def test_without_batch_norm_it_is_fedavg_to_the_bit(fed, newcomers):
    a, b = (run(m, fed, model="mlp", participation=0.6) for m in (FedBN(newcomers=newcomers), FedAvg()))
    assert equal(a.state, b.state)
    assert a.summary["bytes_up"] == b.summary["bytes_up"]
    assert a.summary["bytes_down"] == b.summary["bytes_down"]
    for metric in ("personal", "received", "personal_loss"):
        assert a.history.values(metric, round=3) == b.history.values(metric, round=3)


def test_with_batch_norm_it_is_not(fed):
    a, b = (run(m, fed).history.values("personal_loss", round=3) for m in (FedBN(), FedAvg()))
    assert all(a[i] != b[i] for i in a)


# ---- what travels, what stays
def test_batch_norm_does_not_travel_after_the_first_message(fed):
    net = Network(make(), fed.example)
    size, rest = net.layout.size, net.layout.size - 64
    result = run(FedBN(), fed)
    assert result.summary["bytes_up"] == 4 * 3 * 5 * rest
    assert result.summary["bytes_down"] == 4 * 5 * (size + 2 * rest)
    whole = run(FedBN(newcomers="average"), fed)
    assert whole.summary["bytes_up"] == whole.summary["bytes_down"] == 4 * 3 * 5 * size


def test_clients_differ_in_batch_norm_and_in_nothing_else(fed):
    net = Network(make(), fed.example)
    norms = batch_norms(net)
    mine = [Client({}, fed.data(i), i, net, Training(0.1, 1, 8)) for i in (0, 1)]
    done = [FedBN().local(client, Message((net.initial,))) for client in mine]
    shared = (done[0].body[0] + done[1].body[0]) / 2
    rows = [assembled(client._replace(state=d.state), Message((shared,))) for client, d in zip(mine, done)]
    assert torch.equal(rows[0][~norms], rows[1][~norms])
    for piece in net.layout.pieces:
        if bool(norms[piece.start]):
            assert not torch.equal(*(row[piece.start : piece.stop] for row in rows)), piece.name


def test_a_newcomer_takes_the_initial_batch_norm_or_the_average(fed):
    net = Network(make(), fed.example)
    norms = batch_norms(net)
    client = Client({}, fed.data(0), 0, net, Training())
    late = run(FedBN(), fed).state["model"]
    assert torch.equal(assembled(client, Message((late,)))[norms], net.initial[norms])
    whole = run(FedBN(newcomers="average"), fed).state["model"]
    assert torch.equal(assembled(client, Message((whole,))), whole)
    own = torch.arange(64.0)
    for sent in (late, whole):
        assert torch.equal(assembled(client._replace(state={"norms": own}), Message((sent,)))[norms], own)


def test_both_choices_for_newcomers_train_alike_where_there_are_none(fed):
    net = Network(make(), fed.example)
    short, whole = (run(FedBN(newcomers=k), fed).state["model"] for k in ("initial", "average"))
    assert torch.allclose(short, whole[~batch_norms(net)], atol=1e-6)


def test_lost_replies_absent_clients_and_a_stop(fed, tmp_path):
    for method in (FedBN(), FedBN(newcomers="average")):
        result = run(method, fed, lost=0.4, participation=0.6, arrive={4: 2}, leave={0: 3}, rounds=4)
        assert not list(result.history.select("unmeasured"))
        assert torch.allclose(method.mixing(result.state).sum(1), torch.ones(5))
    run(FedBN(), fed, rounds=2, out=tmp_path, checkpoint_every=1)
    assert equal(run(FedBN(), fed, rounds=4, out=tmp_path, checkpoint_every=1).state, run(FedBN(), fed, rounds=4).state)


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="newcomers='none'"):
        FedBN(newcomers="none")
