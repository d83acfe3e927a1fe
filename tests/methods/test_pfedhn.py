"""pFedHN against its paper: torch modules and torch.optim in plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import fedkin
from fedkin.client.evaluate import gradient
from fedkin.client.training import sgd, stream
from fedkin.engine.runner import client_seed
from fedkin.methods.pfedhn import PFedHN
from fedkin.methods.pfedhn.hypernetwork import clipped, hypernetwork, produced, pulled_back
from fedkin.models.build import maker
from fedkin.models.network import Network
from fedkin.protocol import Client, Replies, Training
from fedkin.results.store import equal

SETTINGS = {"rounds": 3, "lr": 0.1, "epochs": 1, "batch_size": 8, "seed": 5, "engine": "serial"}
SMALL = {"hidden": 10, "depth": 1}


@pytest.fixture(scope="module")
def fed():
    return fedkin.federate("digits", partition="dirichlet", clients=5, alpha=0.5, samples_per_client=50, seed=3)


def run(method, fed, **changes):
    return fedkin.run(method, fed, model="mlp", model_options={"width": 0.25}, **{**SETTINGS, **changes})


def network(fed):
    return Network(maker("mlp", fed.shape, fed.classes, 5, {"width": 0.25})(0), fed.example)


def initial_state(method, fed):
    """The state before round 1: taken from a run whose every reply is a zero change."""
    seen = []

    class Watched(PFedHN):
        def init(self, fed):
            seen.append(super().init(fed))
            return seen[0]

    run(Watched(**{f: getattr(method, f) for f in method.__dataclass_fields__}), fed, rounds=1)
    return seen[0]


class HyperNetwork(nn.Module):
    """As in the paper: embeddings, an MLP, and one linear output layer for each tensor of the target."""

    def __init__(self, state, sizes):
        super().__init__()
        net = state["net"]
        self.embeddings = nn.Embedding.from_pretrained(state["embeddings"].clone(), freeze=False)
        self.layers = nn.ModuleList()
        for k in range(len(net) // 2 - 1):
            self.layers.append(self.linear(net[f"weight{k}"], net[f"bias{k}"]))
        last = len(net) // 2 - 1
        parts = zip(net[f"weight{last}"].split(sizes), net[f"bias{last}"].split(sizes))
        self.outputs = nn.ModuleList(self.linear(w, b) for w, b in parts)

    @staticmethod
    def linear(weight, bias):
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.weight.data, layer.bias.data = weight.clone(), bias.clone()
        return layer

    def forward(self, i):
        x = self.embeddings(torch.tensor(i))
        for layer in self.layers:
            x = torch.relu(layer(x))
        return torch.cat([out(x) for out in self.outputs])


def inner(client, vector, method):
    """K batches of SGD, each gradient clipped as in the authors' code."""
    net = client.net
    net.load(vector)
    net.train()
    optimizer = torch.optim.SGD(net.module.parameters(), lr=0.1)
    for x, y in stream(client, steps=method.inner_steps or None):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net.module(x), y).backward()
        nn.utils.clip_grad_norm_(net.module.parameters(), method.inner_clip)
        optimizer.step()
    return net.vector()


@pytest.mark.parametrize(
    ("method", "participation"),
    [
        (PFedHN(**SMALL, server_clip=0.5), 0.2),  # one client a round, as in the paper
        (PFedHN(**SMALL, inner_clip=0.5), 1.0),
        (PFedHN(**SMALL, step="each", server_lr=0.01), 1.0),
        (PFedHN(**SMALL, step="sum", inner_steps=4, server_lr=0.01), 0.6),
        (PFedHN(**SMALL, personal_head=True), 0.6),
    ],
    ids=["one", "mean", "each", "sum", "pc"],
)
def test_golden(fed, method, participation):
    got = run(method, fed, participation=participation)
    net = network(fed)
    head = net.layout.head
    made = torch.tensor([p for p in range(net.layout.size) if not method.personal_head or p not in set(head.tolist())])
    sizes = [p.stop - p.start for p in net.layout.pieces if p.start in set(made.tolist())]
    hyper = HyperNetwork(initial_state(method, fed), sizes)
    optimizer = torch.optim.SGD(hyper.parameters(), lr=method.server_lr, momentum=0.9, weight_decay=1e-3)
    heads = {}
    for t in (1, 2, 3):
        back = [r.client for r in got.history.select("bytes_up", round=t)]
        theta = {i: hyper(i).detach() for i in back}
        delta = {}
        for i in back:
            row = net.initial.clone()
            row[head] = heads.get(i, row[head])
            row[made] = theta[i]
            client = Client({}, fed.data(i), client_seed(5, t, i), net, Training(0.1, 1, 8))
            trained = inner(client, row, method)
            delta[i] = theta[i] - trained[made]
            heads[i] = trained[head].clone()
        optimizer.zero_grad()
        for n, i in enumerate(back):
            hyper(i).backward(delta[i] / (len(back) if method.step == "mean" else 1))
            if method.step == "each" or n == len(back) - 1:
                nn.utils.clip_grad_norm_(hyper.parameters(), method.server_clip)
                optimizer.step()
                optimizer.zero_grad()
    sent = method.send(got.state, torch.arange(5)).own[0]
    np.testing.assert_allclose(sent, torch.stack([hyper(i) for i in range(5)]).detach(), atol=2e-5)
    assert {r.value for m in ("bytes_up", "bytes_down") for r in got.history.select(m)} == {4 * len(made)}
    assert got.history.values("personal", round=3) == got.history.values("received", round=3)


