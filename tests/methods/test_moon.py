"""MOON against its paper: in plain loops, its contrastive loss by hand, and its reductions."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedkin
from fedkin.client.training import batches
from fedkin.engine.runner import client_seed
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.moon import MOON, contrast, features
from fedkin.models.network import Network, build
from fedkin.protocol import Client, Message, Training
from fedkin.results.store import equal

SETTINGS = {"rounds": 3, "lr": 0.1, "epochs": 2, "batch_size": 8, "seed": 5, "engine": "serial"}


def make():
    """No closed-form gradient here, unlike the library's own mlp: losses are compared to the bit."""
    return build(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10)), 4)


@pytest.fixture(scope="module")
def fed():
    return fedkin.federate("digits", partition="dirichlet", clients=4, alpha=0.5, samples_per_client=40, seed=3)


def run(method, fed, **changes):
    return fedkin.run(method, fed, **{"model": make, **SETTINGS, **changes})


def paper(fed, rounds, *, mu, tau, buffer=1):
    """Algorithm 1 in plain loops: three networks side by side, the contrast written out as in eq. (3)."""
    net = Network(make(), fed.example)
    glob = make()
    previous = {i: [make()] for i in range(len(fed))}
    n = [len(s.train) for s in fed.splits]
    for t in range(1, rounds + 1):
        trained = []
        for i in range(len(fed)):
            client = Client({}, fed.data(i), client_seed(5, t, i), net, Training(0.1, 2, 8))
            local = copy.deepcopy(glob)
            optimizer = torch.optim.SGD(local.parameters(), lr=0.1)
            for epoch in range(2):
                for x, y in batches(client, epoch=epoch):
                    z = local[:-1](x)
                    with torch.no_grad():
                        z_glob, z_prev = glob[:-1](x), [p[:-1](x) for p in previous[i]]
                    up = torch.exp(F.cosine_similarity(z, z_glob) / tau)
                    down = up + sum(torch.exp(F.cosine_similarity(z, p) / tau) for p in z_prev)
                    l_con = -torch.log(up / down).mean()  # eq. (3)
                    optimizer.zero_grad()
                    (F.cross_entropy(local[-1](z), y) + mu * l_con).backward()  # eq. (4)
                    optimizer.step()
            trained.append(local)
            previous[i] = [local, *(previous[i] if t > 1 else [])][
                :buffer
            ]  # the initial model is nobody's previous one
        mean = {k: sum(w * m.state_dict()[k] for w, m in zip(n, trained)) / sum(n) for k in glob.state_dict()}
        glob = copy.deepcopy(glob)
        glob.load_state_dict(mean)
    return net.layout.flatten(glob.state_dict())


@pytest.mark.parametrize(("mu", "tau", "buffer"), [(1.0, 0.5, 1), (5.0, 0.5, 1), (5.0, 0.2, 2)])
def test_it_is_the_papers_algorithm(fed, mu, tau, buffer):
    got = run(MOON(mu=mu, temperature=tau, buffer=buffer), fed).state["model"]
    want = paper(fed, 3, mu=mu, tau=tau, buffer=buffer)
    assert torch.allclose(got, want, atol=2e-5)
    assert not torch.allclose(got, run(FedAvg(), fed).state["model"], atol=1e-3)


def test_a_longer_buffer_is_felt(fed):
    one, two = (run(MOON(mu=5.0, buffer=b), fed).state["model"] for b in (1, 2))
    assert not torch.allclose(one, two, atol=1e-4)


# ---- reductions
def test_without_its_term_it_is_fedavg_to_the_bit(fed):
    assert equal(run(MOON(mu=0.0), fed).state["model"], run(FedAvg(), fed).state["model"])


def test_without_its_term_it_is_fedavg_on_the_librarys_mlp(fed):
    a, b = (run(m, fed, model="mlp").state["model"] for m in (MOON(mu=0.0), FedAvg()))
    assert torch.allclose(a, b, atol=1e-5)


