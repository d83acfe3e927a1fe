"""Faults found in other implementations, each made again in a few lines.

For each: the faulty code, the consequence it has, and the same question put to ours. The list is in the specification
of the baselines (cross-cutting pitfalls, and those of each method).
"""

from __future__ import annotations

import functools
from collections import defaultdict
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from plain_baselines import LR, SEED, a_client, federation, losses, network, run
from torch import nn
from torch.nn import functional as F

import fedkin
from fedkin.client.evaluate import evaluate
from fedkin.client.training import batches, sgd
from fedkin.engine.runner import client_seed
from fedkin.methods import METHODS, method
from fedkin.methods.cfl import CFL
from fedkin.methods.clusterfl_kmeans import ClusterFLKMeans
from fedkin.methods.ditto import Ditto
from fedkin.methods.fedah import FedAH
from fedkin.methods.fedamp import FedAMP
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.fedbn import batch_norms
from fedkin.methods.fedprox import FedProx
from fedkin.methods.ifca import IFCA
from fedkin.methods.local import Local
from fedkin.methods.pfedme import PFedMe
from fedkin.methods.scaffold import Scaffold
from fedkin.methods.sfl import SFL
from fedkin.models.network import Network, build
from fedkin.protocol import Client, Message, Replies, Reply, Server, Training
from fedkin.results.store import equal

# One name for each class: variants share its code.
EACH = sorted({entry.target: name for name, entry in reversed(METHODS.items())}.values())

# ---- a regularizer without a gradient (PFLlib's FedAMP, the official SFL, kwon1585/FedAMP)


def proximal(center, strength, *, dead):
    def loss(net, x, y):
        w = torch.cat([(p.data if dead else p).reshape(-1) for p in net.parameters])
        return F.cross_entropy(net(x), y) + strength / 2 * ((w - center) ** 2).sum()

    return loss


def test_a_term_built_from_data_has_a_value_and_no_effect():
    client = a_client()
    center = torch.zeros(client.net.layout.parameters)
    x, y = client.data.x, client.data.y
    dead, alive = proximal(center, 1.0, dead=True), proximal(center, 1.0, dead=False)
    with torch.no_grad():
        assert dead(client.net, x, y) == alive(client.net, x, y), "the loss value cannot tell them apart"
    start = client.net.initial
    without, faulty, right = (sgd(client, start, loss=f) for f in (proximal(center, 0.0, dead=False), dead, alive))
    assert torch.equal(faulty, without)
    assert not torch.allclose(right, without, atol=1e-2)


def near(name, strength):
    """The model that a client trains, for a method whose term pulls it to what was sent; all from the same batches."""
    net = network()
    sent = net.initial + 0.05 * torch.randn(net.layout.size, generator=torch.Generator().manual_seed(1))
    own = net.initial.clone()
    client = a_client(net=net)
    if name == "fedprox":
        return FedProx(mu=strength).local(client, Message((sent,))).body[0], sent
    if name == "fedamp":
        client = client._replace(state={"model": own})
        return FedAMP(lam=strength, start="local").local(client, Message(own=(sent,))).body[0], sent
    if name == "pfedme":
        reply = PFedMe(lam=strength, inner_lr=0.02).local(client, Message((sent,), (torch.tensor(True),)))
        return reply.state["theta"], sent
    if name == "ditto":
        return Ditto(lam=strength).local(client._replace(state={"model": own}), Message((sent,))).state["model"], sent
    if name == "clusterfl-kmeans":
        client = client._replace(state={"model": own})
        return ClusterFLKMeans(lam=strength, start="own").local(client, Message(own=(sent,))).body[0], sent
    if name == "sfl":
        both = Message((sent,), (sent,))
        return SFL(pull_personal=strength, pull_global=strength).local(client, both).body[0], sent
    raise KeyError(name)


@pytest.mark.parametrize("name", ["fedprox", "fedamp", "pfedme", "ditto", "clusterfl-kmeans", "sfl"])
def test_our_terms_pull(name):
    weak, strong = near(name, 0.0), near(name, 5.0)
    assert (strong[0] - strong[1]).norm() < 0.8 * (weak[0] - weak[1]).norm()


# ---- defaults that switch the method off (PFLlib: beta=0, mu=0)


@dataclass(frozen=True)
class FrozenServer(PFedMe):
    beta: float = 0.0


@dataclass(frozen=True)
class DeadProximal(FedProx):
    mu: float = 0.0


