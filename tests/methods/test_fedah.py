"""FedAH in plain loops, its weights' bounds, and which part each step may move."""

from __future__ import annotations

import pytest
import torch
from plain_baselines import LR, a_client, federation, gradient, isolated, losses, message, network, run, sizes, survives

from fedkin.client.evaluate import evaluate
from fedkin.client.steps import OTHER_EPOCHS
from fedkin.client.training import batches
from fedkin.methods.fedah import FedAH

HEAD = slice(64 * 16 + 16, None)
RATE = 20.0


def mixed_head(net, client, model, own, weights, epochs):
    """Step 2: W by projected gradient descent, the body held."""
    theirs = model[HEAD]
    head = own + (theirs - own) * weights
    for epoch in range(epochs):
        for x, y in batches(client, epoch=OTHER_EPOCHS + epoch):
            row = torch.cat([model[: HEAD.start], head])
            slope = gradient(net, row, x, y)[HEAD]
            weights = (weights - RATE * slope * (theirs - own)).clip(0, 1)
            head = own + (theirs - own) * weights
    return head, weights


def paper(rounds, epochs=2):
    net = network()
    model, heads, weights = net.initial.clone(), {}, {}
    n = sizes()
    for round in range(1, rounds + 1):
        answers = []
        for i in range(6):
            client = a_client(i, round=round, net=net)
            own, w = heads.get(i, net.initial[HEAD]), weights.get(i, torch.ones(170))
            head, weights[i] = mixed_head(net, client, model, own, w, epochs)
            row = torch.cat([model[: HEAD.start], head])
            for epoch in range(epochs):  # head, body held
                for x, y in batches(client, epoch=epoch):
                    slope = gradient(net, row, x, y)
                    slope[: HEAD.start] = 0
                    row = row - LR * slope
            for epoch in range(2):  # body, head held
                for x, y in batches(client, epoch=epochs + epoch):
                    slope = gradient(net, row, x, y)
                    slope[HEAD] = 0
                    row = row - LR * slope
            heads[i] = row[HEAD]
            answers.append(row)
        model = sum(k * w for k, w in zip(n, answers)).div(n.sum()).float()
    return model, heads, weights


def test_it_is_the_papers_algorithm():
    got = run(FedAH(weight_lr=RATE, head_epochs=2))
    model, heads, weights = paper(3)
    assert torch.allclose(got.state["model"], model, atol=2e-5)
    assert any(float(w.min()) < 0.9 for w in weights.values()), "the weights have moved"
    net = network()
    for i in range(6):
        head, _ = mixed_head(net, a_client(i, round=4, net=net), model, heads[i], weights[i], 2)
        row = torch.cat([model[: HEAD.start], head])
        want = evaluate(net, row, federation().test(i))[1]
        assert losses(got)[i] == pytest.approx(want, rel=1e-3), "mixed head, received body, before training"


def two_rounds(method):
    """Client 0 in a first round, and in a second where the server's model has become another."""
    net = network()
    first = method.local(a_client(0, net=net), message(net.initial))
    other = net.initial + 0.3 * torch.randn(net.initial.shape, generator=torch.Generator().manual_seed(2))
    client = a_client(0, round=2, net=net, state=first.state)
    return first, method.local(client, message(other)), other


def test_weights_stay_in_bounds_and_start_at_one():
    first, second, _ = two_rounds(FedAH(weight_lr=100.0))
    assert torch.equal(first.state["weights"], torch.ones(170)), "both heads are alike: nothing to learn"
    assert torch.equal(first.state["mixed"], network().initial[HEAD])
    w = second.state["weights"]
    assert float(w.min()) == 0.0
    assert float(w.max()) == 1.0
    assert not torch.equal(w, torch.ones(170))


def test_no_rate_means_the_global_head():
    first, still, other = two_rounds(FedAH(weight_lr=0.0))
    assert torch.equal(still.state["weights"], torch.ones(170))
    assert torch.allclose(still.state["mixed"], other[HEAD], atol=1e-6)
    _, forced, _ = two_rounds(FedAH(mix="global"))
    assert torch.equal(forced.state["mixed"], other[HEAD])
    _, own, _ = two_rounds(FedAH(mix="local"))
    assert torch.equal(own.state["mixed"], first.state["head"])


def test_each_step_moves_its_own_part(monkeypatch):
    """The body is as received until the head is done; the head then stays."""
    from fedkin.methods import fedah

    rows = []
    real = fedah.sgd
    monkeypatch.setattr(
        fedah, "sgd", lambda client, start, **kw: rows.append((start, real(client, start, **kw))) or rows[-1][1]
    )
    _, second, other = two_rounds(FedAH(weight_lr=RATE))
    (start, with_head), (again, done) = rows[2:]
    body = slice(0, HEAD.start)
    assert torch.equal(start[body], other[body])
    assert torch.equal(with_head[body], other[body])
    assert not torch.equal(with_head[HEAD], start[HEAD])
    assert torch.equal(again, with_head)
    assert torch.equal(done[HEAD], with_head[HEAD])
    assert not torch.equal(done[body], with_head[body])
    assert torch.equal(second.state["head"], done[HEAD])


def test_faults_are_named():
    with pytest.raises(ValueError, match="mix='both' must be"):
        FedAH(mix="both")
    with pytest.raises(ValueError, match="head_epochs=0 must be at least 1"):
        FedAH(head_epochs=0)


def test_it_survives(tmp_path):
    survives(FedAH(), tmp_path)


def test_clients_states_are_their_own():
    isolated(FedAH())
