"""FedCEDAR against its paper: in plain loops, by hand-made examples, and in its reductions."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

import fedkin
from fedkin.client.training import sgd
from fedkin.engine.runner import client_seed
from fedkin.maths.cluster import rand_index
from fedkin.methods import METHODS
from fedkin.methods.fedcedar import FedCEDAR
from fedkin.models.build import maker
from fedkin.models.network import Network
from fedkin.protocol import Client, Replies, Server, Training
from fedkin.results.store import equal

VARIANTS = [name for name in METHODS if name.startswith("fedcedar")]
SETTINGS = {"rounds": 4, "lr": 0.1, "epochs": 2, "batch_size": 8, "seed": 5, "engine": "serial"}


@pytest.fixture(scope="module")
def fed():
    return fedkin.federate("digits", partition="topology", nodes=3, clients=12, samples_per_client=40, seed=3)


def run(method, fed, **changes):
    return fedkin.run(method, fed, model="mlp", **{**SETTINGS, **changes})


def by_round(result, metric):
    return [record.value for record in result.history.select(metric)]


# ---- the whole algorithm
def unit(a, b):
    """Cosine similarity, number by number."""
    dot = sum(float(x) * float(y) for x, y in zip(a, b))
    return dot / (sum(float(x) ** 2 for x in a) * sum(float(y) ** 2 for y in b)) ** 0.5


def paper(fed, asked, answered, *, clusters, times, weigh, features, memory=0, by_size=False):
    """Sec. 3 in plain loops, scikit-learn's k-means on the full vectors; yields what a server knows after each round.

    `asked` and `answered` name the clients of each round: sampling is the run's, the rest is the paper's. `memory` and
    `by_size` are ours: a client's cluster is a pair (model, direction of its center), kept for so many rounds.
    """
    net = Network(maker("mlp", fed.shape, fed.classes, 5, {})(0), fed.example)
    training = Training(SETTINGS["lr"], SETTINGS["epochs"], SETTINGS["batch_size"])
    nodes, cluster_of, directions, seen = [net.initial.clone()], {}, [], {}
    mean = nodes[0]
    for t, (chosen, back) in enumerate(zip(asked, answered), start=1):
        models, starts = [], []
        for n in back:
            start = nodes[cluster_of[n]] if n in cluster_of else mean  # sec. 3.5, conditions 1 and 2
            client = Client({}, fed.data(n), client_seed(5, t, n), net, training)
            models.append(sgd(client, start.clone()).double().numpy())  # sec. 3.1
            starts.append(start.double().numpy())
        assert set(back) <= set(chosen)
        label = KMeans(clusters, n_init=10, random_state=0).fit(np.stack(models)).labels_  # eq. (1)
        centers = [np.mean([m for m, k in zip(models, label) if k == i], 0) for i in range(clusters)]
        compared = {
            "weights": centers,
            "centered": [c - np.mean(centers, 0) for c in centers],
            "updates": [c - np.mean([s for s, k in zip(starts, label) if k == i], 0) for i, c in enumerate(centers)],
        }[features]
        similarity = [[unit(a, b) for b in compared] for a in compared]
        graph = []
        for row in similarity:  # sec. 3.3: each row sums to 1
            weight = [weigh(value) for value in row]
            graph.append([w / sum(weight) for w in weight])
        hat = centers
        for _ in range(times):  # eq. (2)
            hat = [sum(graph[k][i] * hat[i] for i in range(clusters)) for k in range(clusters)]
        old_nodes, old_cluster_of, old_directions = nodes, cluster_of, directions
        nodes = [torch.from_numpy(h).float() for h in hat]
        mean = sum(nodes) / clusters
        directions = [c - np.mean(centers, 0) for c in centers]
        cluster_of = dict(zip(back, label))
        seen |= dict.fromkeys(back, t)
        moved = {}
        for n, k in old_cluster_of.items():
            if n in back or t - seen[n] > memory:
                continue
            if k not in moved:
                likeness = [unit(old_directions[k], d) for d in directions[:clusters]]
                moved[k] = int(np.argmax(likeness))
                if max(likeness) < 0.7:  # nobody like it was there: the cluster stays as it was
                    moved[k] = len(nodes)
                    nodes.append(old_nodes[k])
                    directions.append(old_directions[k])
            cluster_of[n] = moved[k]
        if by_size:
            mean = sum(nodes[k] for k in cluster_of.values()) / len(cluster_of)
        yield nodes, cluster_of, graph, mean


@pytest.mark.parametrize(
    ("fields", "loops", "changes"),
    [
        ({}, {"times": 2, "weigh": lambda c: max(c, 0.0), "features": "weights"}, {}),
        ({"propagations": 0}, {"times": 0, "weigh": lambda c: max(c, 0.0), "features": "weights"}, {"lost": 0.3}),
        (
            {"normalize": "softmax", "features": "centered", "temperature": 0.4, "propagations": 3},
            {"times": 3, "weigh": lambda c: np.exp(c / 0.4), "features": "centered"},
            {"lost": 0.3},
        ),
        (
            {"features": "updates", "propagations": 1},
            {"times": 1, "weigh": lambda c: max(c, 0.0), "features": "updates"},
            {},
        ),
        (
            {"propagations": 0, "memory": 2, "weighting": "size"},
            {"times": 0, "weigh": lambda c: max(c, 0.0), "features": "weights", "memory": 2, "by_size": True},
            {"participation": 0.4, "rounds": 6},
        ),
    ],
    ids=["paper", "means", "soft", "updates", "memory"],
)
def test_golden(fed, fields, loops, changes):
    asked, answered = [], []
    result = run(FedCEDAR(clusters=3, **fields), fed, **{"participation": 0.75, **changes})
    for round in range(1, changes.get("rounds", 4) + 1):
        down = [record.client for record in result.history.select("bytes_down", round=round)]
        lost = {record.client for record in result.history.select("dropped", round=round)}
        asked.append(down)
        answered.append([c for c in down if c not in lost])
    assert len(set(map(tuple, asked))) > 1
    assert ("lost" in changes) == (asked != answered)
    met = set()
    method = FedCEDAR(clusters=3, **fields)
    steps = list(paper(fed, asked, answered, clusters=3, **loops))
    for round, (_, cluster_of, graph, _) in enumerate(steps, start=1):
        labels = by_round(result, "clusters")[round - 1]
        assert {c for c, label in enumerate(labels) if label >= 0} == set(cluster_of)
        assert rand_index([labels[c] for c in cluster_of], list(cluster_of.values())) == 1
        now = answered[round - 1]
        center = [next(cluster_of[c] for c in now if labels[c] == i) for i in range(3)]  # ours -> scikit-learn's
        expected = np.array(graph)[center][:, center]
        np.testing.assert_allclose(by_round(result, "graph")[round - 1], expected, atol=2e-4)
        if round < len(steps):
            met |= {c in cluster_of for c in asked[round]}
    assert met == {True, False}  # both conditions were there
    sent = method.send(result.state, torch.arange(12)).own[0]
    nodes, cluster_of, _, mean = steps[-1]
    for client in range(12):
        expected = nodes[cluster_of[client]] if client in cluster_of else mean
        np.testing.assert_allclose(sent[client], expected, atol=2e-5)
    if "memory" in fields:  # some old clusters were continued, some stayed, and some clients were forgotten
        kept = [k for n, k in cluster_of.items() if n not in answered[-1]]
        assert any(k < 3 for k in kept)
        assert any(k >= 3 for _, of, _, _ in steps for k in of.values())
        assert any(len(of) < len(set().union(*answered[:t])) for t, (_, of, _, _) in enumerate(steps, start=1))


# ---- hand-made examples
def server(size, initial, participation=1.0):
    return Server(
        ids=torch.arange(size), n=torch.ones(size, dtype=torch.long), classes=2, seed=0, participation=participation,
        training=Training(), layout=SimpleNamespace(parameters=len(initial)), initial=lambda k: torch.tensor(initial),
    )  # fmt: skip


def merged(method, state, answers, asked=None, order=None):
    """A round in which the clients `asked` were sent to and those of `answers` came back with these models, in this
    order."""
    asked, order = asked or sorted(answers), order or sorted(answers)
    ids = torch.tensor(order)
    body = torch.tensor([answers[c] for c in order])
    sent = method.send(state, torch.tensor(asked))
    position = torch.tensor([asked.index(c) for c in order])
    return method.merge(state, sent, Replies(ids, torch.ones_like(ids), (body,), position, 1))


def sent(method, state):
    return method.send(state, torch.arange(len(state["labels"]))).own[0].double().numpy()


def test_distribution_by_hand():
    """Four clients: a cluster (2, 0) of clients 0 and 1, (1.2, 1.6) of client 2, cosine 0.6; client 3 is outside."""
    method = FedCEDAR(clusters=2, propagations=1)
    state = method.init(server(4, [5.0, 5.0]))
    np.testing.assert_allclose(sent(method, state), [[5, 5]] * 4)  # round 0: the common initial model
    state = merged(method, state, {0: [1.5, 0.0], 1: [2.5, 0.0], 2: [1.2, 1.6]})
    np.testing.assert_allclose(state["graph"], [[0.625, 0.375], [0.375, 0.625]], atol=1e-7)
    one, two = [0.625 * 2 + 0.375 * 1.2, 0.375 * 1.6], [0.375 * 2 + 0.625 * 1.2, 0.625 * 1.6]
    mean = [1.6, 0.8]  # 1/K each: by size it would be (1.733, 0.533)
    np.testing.assert_allclose(sent(method, state), [one, one, two, mean], atol=1e-6)
    np.testing.assert_allclose(
        method.mixing(state),
        [[0.3125, 0.3125, 0.375, 0], [0.3125, 0.3125, 0.375, 0], [0.1875, 0.1875, 0.625, 0], [0.25, 0.25, 0.5, 0]],
        atol=1e-7,
    )
    assert method.describe(state)["clusters"].tolist() == [0, 0, 1, -1]
    # the memory is one round: clients 0 and 2 are outside the next one and get the mean
    state = merged(method, state, {1: [4.0, 0.0], 3: [0.0, 2.0]})
    np.testing.assert_allclose(sent(method, state), [[2, 1], [4, 0], [2, 1], [0, 2]], atol=1e-6)
    # a client that was asked and did not answer was not in the round
    state = merged(method, state, {0: [4.0, 0.0], 3: [0.0, 2.0]}, asked=[0, 1, 3])
    np.testing.assert_allclose(sent(method, state), [[4, 0], [2, 1], [2, 1], [0, 2]], atol=1e-6)


def test_memory_and_weights_by_hand():
    """Centers at (2, 0) and (0, 2); then only clients that lie near the first one take part."""
    method = FedCEDAR(clusters=2, propagations=0, memory=1, weighting="size")
    state = method.init(server(5, [5.0, 5.0]))
    state = merged(method, state, {0: [2.0, 0.0], 1: [2.0, 0.0], 2: [0.0, 2.0]})
    mean = [4 / 3, 2 / 3]  # two clients to one
    np.testing.assert_allclose(sent(method, state), [[2, 0], [2, 0], [0, 2], mean, mean], atol=1e-6)
    # the second round's centers lie at (3, 1) and (1, 3) from the mean's (1, -1) and (-1, 1): both are continued
    state = merged(method, state, {0: [3.0, 1.0], 3: [1.0, 3.0]})
    assert method.describe(state)["clusters"].tolist() == [0, 0, 1, 1, -1]
    np.testing.assert_allclose(sent(method, state), [[3, 1], [3, 1], [1, 3], [1, 3], [2, 2]], atol=1e-6)
    np.testing.assert_allclose(method.mixing(state)[4], [0.5, 0, 0, 0.5, 0], atol=1e-6)
    # clients 1 and 2 were absent twice: forgotten. Nothing lies in the direction of client 3's cluster: it stays
    state = merged(method, state, {0: [1.0, 1.0], 4: [0.0, 0.0]})
    np.testing.assert_allclose(sent(method, state)[[0, 3, 4]], [[1, 1], [1, 3], [0, 0]], atol=1e-6)
    np.testing.assert_allclose(sent(method, state)[1], [2 / 3, 4 / 3], atol=1e-6)
    np.testing.assert_allclose(method.mixing(state).sum(1), 1, atol=1e-6)
    assert method.describe(state)["clusters"].tolist() == [0, -1, -1, 2, 1]


def test_memory_gives_absent_clients_a_better_model(fed):
    """Five of twelve clients take part in a round; the others get the mean, or the model of their last cluster."""
    plain, kept = (run(f"fedcedar-{n}", fed, rounds=12, participation=0.4) for n in ("soft", "memory"))
    assert kept.summary["received"]["mean"] > plain.summary["received"]["mean"] + 0.03
    assert sum(label >= 0 for label in by_round(plain, "clusters")[-1]) == 5
    assert sum(label >= 0 for label in by_round(kept, "clusters")[-1]) > 9


def test_more_clusters_than_clients_of_a_round_are_named_before_it_starts(fed):
    (text,) = by_round(run(FedCEDAR(clusters=5), fed, participation=0.3, rounds=1), "warning")
    assert "5 clusters among the 4 clients" in text
    assert not by_round(run(FedCEDAR(clusters=4), fed, participation=0.3, rounds=1), "warning")
    assert not by_round(run(FedCEDAR(clustering=False), fed, participation=0.3, rounds=1), "warning")


def test_memory_that_nobody_needs_is_named_before_it_starts(fed):
    """With all clients in every round `fedcedar-memory` is `fedcedar-soft` to the last digit."""
    kept, plain = (run(f"fedcedar-{name}", fed, rounds=2) for name in ("memory", "soft"))
    (text,) = by_round(kept, "warning")
    assert "memory is for clients that are absent" in text
    assert by_round(kept, "personal_loss") == by_round(plain, "personal_loss")
    assert not by_round(run("fedcedar-memory", fed, rounds=1, participation=0.9), "warning")
    assert not by_round(plain, "warning")


def test_ablations_by_hand():
    answers = {0: [1.5, 0.0], 1: [2.5, 0.0], 2: [1.2, 1.6]}
    means = FedCEDAR(clusters=2, propagations=0)  # AS-2
    state = merged(means, means.init(server(4, [5.0, 5.0])), answers)
    np.testing.assert_allclose(sent(means, state), [[2, 0], [2, 0], [1.2, 1.6], [1.6, 0.8]], atol=1e-6)
    alike = FedCEDAR(clusters=2, propagations=0, precise=False)  # AS-3
    state = merged(alike, alike.init(server(4, [5.0, 5.0])), answers)
    np.testing.assert_allclose(sent(alike, state), [[1.6, 0.8]] * 4, atol=1e-6)
    assert alike.describe(state)["clusters"].tolist() == [0, 0, 1, -1]
    each = FedCEDAR(clustering=False, propagations=1)  # AS-1: clients 0 and 1 point the same way
    state = merged(each, each.init(server(4, [5.0, 5.0])), answers)
    r = np.array([[1, 1, 0.6], [1, 1, 0.6], [0.6, 0.6, 1]])
    expected = (r / r.sum(1, keepdims=True)) @ [[1.5, 0], [2.5, 0], [1.2, 1.6]]
    np.testing.assert_allclose(sent(each, state)[:3], expected, atol=1e-6)
    np.testing.assert_allclose(sent(each, state)[3], expected.mean(0), atol=1e-6)


def test_updates_are_since_what_each_client_was_sent():
    """Clients 0 and 1 stand still and client 2 moves along (0, 1); then all three move, from unlike starts."""
    method = FedCEDAR(clusters=3, propagations=0, features="updates")
    state = merged(method, method.init(server(3, [5.0, 5.0])), {0: [5.0, 5.0], 1: [7.0, 5.0], 2: [5.0, 9.0]})
    np.testing.assert_allclose(state["cosines"], np.eye(3), atol=1e-7)  # client 0 did not move at all
    state = merged(method, state, {0: [6.0, 5.0], 2: [6.0, 10.0], 1: [7.0, 6.0]}, asked=[2, 1, 0])
    half = 0.5**0.5
    np.testing.assert_allclose(state["cosines"], [[1, 0, half], [0, 1, half], [half, half, 1]], atol=1e-6)


def test_the_order_of_replies_does_not_matter():
    """k-means++ draws by index; models without clear clusters and a single start show it."""
    models = np.random.default_rng(3).normal(size=(20, 2)).round(3).tolist()
    method = FedCEDAR(clusters=4, n_init=1, propagations=0)
    state = method.init(server(20, [0.0, 0.0]))
    one = merged(method, state, dict(enumerate(models)))
    other = merged(method, state, dict(enumerate(models)), order=np.random.default_rng(4).permutation(20).tolist())
    assert one["labels"].tolist() == other["labels"].tolist()
    torch.testing.assert_close(one["models"], other["models"])


def test_fewer_distinct_models_than_clusters_say_so(caplog):
    method = FedCEDAR(clusters=5)
    state = method.init(server(4, [0.0, 0.0]))
    with caplog.at_level(logging.WARNING, logger="fedkin"):
        state = merged(method, state, {0: [1.0, 0.0], 1: [1.0, 0.0], 2: [0.0, 1.0], 3: [1.0, 0.0]})
        assert "2 clusters instead of 5" in caplog.text
        caplog.clear()
        state = merged(method, state, {0: [1.0, 0.0], 2: [0.0, 1.0]})
        assert not caplog.text  # said once, not in each of a hundred rounds
    assert method.describe(state)["centers"] == 2
    same = merged(method, method.init(server(4, [0.0, 0.0])), {0: [0.0, 0.0], 1: [0.0, 0.0]})  # zero, all alike
    np.testing.assert_allclose(sent(method, same), np.zeros((4, 2)))
    for features in ("updates", "centered"):
        other = FedCEDAR(features=features, normalize="softmax")
        assert torch.isfinite(merged(other, other.init(server(4, [0.0, 0.0])), {0: [0.0, 0.0]})["models"]).all()


# ---- reductions
def test_one_cluster_is_fedavg_with_equal_weights(fed):
    assert len(set(fed.sizes.tolist())) == 1  # so FedAvg's weights are equal
    ours = run(FedCEDAR(clusters=1), fed, participation=0.5)
    theirs = run("fedavg", fed, participation=0.5)
    sent = FedCEDAR(clusters=1).send(ours.state, torch.arange(12)).own[0]
    assert all(torch.equal(row, sent[0]) for row in sent)
    np.testing.assert_allclose(sent[0], theirs.state["model"], atol=1e-6)


def test_many_propagations_give_one_model(fed):
    result = run(FedCEDAR(clusters=3, propagations=400), fed, rounds=2)
    sent = FedCEDAR().send(result.state, torch.arange(12)).own[0]
    np.testing.assert_allclose(sent, sent[:1].expand(12, -1), atol=1e-6)
    apart = run(FedCEDAR(clusters=3, propagations=0), fed, rounds=2)
    assert apart.state["models"].std(0).max() > 1e-2


def test_as_many_clusters_as_clients_is_no_clustering(fed):
    """AS-1 is K = B, up to the order of nodes."""
    one = run(FedCEDAR(clusters=12, n_init=1), fed, rounds=3)
    two = run(fedkin.method("fedcedar-as1"), fed, rounds=3)
    np.testing.assert_allclose(one.state["models"], two.state["models"], atol=1e-6)
    assert by_round(two, "centers") == [12, 12, 12]


def test_registered_variants():
    assert VARIANTS == [
        "fedcedar", "fedcedar-soft", "fedcedar-memory", "fedcedar-as1", "fedcedar-as2", "fedcedar-as3",
    ]  # fmt: skip
    assert fedkin.method("fedcedar") == FedCEDAR()
    assert fedkin.method("fedcedar-as1") == FedCEDAR(clustering=False)
    assert fedkin.method("fedcedar-as2") == FedCEDAR(propagations=0)
    assert fedkin.method("fedcedar-as3") == FedCEDAR(precise=False)
    soft = fedkin.method("fedcedar-soft")
    assert soft.normalize == "softmax"
    assert soft.features != "weights"


# ---- in a federation
@pytest.mark.parametrize("name", VARIANTS)
def test_lost_replies_and_clients_that_come_and_go(fed, name):
    changes = {"lost": 0.4, "participation": 0.6, "arrive": {11: 3}, "leave": {0: 3}, "rounds": 5}
    method = fedkin.method(name)
    result = run(method, fed, **changes)
    assert result.summary["dropped"] > 0
    assert 0.1 <= result.summary["personal"]["mean"] <= 1
    for graph in by_round(result, "graph"):
        np.testing.assert_allclose(np.sum(graph, 1), 1, atol=1e-4)
    mixing = method.mixing(result.state)
    assert mixing.shape == (12, 12)
    np.testing.assert_allclose(mixing.sum(1), 1, atol=1e-5)
    assert (mixing >= 0).all()


def test_mixing_is_what_is_sent(fed):
    """A_t times the models that came back is what goes out."""
    seen = []

    class Watched(FedCEDAR):
        def merge(self, state, sent, replies):
            seen.append((replies.ids, replies.body[0]))
            return super().merge(state, sent, replies)

    method = Watched(clusters=3)
    result = run(method, fed, participation=0.5, lost=0.2)
    ids, models = seen[-1]
    everyone = torch.zeros(12, models.shape[1]).index_copy(0, ids, models)
    expected = method.send(result.state, torch.arange(12)).own[0]
    np.testing.assert_allclose(method.mixing(result.state) @ everyone, expected, atol=1e-5)


@pytest.mark.parametrize("name", ["fedcedar", "fedcedar-soft"])
def test_resume(fed, name, tmp_path):
    method = fedkin.method(name, clusters=3, features="updates")
    settings = {"participation": 0.6, "out": tmp_path, "checkpoint_every": 1}
    run(method, fed, **{**settings, "rounds": 2})
    stopped, straight = run(method, fed, **settings), run(method, fed, participation=0.6)
    assert equal(stopped.state, straight.state)
    assert stopped.history.records == straight.history.records


def test_finds_the_nodes_and_costs_a_model_each_way(fed):
    result = run(FedCEDAR(clusters=3), fed, rounds=3)
    assert by_round(result, "rand_index")[-1] == 1
    size = 4 * (64 * 64 + 64 + 64 * 10 + 10)
    assert set(by_round(result, "bytes_down")) == set(by_round(result, "bytes_up")) == {size}
    # personal is the model after training on what was distributed
    assert result.summary["personal"]["mean"] > result.summary["received"]["mean"]


def test_similarities_look_at_parameters_and_averages_at_buffers():
    """The second number is a buffer: it must not decide about clusters, and it is averaged."""
    method = FedCEDAR(clusters=2, propagations=0, features="updates", normalize="softmax")
    start = server(4, [0.0, 0.0])
    start.layout.parameters = 1
    state = merged(method, method.init(start), {0: [1.0, 100.0], 1: [1.1, -100.0], 2: [-1.0, 100.0], 3: [-1.2, -100.0]})
    assert method.describe(state)["clusters"].tolist() == [0, 0, 1, 1]
    np.testing.assert_allclose(sent(method, state)[[0, 2]], [[1.05, 0], [-1.1, 0]], atol=1e-6)


# ---- periodic activation
def test_activation_draws_from_every_true_node():
    nodes = (0,) * 3 + (1,) * 10 + (2,) * 20
    method = FedCEDAR(activate_every=5, nodes=nodes)
    there = server(33, [0.0], participation=0.3)
    state = method.init(there)
    for round in range(1, 21):
        chosen = method.select(state, there, round).tolist()
        assert len(set(chosen)) == len(chosen)
        if round % 5:
            assert chosen == there.sample(round).tolist()
        else:
            assert np.bincount([nodes[c] for c in chosen]).tolist() == [1, 3, 6]
    assert method.select(state, there, 5).tolist() != method.select(state, there, 10).tolist()


def test_activation_without_truth_draws_from_the_last_rounds_clusters():
    method = FedCEDAR(clusters=2, activate_every=2)
    there = server(12, [0.0, 0.0], participation=0.25)
    state = method.init(there)
    assert len(method.select(state, there, 2)) == 3  # no clusters yet: one group
    state = merged(method, state, {c: [1.0 + c / 100, 0.0] if c < 4 else [0.0, 1.0 + c / 100] for c in range(8)})
    for round in (2, 4, 6):
        assert [c // 4 for c in method.select(state, there, round).tolist()] == [0, 1, 2]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"clusters": 0}, "clusters=0 must be at least 1"),
        ({"propagations": -1}, "propagations=-1 must be at least 0"),
        ({"n_init": 0}, "n_init=0"),
        ({"temperature": 0.0}, "temperature=0.0 must be above 0"),
        ({"normalize": "max"}, "normalize='max' must be sum or softmax"),
        ({"features": "gradients"}, "features='gradients' must be"),
        ({"nodes": (0, 1)}, "activate_every"),
        ({"activate_every": 5, "clustering": False}, "give nodes"),
    ],
)
def test_wrong_fields_are_named(fields, message):
    with pytest.raises(ValueError, match=message):
        FedCEDAR(**fields)


def test_nodes_of_another_federation_are_refused(fed):
    with pytest.raises(ValueError, match="nodes names 2 clients; the federation has 12"):
        run(FedCEDAR(activate_every=5, nodes=(0, 1)), fed)