def test_a_server_with_beta_zero_never_moves():
    start = network().initial
    assert torch.equal(run(FrozenServer(), lr=0.01).state["model"], start)
    assert not torch.allclose(run(PFedMe(), lr=0.01).state["model"], start, atol=1e-3)


def test_fedprox_with_mu_zero_is_fedavg():
    want = run(FedAvg()).state["model"]
    assert torch.equal(run(DeadProximal()).state["model"], want)
    assert not torch.allclose(run(FedProx()).state["model"], want, atol=1e-4)


# ---- pFedMe: the personal model is read, never written (FL-bench); or leaks into the next round (PFLlib)


class StalePersonal(PFedMe):
    def personal(self, client, message, trained):
        return client.net.initial  # what `clients_personalized_model_params` holds from beginning to end


class OldStart(PFedMe):
    def local(self, client, message):
        # evaluation left θ loaded in the client: the inner loop goes on from there instead of from w_t
        start = client.state.get("theta", message.shared[0])
        return super().local(client, Message((start,), message.own))


def test_a_personal_model_that_is_never_written_back_stays_as_it_was():
    rounds = [run(StalePersonal(), rounds=r, lr=0.01) for r in (1, 3)]
    assert losses(rounds[0], 1) == losses(rounds[1], 3)
    rounds = [run(PFedMe(), rounds=r, lr=0.01) for r in (1, 3)]
    one, three = losses(rounds[0], 1), losses(rounds[1], 3)
    assert all(three[i] != one[i] for i in one)
    assert sum(three.values()) < sum(one.values())


def test_a_round_of_pfedme_starts_at_the_received_model():
    old = network().initial + 1.0
    client = a_client(lr=0.01)
    message = Message((client.net.initial.clone(),), (torch.tensor(True),))

    def depends(kind):
        fresh, stale = (kind().local(client._replace(state=s), message) for s in ({}, {"theta": old}))
        return not equal(fresh.body, stale.body)

    assert depends(OldStart)
    assert not depends(PFedMe)


# ---- CFL: positions inside the sub-matrix stored as client ids (the authors' notebook, FL-bench)

U, V = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 1.0, 0.0])
FIRST = torch.stack([U if i % 2 == 0 else -U for i in range(8)])  # even clients against odd ones
SECOND = torch.stack([U if i % 2 == 0 else (V if i % 4 == 1 else -V) for i in range(8)])  # then 1, 5 against 3, 7


def faulty_split(members, updates):
    signs = [float(updates[i] @ updates[members[0]]) > 0 for i in members]
    return [k for k, s in enumerate(signs) if s], [k for k, s in enumerate(signs) if not s]  # should be members[k]


def test_positions_for_ids_lose_clients_from_the_second_split_on():
    one, two = faulty_split(list(range(8)), FIRST)
    assert sorted(one + two) == list(range(8)), "right by luck: the first cluster is 0..n-1"
    clusters = [one, *faulty_split(two, SECOND)]
    counts = np.bincount(np.concatenate(clusters), minlength=8)
    assert set(counts) == {0, 1, 2}, "some clients are in no cluster, some in two"


def test_clusters_of_cfl_cover_every_client_once():
    n, ids = torch.full((8,), 10), torch.arange(8)
    server = Server(ids, n, 2, 0, 1.0, Training(), SimpleNamespace(parameters=3), lambda k: torch.zeros(3))
    cfl = CFL(eps1=0.1, eps2=0.5, scale="absolute", wait=0)
    state = cfl.init(server)
    for updates in (FIRST, SECOND):
        state = cfl.merge(state, cfl.send(state, ids), Replies(ids, n, (updates,), ids, 0))
    members = defaultdict(set)
    for i, label in enumerate(state["labels"].tolist()):
        members[label].add(i)
    assert sorted(members.values(), key=min) == [{0, 2, 4, 6}, {1, 5}, {3, 7}]


# ---- one worker for all clients: what it keeps goes from client to client (FL-bench's FedAH, FedCEDAR's main.py)


class Leaky(FedAH):
    """The previous head and the weights W are kept on the worker, not with the client."""

    worker: dict = {}

    def local(self, client, message):
        done = super().local(client._replace(state=dict(self.worker)), message)
        self.worker.update(done.state)
        return done


