"""FedAS in plain loops, its reduction to FedPer, and what alignment and synchronization do."""

from __future__ import annotations

import pytest
import torch
from plain_baselines import a_client, federation, isolated, losses, message, network, run, survives
from plain_parts import BODY, HEAD, descend, feature, keeps_frozen, loaded, mean_of
from torch.nn import functional as F

from fedkin.client.evaluate import evaluate
from fedkin.client.steps import OTHER_EPOCHS
from fedkin.client.training import batches
from fedkin.methods.fedas import FedAS
from fedkin.methods.fedper import FedPer
from fedkin.protocol import Replies


def step_of(net, client, body, previous, *, lr, epochs):
    """A client's model after alignment and training."""
    start = torch.cat([body, (net.initial if previous is None else previous)[HEAD]])
    if previous is not None and epochs:
        module = loaded(net, previous)
        with torch.no_grad():
            z = feature(module, client.data.x)
        prototypes = {j: z[client.data.y == j].mean(0) for j in range(10)}  # (1)
        module = loaded(net, start)
        for epoch in range(epochs):
            for x, y in batches(client, epoch=OTHER_EPOCHS + epoch):
                z = feature(module, x)
                value = sum(
                    F.mse_loss(z[y == j], prototypes[j].expand(int((y == j).sum()), -1)) for j in y.unique().tolist()
                )
                descend(value, list(module.fc1.parameters()), lr)  # (2)
        start = net.vector()
    module = loaded(net, start)
    for epoch in range(2):
        for x, y in batches(client, epoch=epoch):
            descend(F.cross_entropy(module(x), y), list(module.parameters()))  # (3)
    return net.vector()


def trace_of(net, row, data, size):
    module = loaded(net, row)
    total = 0.0
    for begin in range(0, len(data.y), size):
        x, y = data.x[begin : begin + size], data.y[begin : begin + size]
        slopes = torch.autograd.grad(F.cross_entropy(module(x), y), list(module.parameters()))
        total += sum(float((s**2).sum()) for s in slopes)  # (4)
    return total


@pytest.mark.parametrize(("fisher", "epochs"), [("batches", 1), ("examples", 2)])
def test_it_is_the_papers_algorithm(fisher, epochs):
    got = run(FedAS(align_epochs=epochs, align_lr=0.05, fisher=fisher))
    net = network()
    body, own = net.initial[BODY], {}
    for round in (1, 2, 3):
        traces = []
        for i in range(6):
            client = a_client(i, round=round, net=net)
            own[i] = step_of(net, client, body, own.get(i), lr=0.05, epochs=epochs)
            traces.append(trace_of(net, own[i], client.data, 8 if fisher == "batches" else 1))
        body = mean_of([own[i][BODY] for i in range(6)], traces)  # (5)
    assert torch.allclose(got.state["body"], body, atol=1e-5)
    assert torch.allclose(got.state["share"], torch.tensor(traces) / sum(traces), atol=1e-4)
    for i in range(6):
        row = step_of(net, a_client(i, round=4, net=net), body, own[i], lr=0.05, epochs=epochs)
        assert losses(got)[i] == pytest.approx(evaluate(net, row, federation().test(i))[1], rel=1e-3)


@pytest.mark.parametrize("use", ["trained", "received"])
def test_without_both_it_is_fedper(use):
    a, b = run(FedAS(align_epochs=0, weighting="size", use=use)), run(FedPer(use=use))
    assert torch.allclose(a.state["body"], b.state["base"], atol=1e-6)
    for i, value in losses(b).items():
        assert losses(a)[i] == pytest.approx(value, rel=1e-4)


def test_alignment_brings_features_back_to_the_previous_model():
    client = a_client(state={"model": run_locally()})
    received = client.net.initial[BODY]
    z = client.net
    gaps = []
    for epochs in (0, 5):
        start = FedAS(align_epochs=epochs, align_lr=0.1)._aligned(client, message(received))
        means = []
        for row in (start, client.state["model"]):
            module = loaded(z, row)
            with torch.no_grad():
                f = feature(module, client.data.x)
            means.append(torch.stack([f[client.data.y == j].mean(0) for j in client.data.y.unique()]))
        gaps.append(float((means[0] - means[1]).norm()))
        assert torch.equal(start[HEAD], client.state["model"][HEAD])
    assert gaps[1] < 0.8 * gaps[0]


def run_locally():
    from fedkin.client.training import sgd

    client = a_client(epochs=5)
    return sgd(client, client.net.initial)


def test_a_zero_trace_falls_back_to_sizes():
    ids, n, bodies = torch.tensor([2, 0]), torch.tensor([1, 3]), torch.tensor([[0.0], [4.0]])
    replies = Replies(ids, n, (bodies, torch.zeros(2, 1)), torch.tensor([1, 0]), 0)
    new = FedAS().merge({"body": torch.zeros(1), "share": torch.zeros(3)}, message(torch.zeros(1)), replies)
    assert new["body"].tolist() == [3.0]
    assert new["share"].tolist() == [0.75, 0.0, 0.25]


def test_frozen_parameters_stay_frozen():
    keeps_frozen(FedAS(), lambda net: message(net.initial[net.layout.body]))


def test_faults_are_named():
    with pytest.raises(ValueError, match="align_lr=-1 must be at least 0"):
        FedAS(align_lr=-1)


def test_it_survives(tmp_path):
    survives(FedAS(), tmp_path)


def test_clients_models_are_their_own():
    isolated(FedAS())