# ---- the chain rule
def test_one_inner_step_is_a_gradient_step_of_the_hypernetwork(make_client):
    """K = 1: the vector pulled back is η ∂F/∂φ."""
    client = make_client(batch_size=10_000, lr=0.3, epochs=1)
    torch.manual_seed(0)
    net = hypernetwork(embedding=3, hidden=16, depth=1, outputs=client.net.layout.parameters, seed=0)
    table = torch.randn(2, 3)
    theta = produced(net, table[1])
    slope, _ = gradient(client.net, theta, client.data.train)
    one = torch.tensor([1])
    got = pulled_back(net, table, one, (theta - sgd(client, theta))[None])
    want = pulled_back(net, table, one, 0.3 * slope[None])
    for name in want:
        np.testing.assert_allclose(got[name], want[name], atol=1e-5)
    assert (got["embeddings"][0] == 0).all()  # only the client's own
    assert (got["embeddings"][1] != 0).any()


def merged(method, state, answers):
    ids = torch.tensor(list(answers))
    body = (torch.stack(list(answers.values())),)
    return method.merge(state, None, Replies(ids, torch.ones(len(ids)), body, torch.arange(len(ids)), 0))


def test_no_change_moves_the_hypernetwork_by_decay_alone(fed):
    method = PFedHN(**SMALL, server_decay=0.1)
    state = initial_state(method, fed)
    size = len(state["net"]["bias2"])
    after = merged(method, state, {2: torch.zeros(size)})
    for name, part in state["net"].items():
        np.testing.assert_allclose(after["net"][name], part * (1 - 0.1 * 0.1), atol=1e-7)
    still = PFedHN(**SMALL, server_decay=0.0)
    assert equal(merged(still, state, {2: torch.zeros(size)})["net"], state["net"])


def test_a_hypernetwork_that_is_its_bias_is_reptile():
    """Zero weights: θ = φ, and a plain step moves it by lr toward what the client found."""
    method = PFedHN(server_lr=0.5, server_momentum=0.0, server_decay=0.0, hidden=2, depth=0)
    net = {"weight0": torch.zeros(2, 1), "bias0": torch.zeros(2), "weight1": torch.zeros(3, 2), "bias1": torch.ones(3)}
    state = {"net": net, "embeddings": torch.ones(1, 1)}
    state["velocity"] = {k: torch.zeros_like(v) for k, v in {**net, "embeddings": state["embeddings"]}.items()}
    after = merged(method, state, {0: torch.tensor([1.0, -2.0, 0.0])})
    np.testing.assert_allclose(method.send(after, torch.tensor([0])).own[0], [[0.5, 2.0, 1.0]])


def test_clipping():
    short = clipped([torch.tensor([3.0]), torch.tensor([4.0])], 1.0)
    assert float(short[0]) == pytest.approx(0.6, rel=1e-4)
    assert float(clipped([torch.tensor([3.0])], 50.0)[0]) == 3.0


def test_many_clients_do_not_diverge():
    """One step per reply does: the later ones are stale."""
    fed = fedkin.federate("digits", partition="dirichlet", clients=20, samples_per_client=40, seed=0)
    losses = {}
    for step in ("mean", "each"):
        result = fedkin.run(PFedHN(step=step), fed, model="mlp", lr=0.05, rounds=8, engine="serial", evaluate_every=0)
        values = result.history.values("personal_loss", round=8).values()
        losses[step] = sum(float("inf") if v is None else v for v in values) / 20
    assert losses["mean"] < 2.2  # log 10 = 2.3
    assert losses["each"] > 10


@pytest.mark.parametrize("name", ["pfedhn", "pfedhn-pc"])
def test_losses_arrivals_and_resume(fed, name, tmp_path):
    method = fedkin.method(name, **SMALL)
    changes = {"lost": 0.4, "participation": 0.7, "arrive": {4: 2}, "leave": {0: 3}, "rounds": 4}
    straight = run(method, fed, **changes)
    run(method, fed, **{**changes, "rounds": 2}, out=tmp_path, checkpoint_every=1)
    assert equal(straight.state, run(method, fed, **changes, out=tmp_path, checkpoint_every=1).state)


def test_heads_are_each_clients_own(fed):
    """Two clients with the same body: what they predict with differs, and differs from the initial head."""
    method = PFedHN(**SMALL, personal_head=True)
    result = run(method, fed)
    assert result.state["net"]["bias2"].shape[0] == len(network(fed).layout.body)
    assert len(set(result.history.values("personal_loss", round=3).values())) == 5


@pytest.mark.parametrize(
    "fields", [{"server_lr": 0.0}, {"hidden": 0}, {"server_clip": 0.0}, {"server_momentum": 1.0}, {"step": "all"}]
)
def test_wrong_fields_are_named(fields):
    with pytest.raises(ValueError, match=f"{next(iter(fields))}="):
        PFedHN(**fields)
