"""pFedMe in plain loops, its envelope's gradient, and what it becomes at the ends of its parameters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from plain_baselines import (
    LR,
    a_client,
    federation,
    gradient,
    isolated,
    losses,
    message,
    network,
    run,
    sizes,
    smooth,
    survives,
)

from fedkin.client.evaluate import evaluate
from fedkin.client.training import batches, sgd
from fedkin.methods.pfedme import PFedMe
from fedkin.protocol import Message

YES = torch.tensor(True)


def paper(rounds, *, lam, k, inner_lr, beta, warm, weights, chosen=None):
    """Algorithm 1 with every client's θ."""
    net = network()
    model, thetas = net.initial.clone(), {}
    for round in range(1, rounds + 1):
        answers = []
        for i in range(6):
            client = a_client(i, round=round, net=net)
            w, theta = model.clone(), model.clone()
            for epoch in range(2):
                for x, y in batches(client, epoch=epoch):
                    theta = theta if warm else w.clone()
                    for _ in range(k):
                        theta = theta - inner_lr * (gradient(net, theta, x, y) + lam * (theta - w))
                    w = w - LR * lam * (w - theta)
            answers.append(w)
            thetas[i] = theta
        mine = weights if chosen is None else [g * (i in chosen[round]) for i, g in enumerate(weights)]
        mean = sum(g * w for g, w in zip(mine, answers)) / sum(mine)
        model = (1 - beta) * model + beta * mean
    return model, thetas


@pytest.mark.parametrize(("warm", "weighting", "beta"), [(True, "equal", 1.0), (False, "size", 0.5)])
def test_it_is_the_papers_algorithm(warm, weighting, beta):
    method = PFedMe(lam=8.0, inner_steps=3, warm_start=warm, weighting=weighting, beta=beta)
    got = run(method)
    weights = [1.0] * 6 if weighting == "equal" else sizes().tolist()
    model, thetas = paper(3, lam=8.0, k=3, inner_lr=0.05, beta=beta, warm=warm, weights=weights)
    assert torch.allclose(got.state["model"], model, atol=2e-5)
    for i in range(6):
        want = evaluate(network(), thetas[i], federation().test(i))[1]
        assert losses(got)[i] == pytest.approx(want, rel=1e-3), "θ_i is used, as the client's last round left it"


def test_all_work_and_only_the_chosen_are_averaged():
    method = PFedMe(lam=8.0, inner_steps=2)
    got = run(method, participation=0.5)
    rows = {r: {x.client: x.value for x in got.history.select("bytes_up", round=r)} for r in (1, 2, 3)}
    chosen = {r: {c for c, size in up.items() if size} for r, up in rows.items()}
    assert all(len(up) == 6 and len(chosen[r]) == 3 for r, up in rows.items())
    assert len({tuple(sorted(c)) for c in chosen.values()}) > 1
    model, _ = paper(3, lam=8.0, k=2, inner_lr=0.05, beta=1.0, warm=True, weights=[1.0] * 6, chosen=chosen)
    assert torch.allclose(got.state["model"], model, atol=2e-5)
    fewer = run(PFedMe(everyone=False), participation=0.5)
    assert len({r.client for r in fewer.history.select("flops", round=1)}) == 3
    assert all(r.value for r in fewer.history.select("bytes_up"))


def local(method, start, *, net=None, **training):
    return method.local(a_client(0, net=net, **training), Message(shared=(start,), own=(YES,)))


def test_the_envelopes_gradient():
    """λ(w − θ*) is ∇f(θ*) where θ* solves the inner problem: the step has a gradient, and the right one."""
    net = smooth()
    whole = {"batch_size": 1000, "epochs": 1}
    done = local(PFedMe(lam=15.0, inner_steps=400, inner_lr=0.03), net.initial, net=smooth(), **whole)
    client = a_client(0, **whole)
    theta, w0 = done.state["theta"], net.initial
    x, y = next(batches(client, epoch=0))
    assert torch.allclose(15.0 * (w0 - theta), gradient(net, theta, x, y), atol=1e-4)
    assert torch.allclose(done.body[0], w0 - LR * 15.0 * (w0 - theta), atol=1e-6)


def test_a_quadratics_inner_problem():
    """θ = (H + λI)⁻¹(Hc + λw), by the same steps on numbers."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(3, 3))
    h, c, w, lam = root @ root.T, rng.normal(size=3), rng.normal(size=3), 4.0
    theta = w.copy()
    for _ in range(3000):
        theta = theta - 0.02 * (h @ (theta - c) + lam * (theta - w))
    want = np.linalg.solve(h + lam * np.eye(3), h @ c + lam * w)
    assert theta == pytest.approx(want)
    assert lam * (w - theta) == pytest.approx(lam * np.linalg.solve(h + lam * np.eye(3), h @ (w - c)))


def test_a_large_lambda_is_a_step_of_sgd():
    net = smooth()
    whole = {"batch_size": 1000, "epochs": 1, "lr": 0.001}
    got = local(PFedMe(lam=1000.0, inner_lr=0.0005, inner_steps=100), net.initial, net=smooth(), **whole).body[0]
    want = sgd(a_client(0, net=net, **whole), net.initial.clone())
    assert (got - want).norm() < 0.05 * (want - net.initial).norm()


def test_ends_of_its_parameters():
    net = network()
    assert torch.equal(local(PFedMe(lam=0.0), net.initial).body[0], net.initial), "λ=0: w never moves"
    once = local(PFedMe(lam=10.0, local_rounds=1), net.initial)  # ηλ = 1, R = 1
    assert torch.allclose(once.body[0], once.state["theta"], atol=1e-6)
    still = run(PFedMe(beta=0.0))
    assert torch.equal(still.state["model"], net.initial), "β=0: the server stays"


def test_faults_are_named():
    with pytest.raises(ValueError, match=r"lr=0.2 times lam=15.0 is 3.*at most 0.0667"):
        run(PFedMe(), lr=0.2)
    with pytest.raises(ValueError, match="inner_steps=0 must be at least 1"):
        PFedMe(inner_steps=0)


def test_it_survives(tmp_path):
    survives(PFedMe(inner_steps=2), tmp_path)


def test_clients_states_are_their_own():
    isolated(PFedMe(inner_steps=2))


def test_a_newcomer_uses_the_received_model():
    net = network()
    assert PFedMe().personal(a_client(0, net=net), message(net.initial, YES), lambda: None) is not None
