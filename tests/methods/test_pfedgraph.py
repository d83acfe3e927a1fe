"""pFedGraph against its paper: the quadratic program by a solver, the rest in plain loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import fedkin
from fedkin.client.evaluate import gradient
from fedkin.client.training import sgd
from fedkin.data.digits import load
from fedkin.engine.runner import client_seed
from fedkin.maths.peers import on_simplex
from fedkin.methods.pfedgraph import PFedGraph
from fedkin.models.build import maker
from fedkin.models.network import Network
from fedkin.protocol import Client, Message, Training
from fedkin.results.store import equal

SETTINGS = {"rounds": 3, "lr": 0.1, "epochs": 1, "batch_size": 8, "seed": 5, "engine": "serial"}


@pytest.fixture(scope="module")
def fed():
    """Clients of unlike sizes."""
    data = load()
    data = replace(data, x=data.x[:400], y=data.y[:400])
    return fedkin.federate(data, partition="dirichlet", clients=5, alpha=0.5, minimum=20, seed=3)


def run(method, fed, **changes):
    return fedkin.run(method, fed, model="mlp", **{**SETTINGS, **changes})


def solved(p, d, lam):
    """min over the simplex of λ‖x − p‖² + d·x, by a general solver."""
    sums = {"type": "eq", "fun": lambda x: x.sum() - 1}
    found = minimize(
        lambda x: lam * ((x - p) ** 2).sum() + d @ x, np.full(len(p), 1 / len(p)), bounds=[(0, 1)] * len(p),
        constraints=sums, method="SLSQP", options={"ftol": 1e-14, "maxiter": 500},
    )  # fmt: skip
    return found.x


def paper(fed, answered, *, graph_lam, lam, sign):
    net = Network(maker("mlp", fed.shape, fed.classes, 5, {})(0), fed.example)
    count = len(fed)
    models, sent = {}, {i: net.initial for i in range(count)}
    for t, back in enumerate(answered, start=1):
        for i in back:

            def regularizer_gradient(w, u=sent[i]):
                w = w.clone().requires_grad_()
                return torch.autograd.grad(sign * lam * torch.cosine_similarity(w, u, dim=0), w)[0]

            client = Client({}, fed.data(i), client_seed(5, t, i), net, Training(0.1, 1, 8))
            models[i] = sgd(client, sent[i], regularizer_gradient=regularizer_gradient)
        heard = sorted(models)
        p = np.array([len(fed.splits[j].train) for j in heard], float)
        p /= p.sum()
        for i in range(count):
            x = p
            if i in models:
                delta = {j: (models[j] - net.initial).double() for j in heard}
                d = [-float(torch.cosine_similarity(delta[i], delta[j], dim=0)) for j in heard]
                x = solved(p, np.array([-1.0 if v < -0.9 else v for v in d]), graph_lam)
            sent[i] = sum(float(a) * models[j] for a, j in zip(x, heard))
    return torch.stack([sent[i] for i in range(count)])


@pytest.mark.parametrize(
    ("method", "sign"),
    [(PFedGraph(graph_lam=1.5, lam=0.5), -1), (PFedGraph(graph_lam=1.5, lam=0.5, official_sign=True), 1)],
)
@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_golden(fed, method, sign, participation):
    got = run(method, fed, participation=participation)
    answered = [[r.client for r in got.history.select("bytes_up", round=t)] for t in (1, 2, 3)]
    want = paper(fed, answered, graph_lam=1.5, lam=0.5, sign=sign)
    np.testing.assert_allclose(method.send(got.state, torch.arange(5)).own[0], want, atol=2e-5)
    graph = method.mixing(got.state)
    assert float(graph.diagonal().min()) > 0
    assert float(graph.diagonal().max()) < 1
    size = 4 * got.state["models"].shape[1]
    assert {r.value for m in ("bytes_up", "bytes_down") for r in got.history.select(m)} == {size}


def test_projection():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(20, 6)) * 2
    found = on_simplex(rows)
    np.testing.assert_allclose(found.sum(1), 1)
    assert (found >= 0).all()
    for row, x in zip(rows, found):
        np.testing.assert_allclose(x, solved(row, np.zeros(6), 1.0), atol=1e-6)


def test_a_stiff_graph_is_fedavg_and_a_loose_one_is_each_alone(fed):
    stiff = run(PFedGraph(graph_lam=1e9, lam=0.0), fed)
    model = run("fedavg", fed).state["model"]
    sent = PFedGraph().send(stiff.state, torch.arange(5)).own[0]
    np.testing.assert_allclose(sent, model.expand(5, -1), atol=1e-5)
    loose = run(PFedGraph(graph_lam=1e-6, lam=0.0), fed, rounds=1)
    np.testing.assert_allclose(loose.state["graph"], torch.eye(5), atol=1e-6)


def test_the_cosine_pulls_nearer(make_client):
    client = make_client(batch_size=10_000, lr=0.1, epochs=2)
    u = client.net.initial
    near, plain, away = (
        PFedGraph(lam=lam, official_sign=sign).local(client, Message(own=(u,))).body[0]
        for lam, sign in ((5.0, False), (0.0, False), (5.0, True))
    )
    cosines = [float(torch.cosine_similarity(w, u, dim=0)) for w in (near, plain, away)]
    assert cosines[0] > cosines[1] > cosines[2]
    slope, _ = gradient(client.net, u, client.data.train)
    one = make_client(batch_size=10_000, lr=0.1, epochs=1)
    first = PFedGraph(lam=5.0).local(one, Message(own=(u,))).body[0]
    np.testing.assert_allclose(first, u - 0.1 * slope, atol=1e-5)  # at u itself the cosine is at its largest


def test_losses_arrivals_and_resume(fed, tmp_path):
    changes = {"lost": 0.4, "participation": 0.7, "arrive": {4: 2}, "leave": {0: 3}, "rounds": 4}
    straight = run("pfedgraph", fed, **changes)
    run("pfedgraph", fed, **{**changes, "rounds": 2}, out=tmp_path, checkpoint_every=1)
    assert equal(straight.state, run("pfedgraph", fed, **changes, out=tmp_path, checkpoint_every=1).state)
    np.testing.assert_allclose(PFedGraph().mixing(straight.state).sum(1), 1, atol=1e-5)


@pytest.mark.parametrize("fields", [{"graph_lam": 0.0}, {"lam": -1.0}])
def test_wrong_fields_are_named(fields):
    with pytest.raises(ValueError, match=f"{next(iter(fields))}="):
        PFedGraph(**fields)
