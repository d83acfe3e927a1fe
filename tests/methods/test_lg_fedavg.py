"""LG-FedAvg in plain loops with and without a warm start; FedPer's mirror image."""

from __future__ import annotations

import pytest
import torch
from plain_baselines import LR, a_client, federation, gradient, isolated, losses, network, run, sizes, survives

from fedkin.client.evaluate import evaluate
from fedkin.client.steps import last_layers
from fedkin.client.training import batches
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.fedper import FedPer
from fedkin.methods.lg_fedavg import LGFedAvg
from fedkin.methods.local import Local

LOW, TOP = slice(0, 64 * 16 + 16), slice(64 * 16 + 16, None)


def paper(rounds, warm, weights):
    net = network()
    model, own = net.initial.clone(), {}
    for round in range(1, rounds + 1):
        answers = []
        for i in range(6):
            client = a_client(i, round=round, net=net)
            row = torch.cat([own.get(i, model[LOW]), model[TOP]])
            for epoch in range(2):
                for x, y in batches(client, epoch=epoch):
                    row = row - LR * gradient(net, row, x, y)
            answers.append(row)
            if round > warm:
                own[i] = row[LOW]
        mean = sum(g * a for g, a in zip(weights, answers)) / sum(weights)
        model = mean if round <= warm else torch.cat([model[LOW], mean[TOP]])
    return model, own


@pytest.mark.parametrize(("warm", "weighting"), [(0, "equal"), (1, "size")])
def test_it_is_the_papers_algorithm(warm, weighting):
    got = run(LGFedAvg(warm_rounds=warm, weighting=weighting))
    model, own = paper(3, warm, [1.0] * 6 if weighting == "equal" else sizes().tolist())
    assert torch.allclose(got.state["model"][TOP], model[TOP], atol=1e-5)
    for i in range(6):
        row = torch.cat([own[i], model[TOP]])
        assert losses(got)[i] == pytest.approx(evaluate(network(), row, federation().test(i))[1], rel=1e-3)


def test_bytes_are_those_of_the_global_layers():
    got = run(LGFedAvg())
    assert got.summary["bytes_up"] == 3 * 6 * 4 * 170
    assert got.summary["bytes_down"] == 3 * 6 * (4 * 170 + 1)  # and one byte that says whether it is a warm round
    warm = run(LGFedAvg(warm_rounds=1))
    whole = 64 * 16 + 16 + 170
    up = [sum(r.value for r in warm.history.select("bytes_up", round=k)) for k in (1, 2, 3)]
    down = [sum(r.value for r in warm.history.select("bytes_down", round=k)) for k in (1, 2, 3)]
    assert up == [6 * 4 * whole, 6 * 4 * 170, 6 * 4 * 170]
    assert down == [6 * (4 * whole + 1), 6 * (4 * whole + 1), 6 * (4 * 170 + 1)], "the warm start travels once"


def test_a_lost_reply_does_not_take_a_clients_own_layers_away():
    """The server sends the warm start again; the client goes on from its own layers."""
    net = network()
    method = LGFedAvg(warm_rounds=1)
    sent = method.send({"round": 1, "model": net.initial, "global": torch.arange(1040, 1210), "has": torch.zeros(1)},
                       torch.tensor([0]))  # fmt: skip
    client = a_client(0, net=net, state={"layers": torch.full((1040,), 0.25)})
    assert torch.equal(method.personal(client, sent.for_position(0), lambda: None)[LOW], client.state["layers"])


def test_its_ends():
    assert losses(run(LGFedAvg(global_layers=0))) == losses(run(Local())), "nothing is global: Local to the bit"
    whole, avg = run(LGFedAvg(global_layers=2, weighting="size")), run(FedAvg())
    assert torch.equal(whole.state["model"], avg.state["model"])
    assert losses(whole) == losses(avg)
    assert torch.equal(run(LGFedAvg(warm_rounds=3, weighting="size")).state["model"], avg.state["model"])


def test_it_is_the_mirror_image_of_fedper():
    layout = network().layout
    others, last = last_layers(layout, 1)
    assert torch.equal(torch.cat([others, last]).sort().values, torch.arange(layout.size))
    total = run(LGFedAvg(), rounds=1).summary["bytes_up"] + run(FedPer(), rounds=1).summary["bytes_up"]
    assert total == run(FedAvg(), rounds=1).summary["bytes_up"]


def test_faults_are_named():
    with pytest.raises(ValueError, match="warm_rounds=-1"):
        LGFedAvg(warm_rounds=-1)


@pytest.mark.parametrize("warm", [0, 2])
def test_it_survives(tmp_path, warm):
    survives(LGFedAvg(warm_rounds=warm), tmp_path)


def test_clients_layers_are_their_own():
    isolated(LGFedAvg())
