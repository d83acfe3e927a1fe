"""PFLIC against its paper, in plain loops over both phases, and every property of the spec."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedkin
from fedkin.cli.flags import parse_one
from fedkin.client.evaluate import evaluate
from fedkin.client.training import batches, sgd
from fedkin.engine.reply_bounds import outside
from fedkin.engine.runner import client_seed
from fedkin.maths.mixing import average
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.pflic.method import PFLIC, within
from fedkin.models.build import maker
from fedkin.models.network import Network
from fedkin.protocol import Client, Message, Replies, Server, Training, UnusableReplies
from fedkin.results.store import equal

LR, BATCH, SEED = 0.1, 8, 4


class Smooth(nn.Module):
    """Two layers without a kink: with ReLU, rounding in the last bit now and then switches a unit on."""

    def __init__(self, shape, classes):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(64, 16), nn.Linear(16, classes)

    def forward(self, x):
        return self.fc2(torch.tanh(self.fc1(x.flatten(1))))


PLAIN = PFLIC()  # the paper's algorithm without our two additions


@pytest.fixture(scope="module")
def fed():
    """Twelve clients of unlike sizes, three for each of the four rotations."""
    made = fedkin.federate("digits", partition="rotated", clients=12, samples_per_client=60, seed=3)
    splits = tuple(
        fedkin.data.federation.Split(s.train[: len(s.train) - 2 * (client % 5)], s.validation, s.test)
        for client, s in enumerate(made.splits)
    )
    return fedkin.Federation(made.arrays, made.partition, splits, made.description)


def run(method, fed, **changes):
    settings = {"rounds": 6, "lr": LR, "batch_size": BATCH, "seed": SEED, "engine": "serial", "evaluate_every": 0}
    return fedkin.run(method, fed, **{"model": Smooth, **settings, **changes})


def reported(result, metric):
    """What the method said of itself, round by round."""
    return [record.value for record in result.history.select(metric)]


def asked(result, round):
    return sorted(record.client for record in result.history.select("bytes_down", round=round))


class Plain:
    """Ordinary PyTorch: a module, torch.optim.SGD, state dicts."""

    def __init__(self, fed):
        self.fed, self.make = fed, maker(Smooth, fed.shape, fed.classes, SEED, {})
        self.module, self.net = self.make(0), Network(self.make(0), fed.example)
        self.n = [len(s.train) for s in fed.splits]
        self.data = [fed.data(j) for j in range(len(fed))]
        self.names = list(self.module.state_dict())

    def start(self, number):
        return {k: v.detach().clone() for k, v in self.make(number).state_dict().items()}

    def loss(self, weights, client):
        self.module.load_state_dict(weights)
        with torch.no_grad():
            return float(F.cross_entropy(self.module(self.data[client].x), self.data[client].y))

    def train(self, weights, client_id, round):
        self.module.load_state_dict(weights)
        client = Client({}, self.data[client_id], client_seed(SEED, round, client_id), self.net, Training(LR, 1, BATCH))
        optimizer = torch.optim.SGD(self.module.parameters(), lr=LR)
        for x, y in batches(client, epoch=0):
            optimizer.zero_grad()
            F.cross_entropy(self.module(x), y).backward()
            optimizer.step()
        return {k: v.clone() for k, v in self.module.state_dict().items()}

    def mean(self, trained, clients):
        total = sum(self.n[j] for j in clients)
        return {name: sum(self.n[j] / total * trained[j][name] for j in clients) for name in self.names}

    def pflic(
        self,
        rounds,
        *,
        k,
        layer,
        rho,
        threshold,
        stable_rounds,
        restarts,
        restart_rounds,
        reseed,
        shared_from="clients",
    ):
        """Algorithms 1 to 3. `layer` is the shared one."""
        common = [name for name in self.names if name.startswith(layer)]
        everybody = range(len(self.fed))
        starts = []
        for s in range(restarts):
            models = [self.start(s * k + i) for i in range(k)]
            starts.append({"models": models, "id": {}, "losses": {j: [] for j in everybody}, "calm": 0, "mean": 0.0})
        phase, turns, log = 1, Counter(), []
        for t in range(1, rounds + 1):
            if phase == 2:  # algorithm 3
                (start,) = starts
                participants = []
                for i in range(k):
                    members = [j for j in everybody if start["id"][j] == i]
                    if not members:
                        continue
                    if all(turns[j] >= threshold for j in members):
                        for j in members:
                            turns[j] = 0
                    utility = {j: sum(start["losses"][j]) / len(start["losses"][j]) for j in members}  # eq. (4)
                    ranked = sorted((j for j in members if turns[j] < threshold), key=lambda j: (-utility[j], j))
                    participants += ranked[: max(1, int(rho * len(members) + 0.5))]
                for j in participants:
                    turns[j] += 1
            else:
                participants = list(everybody)
            for start in starts:
                trained, now, changes = {}, [], 0
                for j in sorted(participants):
                    if phase == 1:
                        losses = [self.loss(model, j) for model in start["models"]]
                        i = int(np.argmin(losses))  # eq. (2)
                        changes += start["id"].get(j) != i
                        start["id"][j] = i
                    i = start["id"][j]
                    now.append((self.loss(start["models"][i], j), j))
                    start["losses"][j].append(now[-1][0])
                    trained[j] = self.train(start["models"][i], j, t)  # line 9
                start["mean"] = sum(self.n[j] * loss for loss, j in now) / sum(self.n[j] for _, j in now)
                for i in range(k):  # lines 26 to 28
                    if members := [j for j in trained if start["id"][j] == i]:
                        start["models"][i] = self.mean(trained, members)
                clusters = {n: sum(model[n] for model in start["models"]) / k for n in common}  # line 28
                empty = [i for i in range(k) if i not in start["id"].values()]
                if reseed and empty and phase == 1:
                    start["models"][empty[0]] = dict(trained[max(now)[1]])
                everyones = clusters if shared_from == "clusters" else self.mean(trained, trained)
                for model in start["models"]:
                    model.update({name: everyones[name] for name in common})
                start["calm"] = 0 if changes else start["calm"] + 1
            starts.sort(key=lambda start: start["mean"])
            log.append({"asked": sorted(participants), "id": dict(starts[0]["id"]), "phase": phase})
            if t >= restart_rounds:
                del starts[1:]
            if len(starts) == 1 and starts[0]["calm"] >= stable_rounds:
                phase = 2
        return starts[0], log


@pytest.mark.parametrize(
    ("restarts", "reseed", "shared_from"), [(1, False, "clients"), (3, True, "clients"), (1, False, "clusters")]
)
def test_the_whole_algorithm_in_plain_loops(fed, restarts, reseed, shared_from):
    rounds = 11
    settings = {"rho": 0.6, "threshold": 2, "stable_rounds": 2, "restarts": restarts, "restart_rounds": 3}
    settings["shared_from"] = shared_from
    got = run(PFLIC(shared=("fc1",), reseed_empty=reseed, **settings), fed, rounds=rounds)
    plain = Plain(fed)
    want, log = plain.pflic(rounds, k=4, layer="fc1", reseed=reseed, **settings)

    for t, entry in enumerate(log, start=1):
        assert asked(got, t) == entry["asked"], f"round {t}"
        assert reported(got, "clusters")[t - 1] == [entry["id"][j] for j in range(12)], f"round {t}"
        assert reported(got, "phase")[t - 1] == entry["phase"]
    assert {entry["phase"] for entry in log} == {1, 2}
    late = [tuple(entry["asked"]) for entry in log if entry["phase"] == 2]
    assert len(set(late)) > 1, "the threshold never mattered: this test found nothing"
    for i in range(4):
        row = plain.net.layout.flatten(want["models"][i])
        assert torch.allclose(got.state["models"][i], row, atol=1e-5), i
    utilities = [sum(want["losses"][j]) / len(want["losses"][j]) for j in range(12)]
    assert reported(got, "utilities")[-1] == pytest.approx(utilities, rel=1e-5)
    assert reported(got, "participation")[-1] == [len(want["losses"][j]) for j in range(12)]


# ---- reductions
def test_one_cluster_and_everybody_selected_is_fedavg_to_the_bit(fed):
    alone = PFLIC(clusters=1, shared=(), rho=1.0, threshold=1, restarts=1)
    mine, theirs = run(alone, fed, rounds=7), run(FedAvg(), fed, rounds=7)
    assert reported(mine, "phase") == [1, 1, 1, 1, 2, 2, 2], "both phases were to be looked at"
    assert equal(mine.state["models"][0], theirs.state["model"])
    for metric in ("personal", "personal_loss", "received_loss"):
        assert mine.history.values(metric, round=7) == theirs.history.values(metric, round=7)


def test_without_sharing_and_selection_it_is_ifca_to_the_bit(fed):
    got = run(PFLIC(clusters=3, shared=(), stable_rounds=0, restarts=1, reseed_empty=False), fed, rounds=8)
    plain = Plain(fed)
    models = [plain.net.layout.flatten(plain.start(i)) for i in range(3)]
    for t in range(1, 9):  # IFCA, option II (model averaging)
        members = {i: [] for i in range(3)}
        for j in range(12):
            client = Client({}, fed.data(j), client_seed(SEED, t, j), plain.net, Training(LR, 1, BATCH))
            losses = [evaluate(plain.net, model, fed.data(j).train)[1] for model in models]
            members[losses.index(min(losses))].append((j, sgd(client, models[losses.index(min(losses))])))
        for i, found in members.items():
            if found:
                n = torch.tensor([plain.n[j] for j, _ in found], dtype=torch.double)
                models[i] = average(torch.stack([row for _, row in found]), (n / n.sum()).float())
        assert reported(got, "clusters")[t - 1] == [
            next(i for i in range(3) if j in dict(members[i])) for j in range(12)
        ]
    assert equal(got.state["models"], torch.stack(models))
    assert set(reported(got, "phase")) == {1}


def test_identical_models_all_go_to_the_first_cluster(fed):
    class Zero(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(64, 4), nn.Linear(4, 10)
            for p in self.parameters():
                nn.init.constant_(p, 0.1)

        def forward(self, x):
            return self.b(F.relu(self.a(x.flatten(1))))

    got = run(PLAIN, fed, model=Zero, rounds=1)
    assert reported(got, "clusters") == [[0] * 12]


# ---- one aggregation, by hand
def server(net, n, **changes):
    table = {
        "ids": torch.arange(len(n)), "n": torch.tensor(n), "classes": 10, "seed": 0, "participation": 1.0,
        "training": Training(), "layout": net.layout, "initial": lambda k: torch.full((net.layout.size,), float(k)),
    }  # fmt: skip
    return Server(**{**table, **changes})


@pytest.fixture
def small(fed):
    """A network of two layers, 64·1 + 1 and 1·10 + 10 numbers, of which the last 20 are shared."""
    return Network(maker("mlp", fed.shape, 10, 0, {"width": 1 / 64})(0), fed.example)


def answers(net, ids, values, identities, losses, n):
    size = net.layout.size
    body = (
        torch.stack([torch.full((size,), float(v)) for v in values]),
        [torch.tensor(i, dtype=torch.int32) for i in identities],
        torch.tensor(losses)[:, None],
    )
    return Replies(torch.tensor(ids), torch.tensor([n[j] for j in ids]), body, torch.arange(len(ids)), 0)


def test_aggregation_by_hand(small):
    n = [1, 3, 4, 2]
    method = PFLIC(clusters=3, restarts=1, reseed_empty=False)
    state = method.init(server(small, n))
    replies = answers(small, [0, 1, 3], [10, 20, 50], [[0], [0], [2]], [1.0, 2.0, 4.0], n)
    after = method.merge(state, Message(), replies)
    own, shared = after["models"][:, :65], after["models"][:, 65:]
    assert own[0].unique().item() == pytest.approx((1 * 10 + 3 * 20) / 4)  # weighted by D_j within the cluster
    assert own[1].unique().item() == 1, "an empty cluster keeps its model"
    assert own[2].unique().item() == 50
    mean = (1 * 10 + 3 * 20 + 2 * 50) / 6  # over all who answered, for every cluster
    assert torch.allclose(shared, torch.full((3, 20), mean))
    assert after["identity"].tolist() == [0, 0, -1, 2]
    assert after["loss"] == pytest.approx((1 * 1 + 3 * 2 + 2 * 4) / 6)

    mixing = method.mixing(after)
    assert torch.allclose(mixing["personal"][0], torch.tensor([0.25, 0.75, 0, 0]))
    assert torch.allclose(mixing["personal"][3], torch.tensor([0, 0, 0, 1.0]))
    assert torch.allclose(mixing["shared"], torch.tensor([1 / 6, 1 / 2, 0, 1 / 3]).expand(4, 4))
    for matrix in mixing.values():
        assert torch.allclose(matrix.sum(1), torch.ones(4))
    assert set(method.mixing(PFLIC(shared=()).init(server(small, n)))) == {"personal"}


def test_utilities_are_means_over_the_rounds_taken_part_in(small):
    n, method = [1, 1, 1], PFLIC(clusters=2, restarts=1)
    state = method.init(server(small, n))
    for ids, losses in (([0, 1], [3.0, 5.0]), ([1], [2.0]), ([0, 1], [1.0, 2.0])):
        state = method.merge(state, Message(), answers(small, ids, [1] * len(ids), [[0]] * len(ids), losses, n))
    assert method.describe(state)["utilities"] == [2.0, 3.0, None]  # (3+1)/2, (5+2+2)/3, never
    assert method.describe(state)["participation"] == [2, 3, 0]


def test_stability_is_so_many_rounds_without_a_change(small):
    n = [1] * 4
    first = [[0], [0], [1], [1]]
    other = [[1], [0], [1], [1]]

    def stable_after(method, rounds):
        state = method.init(server(small, n))
        out = []
        for identities in rounds:
            told = [[]] * 4 if state["stable"] else identities  # a client that was sent one set chooses nothing
            state = method.merge(state, Message(), answers(small, range(4), [1] * 4, told, [1.0] * 4, n))
            out.append(state["stable"])
        return out

    calm = PFLIC(clusters=2, restarts=1, stable_rounds=2)
    assert stable_after(calm, [first, first, first]) == [False, False, True]
    assert stable_after(calm, [first, first, other, other, other]) == [False, False, False, False, True]
    lax = PFLIC(clusters=2, restarts=1, stable_rounds=2, max_unstable_fraction=0.25)
    assert stable_after(lax, [first, first, other]) == [False, False, True]
    assert stable_after(PFLIC(clusters=2, restarts=1, stable_rounds=0), [first] * 6) == [False] * 6
    tried = PFLIC(clusters=2, restarts=2, restart_rounds=4, stable_rounds=1)
    assert stable_after(tried, [first] * 5) == [False, False, False, True, True], "not while starts are tried"


def test_an_empty_cluster_is_seeded_with_the_worst_served_client(small):
    n = [1, 3, 4]
    replies = answers(small, [0, 1, 2], [10, 20, 50], [[0], [0], [2]], [1.0, 9.0, 4.0], n)
    method = PFLIC(clusters=4, reseed_empty=True)
    after = method.merge(method.init(server(small, n)), Message(), replies)
    assert after["models"][1, :65].unique().item() == 20, "client 1 has the largest loss"
    assert after["models"][3, :65].unique().item() == 3, "one cluster a round"
    assert (after["models"][:, 65:] == after["models"][0, 65:]).all()
    assert after["contributions"][1].tolist() == [0, 1, 0]
    # a cluster whose members merely did not answer is not empty
    away = answers(small, [0, 1], [10, 20], [[0], [0]], [1.0, 9.0], n)
    again = method.merge({**after, "identity": torch.tensor([0, 1, 2])}, Message(), away)
    assert again["models"][2, :65].unique().item() == 50
    assert again["models"][1, :65].unique().item() == 20, "client 1 left cluster 1: now that one is seeded"


def test_replies_that_do_not_fit_are_named(small):
    n = [1, 1, 1, 1]
    good = answers(small, range(4), [10, 20, 30, 40], [[0], [1], [0], [1]], [1.0] * 4, n)
    rows, ids, losses = list(good.body[0]), list(good.body[1]), list(good.body[2])
    rows[1], ids[2], losses[3] = rows[1][:-1], torch.tensor([2]), torch.ones(2)
    method = PFLIC(clusters=2, restarts=1)
    fed = server(small, n)
    with pytest.raises(UnusableReplies) as found:
        method.merge(method.init(fed), Message(), good._replace(body=(rows, ids, losses)))
    assert found.value.clients == (1, 3)
    bounds = method.reply_bounds(fed, 2)
    assert outside(good.body[1][2:3], {0: bounds[1]}) == ""
    assert "[0, 1]" in outside(ids[2:3], {0: bounds[1]})
    settled = {**method.init(fed), "stable": True, "identity": torch.tensor([0, 1, 0, 1])}
    with pytest.raises(UnusableReplies) as found:  # none of them was asked to choose a cluster
        method.merge(settled, Message(), good)
    assert found.value.clients == (0, 1, 2, 3)


# ---- messages and costs
def test_messages_hold_one_shared_layer_and_sets_of_the_rest(small):
    method = PFLIC(clusters=3, restarts=1)
    state = method.init(server(small, [1] * 4))
    whole = method.send(state, torch.arange(4))  # round 1: k whole models
    assert [tuple(part.shape) for part in whole.shared] == [(0,), (3, 85)]
    state = {**state, "round": 1}
    message = method.send(state, torch.arange(4))
    assert [tuple(part.shape) for part in message.shared] == [(20,), (3, 65)]
    assert message.own == ()
    frozen = {**state, "stable": True, "identity": torch.tensor([2, 0, -1, 1])}
    message = method.send(frozen, torch.tensor([3, 0, 2]))
    assert [tuple(part.shape) for part in message.shared] == [(20,)]
    assert [part.unique().tolist() for part in message.own[0]] == [[1.0], [2.0], [0.0, 1.0, 2.0]]
    assert [len(part) for part in message.own[0]] == [1, 1, 3], "who has no identity gets all sets"


def test_bytes_and_the_papers_costs_are_the_formulas(fed):
    method = PFLIC(restarts=2, restart_rounds=2, stable_rounds=1, max_unstable_fraction=0.9, rho=0.5)
    got = run(method, fed, rounds=6, arrive={11: 5})
    size = got.state["models"].shape[1]
    shared = int(got.state["shared"].sum())
    assert (size, shared) == (64 * 16 + 16 + 16 * 10 + 10, 16 * 10 + 10)
    rest = size - shared
    assert reported(got, "phase") == [1, 1, 2, 2, 2, 2]
    for record in (*got.history.select("bytes_down"), *got.history.select("bytes_up")):
        up = record.metric == "bytes_up"
        if record.round <= 2:  # two starts; identity and loss beside the model; k whole models in round 1
            want = 2 * (size + 2 if up else 4 * size if record.round == 1 else shared + 4 * rest)
        elif record.client == 11 and record.round == 5:  # it joined: all sets, once
            want = size + 2 if up else shared + 4 * rest
        else:
            want = size + 1 if up else shared + rest
        assert record.value == 4 * want, record
    assert asked(got, 1) == list(range(11))
    assert 11 in asked(got, 5)
    # tables 2 and 3, with Cal = 3 passes of one epoch: N (Cal + k) and N P, then N ρ Cal and N ρ P
    assert reported(got, "e_cal") == [2 * 12 * (3 + 4)] * 2 + [12 * 0.5 * 3] * 4
    assert reported(got, "e_com") == pytest.approx([2 * 12 * size] * 2 + [12 * 0.5 * size] * 4)
    short = PFLIC(local_steps=5, restarts=1).init(server(Plain(fed).net, [20, 60], training=Training(batch_size=16)))
    assert short["cal"] == pytest.approx(3 * 5 * 16 / 40)


def test_all_clusters_have_the_same_shared_layer_after_any_round(fed, tmp_path):
    method = PFLIC(stable_rounds=1, restarts=2, restart_rounds=2, max_unstable_fraction=0.5)
    for rounds in range(1, 7):
        got = run(method, fed, rounds=rounds, lost=0.3, out=tmp_path, save_models=False)
        models, shared = got.state["models"], got.state["shared"]
        assert (models[:, shared] == models[0, shared]).all()
        assert not (models[:, ~shared] == models[0, ~shared]).all(1)[1:].any()
    assert reported(got, "phase")[-1] == 2


def test_restarts_go_on_with_the_lowest_loss(fed):
    several = run(PFLIC(restarts=3, restart_rounds=3, reseed_empty=False), fed, rounds=3)
    last = reported(several, "mean_loss")[-1]
    plain = Plain(fed)
    losses = []
    for start in range(3):
        settings = {"rho": 1.0, "threshold": 1, "stable_rounds": 99, "restarts": 1, "restart_rounds": 1}
        moved = Plain(fed)
        moved.start = lambda number, start=start: plain.start(number + 4 * start)
        losses.append(moved.pflic(3, k=4, layer="fc2", reseed=False, **settings)[0]["mean"])
    assert last == pytest.approx(min(losses), rel=1e-4)
    assert max(losses) > 1.001 * min(losses)
    assert several.state["rivals"] == []


# ---- selection
def test_nobody_is_asked_more_often_than_the_threshold_allows(fed):
    got = run(PFLIC(restarts=1, stable_rounds=1, max_unstable_fraction=0.9, rho=0.4, threshold=2), fed, rounds=16)
    labels, count, resets = np.array(reported(got, "clusters")[-1]), np.zeros(12, int), 0
    for t in [t for t, phase in enumerate(reported(got, "phase"), start=1) if phase == 2]:
        now = asked(got, t)
        for i in set(labels.tolist()):
            members = np.flatnonzero(labels == i)
            if (count[members] == 2).all():
                count[members], resets = 0, resets + 1
            assert sum(j in now for j in members) <= max(1, int(0.4 * len(members) + 0.5))
            assert any(j in now for j in members), "training goes on in every cluster"
        count[now] += 1
        assert count.max() <= 2
    assert resets >= 2
    assert reported(got, "clusters")[-1] == reported(got, "clusters")[1], "identities are frozen"


def test_who_never_answers_does_not_stay_chosen(fed):
    """Being asked counts: utilities of a silent client stay as they were, so it would be the first choice forever."""
    method = PFLIC(restarts=1, rho=0.1, threshold=2)
    state = method.init(server(Plain(fed).net, [5] * 3))
    many = {"identity": torch.zeros(3, dtype=torch.long), "stable": True, "times": torch.ones(3, dtype=torch.long)}
    state = {**state, **many, "losses": torch.tensor([1.0, 9.0, 2.0], dtype=torch.double)}
    order = []

    class Room:
        def run(self, function, message):
            row = torch.zeros(state["models"].shape[1])
            return answers(Plain(fed).net, [0], [1], [[]], [0.1], [5] * 3)._replace(body=([row], [row[:0]], [row[:1]]))

    for _ in range(6):
        room = Room()
        room.ids = method.select(state, server(Plain(fed).net, [5] * 3), 1)
        order += room.ids.tolist()
        state = method.round(state, room)
    assert order == [1, 1, 2, 2, 0, 0]


def test_rho_zero_is_the_runs_participation(fed):
    soon = {"restarts": 1, "stable_rounds": 1, "max_unstable_fraction": 0.9}
    a, b = run(PFLIC(rho=0.0, **soon), fed, participation=0.7), run(PFLIC(rho=0.7, **soon), fed)
    assert equal(a.state, b.state)


# ---- the clusters are found
@pytest.mark.parametrize("seed", [0, 1])
def test_the_four_rotations_of_digits_are_recovered(seed):
    turned = fedkin.federate("digits", partition="rotated", clients=12, seed=seed)
    got = run(PFLIC(restarts=5, reseed_empty=True), turned, rounds=7, seed=seed, model="mlp")
    assert reported(got, "rand_index")[-1] == 1.0


def test_who_comes_late_finds_the_cluster_of_its_rotation(tmp_path):
    turned = fedkin.federate("digits", partition="rotated", clients=12, seed=1)
    method = PFLIC(restarts=3, restart_rounds=6, stable_rounds=1, reseed_empty=True)
    late = {"seed": 1, "arrive": {9: 8, 10: 9}, "model": "mlp", "out": tmp_path}
    before = run(method, turned, rounds=7, **late)
    assert torch.allclose(method.mixing(before.state)["personal"].sum(1), torch.ones(12))
    got = run(method, turned, rounds=10, **late)
    assert reported(got, "phase")[7:] == [2, 2, 2]
    clusters = reported(got, "clusters")
    assert clusters[6][9] == clusters[7][10] == -1
    assert clusters[7][9] == clusters[-1][9] == clusters[6][1] >= 0, "client 9 is turned as client 1"
    assert clusters[-1][10] == clusters[6][2], "client 10 is turned as client 2"
    assert len({clusters[6][j] for j in range(4)}) == 4


def test_personal_is_the_clusters_model_without_training(fed):
    soon = PFLIC(restarts=1, stable_rounds=1, max_unstable_fraction=0.9)
    net = Plain(fed).net
    for rounds, method in ((2, PLAIN), (4, soon)):
        got = run(method, fed, rounds=rounds)
        for j, value in got.history.values("personal_loss", round=rounds).items():
            choice = [evaluate(net, model, fed.data(j).train)[1] for model in got.state["models"]]
            frozen = got.state["stable"]
            i = int(got.state["identity"][j]) if frozen else choice.index(min(choice))
            assert value == pytest.approx(evaluate(net, got.state["models"][i], fed.test(j))[1], rel=1e-5)
        assert got.history.values("received", round=rounds) == got.history.values("personal", round=rounds)
        assert got.state["stable"] == (method is soon)


# ---- the world
def test_lost_replies_and_clients_that_come_and_go(fed):
    method = PFLIC(restarts=2, restart_rounds=2, stable_rounds=2, max_unstable_fraction=0.3)
    got = run(method, fed, rounds=12, lost=0.4, participation=0.5, arrive={7: 9}, leave={0: 5})
    assert reported(got, "phase")[-1] == 2
    assert 0 not in asked(got, 6)
    assert 0 not in got.history.values("personal", round=12)
    assert np.isfinite(list(got.history.values("personal_loss", round=12).values())).all()
    for matrix in method.mixing(got.state).values():
        assert torch.allclose(matrix.sum(1), torch.ones(12), atol=1e-5)
    # whoever is there and unknown is asked until it has answered
    phase, clusters = ({record.round: record.value for record in got.history.select(m)} for m in ("phase", "clusters"))
    checked = 0
    for t in sorted(phase.keys() & clusters.keys()):
        # a round without any answer says nothing, and changes nothing
        before = max((r for r in clusters if r < t), default=0)
        if before and phase[t] == 2:
            checked += 1
            unknown = {j for j, i in enumerate(clusters[before]) if i < 0}
            assert unknown - ({7} if t < 9 else set()) - ({0} if t >= 5 else set()) <= set(asked(got, t))
    assert checked


def test_a_stopped_run_goes_on_with_the_same_bits(fed, tmp_path):
    method = PFLIC(restarts=2, restart_rounds=3, stable_rounds=1, max_unstable_fraction=0.9)
    straight = run(method, fed)
    for rounds in (2, 4, 6):
        resumed = run(method, fed, rounds=rounds, out=tmp_path, checkpoint_every=1)
    assert equal(straight.state, resumed.state)
    assert straight.history.values("personal_loss", round=6) == resumed.history.values("personal_loss", round=6)


# ---- local steps, layers, errors
def test_local_steps_are_batches(make_client):
    client = make_client(batch_size=16, lr=0.05, epochs=2)
    start = client.net.initial
    shared = within(client.net.layout, ("-1",))
    message = Message(shared=(start[shared], start[~shared][None]))
    per_epoch = -(-len(client.data.y) // 16)
    for number, same in ((0, 2 * per_epoch), (per_epoch + 3, per_epoch + 3), (1, 1)):
        assert equal(PFLIC(local_steps=number).local(client, message).body[0], sgd(client, start, steps=same))


def test_layers_are_named_or_numbered(small, fed):
    assert within(small.layout, ()).sum() == 0
    assert torch.equal(within(small.layout, ("fc2",)), within(small.layout, ("-1",)))
    assert torch.equal(within(small.layout, ("0",)), within(small.layout, ("fc1",)))
    assert within(small.layout, ("0", "fc2")).all()
    sequential = Network(nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.Linear(3, 3), nn.Linear(3, 10)), fed.example)
    assert within(sequential.layout, ("2",)).nonzero().min() == 64 * 3 + 3, "a name goes before a number"
    for wrong in ("fc9", "7", "-3"):
        with pytest.raises(ValueError, match=r"no layer .*fc1, fc2"):
            within(small.layout, (wrong,))


def test_flags_can_say_which_layers_are_shared():
    def parse(*words):
        return parse_one(words, PFLIC(), "fedkin", "")[0]

    assert parse("--shared", "fc1", "-1", "--rho", "0.3") == PFLIC(shared=("fc1", "-1"), rho=0.3)
    assert parse("--shared", "--clusters", "2") == PFLIC(shared=(), clusters=2)
    assert parse() == PFLIC() == fedkin.method("pflic")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"clusters": 0}, "clusters=0 must be at least 1"),
        ({"threshold": 0}, "threshold=0"),
        ({"restarts": 0}, "restarts=0"),
        ({"restart_rounds": 0}, "restart_rounds=0"),
        ({"stable_rounds": -1}, "stable_rounds=-1 must be at least 0"),
        ({"local_steps": -1}, "local_steps=-1"),
        ({"rho": 1.5}, "rho=1.5"),
        ({"max_unstable_fraction": 1.0}, "max_unstable_fraction=1.0"),
    ],
)
def test_impossible_settings_are_refused(wrong, why):
    with pytest.raises(ValueError, match=re.escape(why)):
        PFLIC(**wrong)


def test_presets():
    assert fedkin.method("pflic") == PFLIC(restarts=1, reseed_empty=False)
    assert fedkin.method("pflic-restarts") == PFLIC(restarts=3, reseed_empty=True)


def test_it_says_before_it_starts_what_it_cannot_do(fed):
    many = run(PFLIC(clusters=14), fed, rounds=5)
    assert ["14 clusters for 12 clients" in text for text in reported(many, "warning")] == [True]
    short = run(PFLIC(), fed, rounds=4)  # the first identities count as a change: three calm rounds end with round 4
    assert ["for round 5 at the earliest" in text for text in reported(short, "warning")] == [True]
    assert not reported(run(PFLIC(stable_rounds=0), fed, rounds=4), "warning")
    soon = run(PFLIC(stable_rounds=1, max_unstable_fraction=0.9), fed, rounds=3)
    assert reported(soon, "phase") == [1, 1, 2]
    assert not reported(soon, "warning")


def test_the_losses_of_the_k_models_are_computed_once_for_a_message(fed, monkeypatch):
    """`local`, `received` and `personal` all ask for the best model."""
    from fedkin.client import choice

    seen = []
    monkeypatch.setattr(choice, "evaluate", lambda net, model, data: seen.append(model) or evaluate(net, model, data))
    net, method = Plain(fed).net, PFLIC()
    client = Client({}, fed.data(0), 1, net, Training(LR, 1, BATCH))
    state = method.init(server(net, [1] * 12))
    first, second = (method.send({**state, "models": models}, torch.arange(12)) for models in torch.randn(2, 4, 1210))
    reply = method.local(client, first)
    received = method.received(client, first)
    assert method.personal(client, first, lambda: reply) is received
    assert len(seen) == 4
    assert torch.equal(received, first.shared[1][int(reply.body[1])])
    other = method.received(client, second)  # another message is another question
    assert len(seen) == 8
    losses = [evaluate(net, model, client.data.train)[1] for model in second.shared[1]]
    assert torch.equal(other, second.shared[1][losses.index(min(losses))])


def test_sharing_the_whole_network_is_refused(fed):
    with pytest.raises(ValueError, match="whole network"):
        run(PFLIC(shared=("fc1", "fc2")), fed)
