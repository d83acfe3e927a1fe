"""FedRep in plain loops, which part each phase moves, and FedAH without its mixture."""

from __future__ import annotations

import pytest
import torch
from plain_baselines import LR, a_client, federation, gradient, isolated, losses, message, network, run, sizes, survives

from fedkin.client.evaluate import evaluate
from fedkin.client.training import batches
from fedkin.methods.fedah import FedAH
from fedkin.methods.fedrep import FedRep

BODY, HEAD = slice(0, 64 * 16 + 16), slice(64 * 16 + 16, None)


def train(net, client, row, held, epochs):
    for epoch in epochs:
        for x, y in batches(client, epoch=epoch):
            slope = gradient(net, row, x, y)
            slope[held] = 0
            row = row - LR * slope
    return row


def paper(rounds, heads_for, bodies_for, weights):
    net = network()
    body, heads = net.initial[BODY], {}
    for round in range(1, rounds + 1):
        answers = []
        for i in range(6):
            client = a_client(i, round=round, net=net)
            row = torch.cat([body, heads.get(i, net.initial[HEAD])])
            row = train(net, client, row, BODY, range(heads_for))
            heads[i] = row[HEAD]
            row = train(net, client, row, HEAD, range(heads_for, heads_for + bodies_for))
            answers.append(row[BODY])
        body = sum(g * b for g, b in zip(weights, answers)) / sum(weights)
    return body, heads


@pytest.mark.parametrize(("heads", "bodies", "weighting"), [(0, 1, "equal"), (1, 2, "size")])
def test_it_is_the_papers_algorithm(heads, bodies, weighting):
    got = run(FedRep(head_epochs=heads, body_epochs=bodies, weighting=weighting))
    weights = [1.0] * 6 if weighting == "equal" else sizes().tolist()
    body, own = paper(3, heads or 2, bodies, weights)
    assert torch.allclose(got.state["body"], body, atol=1e-5)
    net = network()
    for i in range(6):
        client = a_client(i, round=4, net=net)
        row = train(net, client, torch.cat([body, own[i]]), BODY, range(heads or 2))
        want = evaluate(net, row, federation().test(i))[1]
        assert losses(got)[i] == pytest.approx(want, rel=1e-3), "trained head, received body"
    assert got.summary["bytes_up"] == got.summary["bytes_down"] == 3 * 6 * 4 * (64 * 16 + 16)


def test_each_phase_moves_its_own_part(monkeypatch):
    from fedkin.methods import fedrep

    rows, real = [], fedrep.sgd
    monkeypatch.setattr(
        fedrep, "sgd", lambda client, start, **kw: rows.append((start, real(client, start, **kw))) or rows[-1][1]
    )
    net = network()
    FedRep().local(a_client(0, net=net, momentum=0.9, weight_decay=0.1), message(net.initial[BODY]))
    (start, middle), (_, end) = rows
    assert torch.equal(start[BODY], middle[BODY])
    assert not torch.equal(start[HEAD], middle[HEAD])
    assert torch.equal(middle[HEAD], end[HEAD])
    assert not torch.equal(middle[BODY], end[BODY])


def test_fedah_with_local_heads_is_fedrep_to_the_bit():
    settings = {"epochs": 1}
    a = run(FedAH(mix="local", head_epochs=1), **settings)
    b = run(FedRep(head_epochs=1, body_epochs=1, weighting="size"), **settings)
    assert torch.equal(a.state["model"][BODY], b.state["body"])


def test_faults_are_named():
    with pytest.raises(ValueError, match="body_epochs=0 must be at least 1"):
        FedRep(body_epochs=0)


def test_it_survives(tmp_path):
    survives(FedRep(), tmp_path)


def test_clients_heads_are_their_own():
    isolated(FedRep())