class ByHand:
    """Rounds of a method at one site, its clients in a given order: nothing may depend on that order."""

    def __init__(self, order, model=None):
        self.order, self.fed = order, federation()
        self.net = Network(build(model, SEED), self.fed.example) if model else network()
        self.training = Training(LR, 1, 8)
        self.states = {}

    def run(self, function, message):
        replies = {}
        for i in self.order:
            client = Client(
                self.states.get(i, self.method.init_client()), self.fed.data(i), client_seed(SEED, self.t, i), self.net,
                self.training,
            )  # fmt: skip
            torch.manual_seed(client.seed)
            done = getattr(self.method, function.__name__)(client, message.for_position(i))
            self.states[i], replies[i] = done.state, done.body
        rows = [replies[i] for i in sorted(replies)]
        body = tuple(
            torch.stack([torch.as_tensor(v) for v in part])
            if len({torch.as_tensor(v).shape for v in part}) == 1
            else list(part)
            for part in zip(*rows)
        )
        return Replies(self.ids, self.fed.sizes, body, self.ids, self.t)

    def rounds(self, method, count):
        self.method, self.ids = method, torch.arange(len(self.fed))
        make = self.net.initial
        server = Server(
            self.ids, self.fed.sizes, self.fed.classes, SEED, 1.0, self.training, self.net.layout,
            lambda k: make + 0.1 * k,
        )  # fmt: skip
        state = method.init(server)
        for self.t in range(1, count + 1):
            state = method.round(state, self)
        return state, self.states


def depends_on_order(make, model=None):
    one, two = (ByHand(order, model).rounds(make(), 3) for order in ([0, 1, 2, 3, 4, 5], [5, 3, 1, 4, 2, 0]))
    return not equal(one, two)


def test_what_a_worker_keeps_goes_to_the_next_client():
    def fresh():
        Leaky.worker.clear()
        return Leaky(weight_lr=50.0)  # so that W moves within three rounds

    assert depends_on_order(fresh)
    assert not depends_on_order(lambda: FedAH(weight_lr=50.0))


@pytest.mark.parametrize("name", EACH)
def test_the_order_of_clients_at_a_site_changes_no_bit(name):
    """Heads, weights, control variates, previous models: all stay with their client."""
    assert not depends_on_order(lambda: method(name))


def with_batch_norm():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))


def test_batch_norm_of_fedbn_stays_with_its_client():
    assert not depends_on_order(lambda: method("fedbn"), with_batch_norm)


# ---- FedAMP that is exactly local training (PFLlib): the cloud model is never loaded and its term is dead


class LocalInDisguise(FedAMP):
    def local(self, client, message):
        center = message.own[0][: client.net.layout.parameters]
        loss = proximal(center, self.lam / self.alpha, dead=True)
        trained = sgd(client, client.state.get("model", client.net.initial), loss=loss)
        return Reply({"model": trained}, (trained,))


def test_fedamp_with_a_dead_term_is_local_training_and_ours_is_not():
    alone = losses(run(Local()))
    disguised = losses(run(LocalInDisguise()))
    assert all(disguised[i] == pytest.approx(alone[i], rel=1e-4) for i in alone)
    for ours in (FedAMP(), FedAMP(start="local"), FedAMP(heuristic=True, start="local")):
        got = losses(run(ours))
        assert all(abs(got[i] - alone[i]) > 1e-3 * alone[i] for i in alone), ours


# ---- drop_last (PFLlib): a client with fewer rows than a batch takes no step, and keeps its weight


def test_drop_last_leaves_small_clients_untrained():
    client = a_client(batch_size=1000)
    dropping = [rows for rows in batches(client, epoch=0) if len(rows.y) == client.training.batch_size]
    assert dropping == [], "no batch is whole, so there is no step"
    assert not torch.equal(sgd(client, client.net.initial), client.net.initial)
    assert sum(len(rows.y) for rows in batches(a_client(batch_size=8), epoch=0)) == len(client.data.y)


@functools.cache
def small(name):
    """Two rounds in which every client has fewer rows than a batch."""
    return run(method(name), rounds=2, batch_size=1000, lr=0.05, evaluate_every=1)


@pytest.mark.parametrize("name", EACH)
def test_every_method_trains_clients_that_are_smaller_than_a_batch(name):
    """Were their batches dropped, nothing at all would move."""
    assert losses(small(name), 1) != losses(small(name), 2)


# ---- buffers of batch norm from the first client (PFLlib averages .parameters() in a copy of that client)


def faulty_average(rows, weights, parameters):
    out = rows[0].clone()  # deepcopy(uploaded_models[0])
    out[:parameters] = weights @ rows[:, :parameters]
    return out


