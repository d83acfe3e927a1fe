"""FedBABU in plain loops: the head never moves in the federation, and only fine-tuning may train it."""

from __future__ import annotations

import pytest
import torch
from plain_baselines import LR, a_client, federation, gradient, isolated, losses, message, network, run, sizes, survives

from fedkin.client.evaluate import evaluate
from fedkin.client.steps import OTHER_EPOCHS
from fedkin.client.training import batches
from fedkin.methods.fedbabu import FedBABU
from fedkin.results.store import equal

BODY, HEAD = slice(0, 64 * 16 + 16), slice(64 * 16 + 16, None)
NOTHING = slice(0, 0)


def train(net, client, row, held, epochs):
    for epoch in epochs:
        for x, y in batches(client, epoch=epoch):
            slope = gradient(net, row, x, y)
            slope[held] = 0
            row = row - LR * slope
    return row


def paper(rounds, weights):
    net = network()
    row = net.initial.clone()
    for round in range(1, rounds + 1):
        answers = [train(net, a_client(i, round=round, net=net), row, HEAD, range(2)) for i in range(6)]
        row = sum(g * a for g, a in zip(weights, answers)) / sum(weights)
    return row


@pytest.mark.parametrize(
    ("fine_tune", "held", "weighting"), [("full", NOTHING, "equal"), ("head", BODY, "size"), ("body", HEAD, "equal")]
)
def test_it_is_the_papers_algorithm(fine_tune, held, weighting):
    got = run(FedBABU(fine_tune=fine_tune, fine_tune_epochs=2, weighting=weighting))
    row = paper(3, [1.0] * 6 if weighting == "equal" else sizes().tolist())
    assert torch.allclose(got.state["body"], row[BODY], atol=1e-5)
    net = network()
    before = got.history.values("received_loss", round=3)
    for i in range(0, 6, 2):
        tuned = train(net, a_client(i, round=4, net=net), row, held, range(OTHER_EPOCHS, OTHER_EPOCHS + 2))
        assert losses(got)[i] == pytest.approx(evaluate(net, tuned, federation().test(i))[1], rel=1e-3)
        assert before[i] == pytest.approx(evaluate(net, row, federation().test(i))[1], rel=1e-3), "before fine-tuning"
    assert got.summary["bytes_up"] == got.summary["bytes_down"] == 3 * 6 * 4 * (64 * 16 + 16)


def test_the_head_stays_to_the_bit(monkeypatch):
    """Through all rounds and clients, with momentum and weight decay as well."""
    from fedkin.methods import fedbabu

    rows, real = [], fedbabu.sgd
    monkeypatch.setattr(fedbabu, "sgd", lambda client, start, **kw: rows.append(real(client, start, **kw)) or rows[-1])
    run(FedBABU(fine_tune_epochs=0), momentum=0.9, weight_decay=0.1)
    head = network().initial[HEAD]
    assert len(rows) == 3 * 6
    assert all(torch.equal(row[HEAD], head) for row in rows)
    assert not any(torch.equal(row[BODY], network().initial[BODY]) for row in rows)


def test_fine_tuning_does_not_touch_the_federation():
    a, b = run(FedBABU(fine_tune_epochs=3)), run(FedBABU(fine_tune_epochs=0))
    assert equal(a.state, b.state)
    assert losses(b) == b.history.values("received_loss", round=3)


def test_fine_tuning_of_a_part_holds_the_other():
    net = network()
    for part, held in (("head", BODY), ("body", HEAD)):
        tuned = FedBABU(fine_tune=part).personal(a_client(0, net=net), message(net.initial[BODY]), lambda: None)
        assert torch.equal(tuned[held], net.initial[held])
        assert not torch.equal(tuned, net.initial)


def test_faults_are_named():
    with pytest.raises(ValueError, match="fine_tune='tail' must be full, head or body"):
        FedBABU(fine_tune="tail")


def test_it_survives(tmp_path):
    survives(FedBABU(), tmp_path)


def test_clients_tune_on_their_own_examples():
    isolated(FedBABU())