def test_its_first_round_is_fedavg(fed):
    """The previous model is the common initial one, as is the received one: nothing to tell apart."""
    a, b = (run(m, fed, rounds=1).state["model"] for m in (MOON(mu=5.0), FedAvg()))
    assert torch.allclose(a, b, atol=1e-5)


# ---- the contrastive loss
def test_equal_models_give_log_two_and_no_gradient():
    z, same = torch.randn(6, 5, requires_grad=True), torch.randn(6, 5)
    value = contrast(z, torch.stack([same, same]), 0.5)
    assert float(value.detach()) == pytest.approx(math.log(2))
    assert torch.allclose(torch.autograd.grad(value, z)[0], torch.zeros(6, 5), atol=1e-7)


def test_the_contrast_by_hand_and_its_gradient():
    z = torch.tensor([[1.0, 0.0]], requires_grad=True)
    others = torch.tensor([[[1.0, 1.0]], [[0.0, -2.0]]])
    value = contrast(z, others, 0.5)
    up, down = math.exp(math.sqrt(0.5) / 0.5), math.exp(0 / 0.5)
    assert float(value.detach()) == pytest.approx(-math.log(up / (up + down)), rel=1e-5)
    slope = torch.autograd.grad(value, z)[0]
    step = 1e-3
    for k in range(2):
        move = torch.zeros(1, 2)
        move[0, k] = step
        with torch.no_grad():
            want = (contrast(z + move, others, 0.5) - contrast(z - move, others, 0.5)) / (2 * step)
        assert float(slope[0, k]) == pytest.approx(float(want), abs=1e-3)
    assert float(slope[0, 1]) < -0.1, "downhill is toward the received model, away from the previous one"


def test_training_holds_features_near_the_received_model(fed):
    """The term's effect, not its value: with it, features end nearer to the received and farther from the previous."""
    net = Network(make(), fed.example)
    received, previous = net.initial.clone(), torch.randn(1, net.layout.size, generator=torch.manual_seed(0)) * 0.3
    client = Client({"previous": previous}, fed.data(0), 3, net, Training(0.1, 4, 8))
    x = client.data.x

    def gap(mu):
        row = MOON(mu=mu).local(client, Message((received,))).body[0]
        z = features(net, row, x)
        return [float(F.cosine_similarity(z, features(net, m, x)).mean()) for m in (received, previous[0])]

    near, far = gap(5.0), gap(0.0)
    assert near[0] - near[1] > far[0] - far[1] + 0.01


def test_the_previous_model_is_the_clients_own(fed):
    """State isolation: what one client trained is not what another one holds itself away from."""
    net = Network(make(), fed.example)
    mine = [Client({}, fed.data(i), 3, net, Training(0.1, 1, 8)) for i in (0, 1)]
    first = [MOON().local(client, Message((net.initial,))) for client in mine]
    for client, reply in zip(mine, first):
        assert equal(reply.state["previous"], reply.body[0][None])
        again = MOON().local(client._replace(state=reply.state), Message((net.initial,)))
        assert not equal(again.body[0], reply.body[0])
    assert not equal(first[0].state["previous"], first[1].state["previous"])


# ---- in a federation
def test_only_models_travel(fed):
    result = run(MOON(buffer=2), fed)
    assert result.summary["bytes_down"] == result.summary["bytes_up"] == 3 * 4 * 4 * result.state["model"].numel()


def test_lost_replies_absent_clients_and_a_stop(fed, tmp_path):
    method = MOON(mu=2.0)
    result = run(method, fed, lost=0.4, participation=0.6, arrive={3: 2}, leave={0: 3}, rounds=4)
    assert bool(torch.isfinite(result.state["model"]).all())
    assert torch.allclose(method.mixing(result.state).sum(1), torch.ones(4))
    run(method, fed, rounds=2, out=tmp_path, checkpoint_every=1)
    assert equal(run(method, fed, rounds=4, out=tmp_path, checkpoint_every=1).state, run(method, fed, rounds=4).state)


@pytest.mark.parametrize("wrong", [{"mu": -1.0}, {"temperature": 0.0}, {"buffer": 0}])
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        MOON(**wrong)
