"""SFL and SFL* against their paper, in plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedkin
from fedkin.client.evaluate import gradient
from fedkin.client.training import sgd
from fedkin.engine.runner import client_seed
from fedkin.methods.sfl import SFL
from fedkin.methods.sfl.graph_learning import constructed, strongest
from fedkin.models.build import maker
from fedkin.models.network import Network
from fedkin.protocol import Client, Message, Training
from fedkin.results.store import equal

SETTINGS = {"rounds": 3, "lr": 0.1, "epochs": 1, "batch_size": 8, "seed": 5, "engine": "serial"}
GROUPS = (0, 0, 1, 1, 0, 1)


@pytest.fixture(scope="module")
def fed():
    return fedkin.federate("digits", partition="dirichlet", clients=6, alpha=0.5, samples_per_client=50, seed=3)


def run(method, fed, **changes):
    return fedkin.run(method, fed, model="mlp", **{**SETTINGS, **changes})


def paper(fed, answered, *, method):
    """The intended algorithm in plain loops."""
    net = Network(maker("mlp", fed.shape, fed.classes, 5, {})(0), fed.example)
    models, u, sources, moved = {}, {i: net.initial for i in range(6)}, range(6), {}
    for t, back in enumerate(answered, start=1):
        g = sum(u[i] for i in sources) / len(sources)  # read-out
        for i in back:
            client = Client({}, fed.data(i), client_seed(5, t, i), net, Training(0.1, 1, 8))
            if method.official_compat:
                models[i] = sgd(client, g)
                continue
            regularizer_gradient = lambda w, u=u[i], g=g: method.pull_personal * (w - u) + method.pull_global * (w - g)  # noqa: E731
            models[i] = sgd(client, u[i], regularizer_gradient=regularizer_gradient)
        heard = sorted(models)
        models = {i: models[i] for i in heard}
        a = {}
        sources = heard if method.average == "last" else back
        mean = sum(models[i] for i in sources) / len(sources)
        for i in heard if method.similarity == "changes" else back:
            moved[i] = (models[i] - (mean if method.similarity == "centered" else net.initial)).double()
        for i in heard:
            if method.groups:
                row = {j: float(method.groups[i] == method.groups[j]) for j in sources}
            else:
                row = {j: max(0.0, float(moved[i] @ moved[j] / moved[i].norm() / moved[j].norm())) for j in sources}
                best = sorted(row, key=lambda j: -row[j])[: method.neighbors]
                row = {j: row[j] for j in best}
            if not sum(row.values()):
                row = dict.fromkeys(sources, 1.0)
            a[i] = {j: v / sum(row.values()) for j, v in row.items()}
        hat = {i: models[i].double() for i in heard}
        for _ in range(method.propagations):
            hat = {i: sum(weight * hat[j] for j, weight in a[i].items()) for i in heard}
        s = method.server_step
        u = {i: s * hat[i].float() + (1 - s) * models[i] for i in heard}
        u |= {i: sum(models[j] for j in sources) / len(sources) for i in range(6) if i not in heard}
    return torch.stack([u[i] for i in range(6)])


@pytest.mark.parametrize(
    "method",
    [
        SFL(neighbors=3, propagations=2),
        SFL(neighbors=3, propagations=2, similarity="changes"),
        SFL(groups=GROUPS, server_step=0.7, pull_personal=0.5, pull_global=0.1),
        SFL(groups=GROUPS, propagations=1, official_compat=True),
        SFL(neighbors=3, average="last"),
    ],
    ids=["similarity", "changes", "groups", "official", "last"],
)
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_golden(fed, method, participation):
    got = run(method, fed, participation=participation)
    answered = [[r.client for r in got.history.select("bytes_up", round=t)] for t in (1, 2, 3)]
    sent = method.send(got.state, torch.arange(6))
    np.testing.assert_allclose(sent.own[0], paper(fed, answered, method=method), atol=1e-5)
    size = 4 * got.state["models"].shape[1]
    assert {record.value for record in got.history.select("bytes_down")} == {2 * size}
    assert {record.value for record in got.history.select("bytes_up")} == {size}
    assert got.history.values("personal", round=3) == got.history.values("received", round=3)


# ---- the graph
def test_strongest_edges():
    weights = np.array([[0.2, 0.6, 0.4], [0.0, 0.0, 0.0], [1.0, 3.0, 1.0]])
    np.testing.assert_allclose(strongest(weights, 2), [[0.25, 0.75, 0], [0, 1, 0], [0, 0.75, 0.25]])
    np.testing.assert_allclose(strongest(weights, 9).sum(1), 1)
    # edges from clients 0 and 2 alone: client 1 has no weight, and takes both alike
    from_some = strongest(weights, 2, np.array([True, False, True]))
    np.testing.assert_allclose(from_some, [[1 / 3, 0, 2 / 3], [0.5, 0, 0.5], [0.5, 0, 0.5]])


def test_by_default_the_graph_tells_groups_apart_and_changes_since_the_start_do_not():
    fed = fedkin.federate("digits", partition="rotated", clients=8, samples_per_client=60, seed=1)
    groups = np.asarray(fed.partition.turns)
    same, other = groups[:, None] == groups, ~np.eye(8, dtype=bool)
    found = {}
    for similarity in ("centered", "changes"):
        mix = run(SFL(similarity=similarity), fed, rounds=8).state["mix"].numpy()
        found[similarity] = mix[same & other].mean() / mix[~same].mean()
    assert found["centered"] > 2
    assert found["changes"] < 1.1


def test_the_learned_graph_is_like_its_target_and_the_official_one_has_one_way_edges():
    truth = np.kron(np.eye(2), np.ones((5, 5)))
    edges = constructed(truth, steps=50, lr=0.05, seed=0, one_way=False)
    assert edges[truth > 0].mean() > 3 * edges[truth == 0].mean()
    start = constructed(truth, steps=0, lr=0.05, seed=0, one_way=False)
    assert not start[truth > 0].mean() > 3 * start[truth == 0].mean()
    official = constructed(truth, steps=10, lr=0.05, seed=0, one_way=True)
    assert (np.minimum(official, official.T) == 0).all()
    assert np.array_equal(edges, constructed(truth, steps=50, lr=0.05, seed=0, one_way=False))


def test_the_learned_graph_is_blended_in(fed):
    """(1 − β) prior + β learned: the graph moves by β times the same matrix."""
    plain = run(SFL(groups=GROUPS), fed, rounds=1).state["graph"]
    little = run(SFL(groups=GROUPS, learned=True, blend=0.1), fed, rounds=1).state["graph"]
    much = run(SFL(groups=GROUPS, learned=True, blend=0.4), fed, rounds=1).state["graph"]
    assert not torch.allclose(plain, little, atol=1e-3)
    np.testing.assert_allclose((much - plain) / 4, little - plain, atol=1e-6)


def test_what_is_sent_does_not_depend_on_the_order_of_asking():
    """To the bit, on any number of threads: a learned graph magnifies rounding."""
    generator = torch.Generator().manual_seed(0)
    state = {
        "mix": torch.rand(8, 8, generator=generator),
        "models": torch.randn(8, 300, generator=generator),
        "sources": torch.ones(8, dtype=torch.bool),
    }
    ids, order = torch.tensor([0, 2, 3, 5, 6, 7]), torch.tensor([3, 1, 5, 0, 4, 2])
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        usual, other = (SFL().send(state, asked).own[0] for asked in (ids, ids[order]))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(usual[order], other)
    torch.testing.assert_close(usual, state["mix"][ids] @ state["models"])


# ---- reductions
def test_without_edges_or_pull_it_is_local_training(fed):
    alone = run("local", fed)
    for method in (
        SFL(groups=tuple(range(6)), pull_personal=0.0, pull_global=0.0),
        SFL(server_step=0.0, pull_personal=0.0, pull_global=0.0),
    ):
        ours = run(method, fed)
        # what would be sent after a round is the client's own model
        want = alone.history.values("personal_loss", round=3)
        assert len(want) == 6
        assert ours.history.values("personal_loss", round=3) == pytest.approx(want, rel=1e-5)


def test_all_linked_without_pull_is_fedavg_with_equal_weights(fed):
    assert len(set(fed.sizes.tolist())) == 1
    ours = run(SFL(groups=(0,) * 6, pull_personal=0.0, pull_global=0.0), fed)
    sent = SFL().send(ours.state, torch.arange(6))
    model = run("fedavg", fed).state["model"]
    np.testing.assert_allclose(sent.own[0], model.expand(6, -1), atol=1e-6)
    np.testing.assert_allclose(sent.shared[0], model, atol=1e-6)


def test_the_pull_has_a_gradient(make_client):
    client = make_client(batch_size=10_000, lr=0.1)
    u = client.net.initial
    g = u + 0.05 * torch.randn(len(u))
    got = SFL(pull_personal=0.5, pull_global=2.0).local(client, Message(shared=(g,), own=(u,))).body[0]
    slope, _ = gradient(client.net, u, client.data.train)
    np.testing.assert_allclose(got, u - 0.1 * (slope + 2.0 * (u - g)), atol=1e-6)


@pytest.mark.parametrize("name", ["sfl", "sfl-star"])
def test_losses_arrivals_and_resume(fed, name, tmp_path):
    changes = {"lost": 0.4, "participation": 0.7, "arrive": {5: 2}, "leave": {0: 3}, "rounds": 4}
    straight = run(name, fed, **changes)
    run(name, fed, **{**changes, "rounds": 2}, out=tmp_path, checkpoint_every=1)
    assert equal(straight.state, run(name, fed, **changes, out=tmp_path, checkpoint_every=1).state)
    for matrix in (straight.state["graph"], fedkin.method(name).mixing(straight.state)):
        np.testing.assert_allclose(matrix.sum(1), 1, atol=1e-5)


@pytest.mark.parametrize("fields", [{"pull_global": -1.0}, {"neighbors": 0}, {"server_step": 2.0}])
def test_wrong_fields_are_named(fields):
    with pytest.raises(ValueError, match=f"{next(iter(fields))}="):
        SFL(**fields)