def test_the_first_clients_statistics_for_everybody():
    net = Network(build(with_batch_norm, SEED), federation().example)
    rows = torch.stack([FedAvg().local(a_client(i, net=net), Message((net.initial,))).body[0] for i in range(6)])
    count, weights = net.layout.parameters, federation().sizes / federation().sizes.sum()
    turned = torch.arange(6).flip(0)
    faulty = [faulty_average(rows[o], weights[o], count) for o in (torch.arange(6), turned)]
    assert torch.equal(faulty[0][count:], rows[0, count:])
    assert not torch.allclose(faulty[0], faulty[1], atol=1e-3), "it depends on who comes first"
    state = {"share": torch.zeros(6)}
    n = federation().sizes
    ours = [
        FedAvg().merge(state, Message(), Replies(o, n[o], (rows[o],), o, 0))["model"] for o in (torch.arange(6), turned)
    ]
    assert torch.allclose(ours[0], ours[1], atol=1e-6)
    assert torch.allclose(ours[0][count:], weights @ rows[:, count:], atol=1e-5)


# ---- SCAFFOLD whose clients forget their control variate, or count epochs as steps (FL-bench)


class Forgetful(Scaffold):
    def local(self, client, message):
        done = super().local(client._replace(state={}), message)
        return Reply({}, done.body)


class EpochsForSteps(Scaffold):
    def local(self, client, message):
        x, c = message.shared
        y = super().local(client, message).body[0]
        mine = client.state.get("control", torch.zeros_like(c))
        new = mine - c + (x - y) / (client.training.epochs * client.training.lr)
        return Reply({"control": new}, (y, new - mine))


def test_control_variates_are_kept_and_are_gradients():
    def control(kind, rounds):
        site = ByHand(range(6))
        state, private = site.rounds(kind(), rounds)
        return state["control"], private

    kept, private = control(Scaffold, 3)
    assert torch.allclose(kept, torch.stack([private[i]["control"] for i in range(6)]).mean(0), atol=1e-5)
    forgotten, private = control(Forgetful, 3)
    assert private[0] == {}
    assert not torch.allclose(forgotten, kept, atol=1e-2)
    once, miscounted = control(Scaffold, 1)[0], control(EpochsForSteps, 1)[0]
    assert miscounted.norm() > 1.9 * once.norm(), "as many times too large as there are batches in an epoch"


# ---- batch norm found by its name (the authors' code of FedBN)


def test_batch_norm_has_many_names():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.downsample = nn.BatchNorm1d(4), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

        def forward(self, x):
            return self.norm(x) + self.downsample(x)

    net = Network(Block(), torch.zeros(2, 4))
    assert not [piece.name for piece in net.layout.pieces if "bn" in piece.name], "none found: all would be averaged"
    assert int(batch_norms(net).sum()) == 2 * 4 * 4


# ---- a cluster chosen by test loss (IFCA's code for MNIST and CIFAR), the best model by test accuracy (LG-FedAvg)


class Peeking(IFCA):
    """Clients choose their cluster by the loss on their test examples."""

    @property
    def sees_test(self):
        return True

    def local(self, client, message):
        values = [evaluate(client.net, m, client.data.test)[1] for m in message.shared[0]]
        best = values.index(min(values))
        return Reply({}, (sgd(client, message.shared[0][best]), torch.tensor(best, dtype=torch.int32)))


@pytest.fixture(scope="module")
def other_tests():
    """The same federation, but every client's test examples are another client's."""
    fed = federation()
    splits = [replace(s, test=fed.splits[i - 1].test) for i, s in enumerate(fed.splits)]
    return fedkin.Federation(fed.arrays, fed.partition, tuple(splits), fed.description)


def test_choosing_by_test_examples_lets_them_into_the_models(other_tests):
    a, b = (run(Peeking(clusters=3), fed=f) for f in (federation(), other_tests))
    assert not equal(a.state["models"], b.state["models"])


@pytest.mark.parametrize("name", EACH)
def test_test_examples_have_no_say(name, other_tests):
    assert not method(name).sees_test
    a, b = small(name), run(method(name), fed=other_tests, rounds=2, batch_size=1000, lr=0.05, evaluate_every=1)
    assert equal(a.state, b.state)
    assert losses(a, 2) != losses(b, 2), "the scorer alone sees them"


def test_a_client_cannot_look_at_its_test_examples():
    with pytest.raises(PermissionError, match="scorer"):
        _ = a_client().data.test
