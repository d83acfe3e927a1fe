"""A newcomer is sent what the method's own rule gives it: the nearest cluster, an attention row, the nearest group."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import fedkin
from fedkin.client.evaluate import evaluate
from fedkin.client.training import sgd
from fedkin.data.arrays import Arrays
from fedkin.methods import METHODS, method
from fedkin.protocol import Data, Examples
from fedkin.results.newcomer import with_newcomer

GROUPS, PER_GROUP, EXAMPLES = 2, 3, 60


def examples(group: int, seed: int, count: int = EXAMPLES) -> tuple[np.ndarray, np.ndarray]:
    """Two groups that name the same two classes the other way round: a common model is right half the time."""
    rng = np.random.default_rng([seed, group])
    y = np.arange(count) % 2
    x = rng.normal(size=(count, 4)) + 1.5 * (2 * y[:, None] - 1) * np.array([1, -1, 1, 0.5])
    return x.astype(np.float32), (y if group == 0 else 1 - y).astype(np.int64)


@cache
def federation() -> fedkin.Federation:
    parts = [examples(g, seed) for g in range(GROUPS) for seed in range(PER_GROUP)]
    arrays = Arrays(
        np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts]), 2,
        group=np.repeat(np.arange(len(parts)), EXAMPLES),
    )  # fmt: skip
    return fedkin.federate(arrays, partition="by_group")


@cache
def run(name: str) -> fedkin.Run:
    return fedkin.run(name, federation(), rounds=12, epochs=2, lr=0.1, engine="serial", model="mlp", batch_size=10)


def newcomer(name: str, group: int):
    """A run, its state with room for one more, the newcomer and its id."""
    made = run(name)
    x, y = map(torch.from_numpy, examples(group, 99))
    state, id = with_newcomer(made.method, made.state, made._server(), len(y))
    nobody = Examples(x[:0], y[:0])
    return made, state, made._client(made._network(), Data(lambda: Examples(x, y), lambda: nobody, 2)), id


CLUSTERED = {
    "ifca": "ifca,clusters=2",
    "pflic": "pflic,clusters=2,stable_rounds=2",
    "fedcedar": "fedcedar-soft,clusters=2",
    "fedsem": "fedsem,clusters=2",
    "clusterfl-kmeans": "clusterfl-kmeans,clusters=2",
    "cfl": "cfl,wait=2,eps1=1e9,eps2=0",
    "fedgroup": "fedgroup,groups=2",
    "dcpfl": "dcpfl-nodc,start_rounds=2,split_into=2",
    "fedamp": "fedamp,sigma=1",
    "pfedgraph": "pfedgraph,graph_lam=0.1",
    "sfl": "sfl,neighbors=2",
}


@pytest.mark.parametrize("name", CLUSTERED.values(), ids=CLUSTERED)
def test_a_newcomer_gets_a_model_of_its_own_kind(name):
    """The message alone, before any training, must fit newcomers of both groups: the mean of all models cannot."""
    for group in range(GROUPS):
        made, state, client, id = newcomer(name, group)
        received = made.method.received(client, made.method.join(state, client, id))
        if name.startswith("dcpfl"):  # its parts are put together where it trains
            received = made.method.personal(
                client, made.method.join(state, client, id), lambda: pytest.fail("untrained")
            )
        x, y = map(torch.from_numpy, examples(group, 123, 200))
        assert evaluate(client.net, received, Examples(x, y))[0] > 0.8


def test_dcpfl_takes_the_group_with_the_most_similar_change():
    name = CLUSTERED["dcpfl"]
    for group in range(GROUPS):
        made, state, client, id = newcomer(name, group)
        models, labels, n = state["groups"]["models"], state["labels"].tolist()[:id], state["n"].tolist()
        assert len(models) == 2
        examples_of = [sum(n[c] for c in range(id) if labels[c] == g) for g in range(2)]
        mean = sum(models[g] * (examples_of[g] / sum(examples_of)) for g in range(2))
        change, best = sgd(client, mean) - mean, None
        distances = []
        for g in range(2):
            one, two = change / change.abs().sum(), (models[g] - mean) / (models[g] - mean).abs().sum()
            distances.append(float((one - two).abs().sum()))
        best = distances.index(min(distances))
        message = made.method.join(state, client, id)
        np.testing.assert_allclose(message.own[0], models[best], atol=1e-6)
        assert labels.count(best) == PER_GROUP, "three clients of its own kind are in that group"


@pytest.mark.parametrize("name", ["pfedgat", "pfedgat-v2,projection=none", "pfedgat-direct"])
def test_pfedgat_mixes_by_the_newcomers_attention_row(name):
    made, state, client, id = newcomer(name, 0)
    own = sgd(client, state["models"].mean(0))
    models = torch.cat([state["models"], own[None]])
    rule, gat, rows = made.method, state["gat"], []
    if rule.attention == "direct":
        nodes = [*state["nodes"].tolist(), id]
        rows.append(torch.softmax(torch.tensor([float(gat["logits"][id, j]) for j in nodes]), 0))
    else:
        h = F.layer_norm(models - models.mean(0) if rule.features == "centered" else models, models.shape[1:])
        rows = list(rule._heads(gat, torch.arange(len(models)), h)[:, -1])
    row = torch.stack(rows).mean(0)
    mixed = sum(w * m for w, m in zip(row, models))
    np.testing.assert_allclose(made.method.join(state, client, id).own[0], mixed, atol=2e-4)
    assert not torch.allclose(mixed, client.net.initial, atol=1e-2), "not the initial model"


def test_pfedhn_learns_an_embedding_and_nothing_else():
    made, state, client, id = newcomer("pfedhn", 1)
    before = {k: v.clone() for k, v in state["net"].items()}
    from fedkin.methods.pfedhn.hypernetwork import produced

    plain = produced(state["net"], state["embeddings"][:id].mean(0, keepdim=True))[0]
    found = made.method.join(state, client, id).own[0]
    losses = []
    for parameters in (plain, found):
        vector = client.net.initial.clone()
        vector[: len(parameters)] = parameters
        losses.append(evaluate(client.net, vector, client.data.train)[1])
    assert losses[1] < losses[0]
    assert all(torch.equal(before[k], v) for k, v in state["net"].items())


def test_clusterfl_pulls_a_newcomer_to_its_cluster():
    made, state, client, id = newcomer("clusterfl,update_every=2", 0)
    linear, quadratic = made.method.join(state, client, id).own
    assert float(quadratic) > 0
    assert float(linear.norm()) > 0
    assert float(made.method.send(state, torch.tensor([id])).own[1]) == 0, "a client never heard has no cluster"


def test_fedaghn_weighs_the_newcomers_update():
    made, state, client, id = newcomer("fedaghn,q=20", 0)
    sent = made.method.join(state, client, id).own[0]
    initial = made.method.send(state, torch.tensor([id])).own[0][0]
    losses = [evaluate(client.net, v, client.data.train)[1] for v in (sent, initial)]
    assert losses[0] < losses[1]


@pytest.mark.parametrize("name", ["fedper", "fedrep", "lg-fedavg", "ditto"])
def test_a_newcomer_works_on_what_stays_with_clients(name):
    """A head or a model that stays with clients starts at the initial one: without work of its own, a newcomer would
    predict with that."""
    x, y = examples(0, 77, 120)
    made = run(name)
    rested = made.join("east", x, y, rounds=0).expected["loss"]
    worked = made.join("east", x, y).expected["loss"]
    assert worked < rested


def test_room_for_a_newcomer_where_other_sizes_depend_on_the_number_of_clients():
    """Three clients have embeddings of one number, four of two: a newcomer's must have one."""
    fed = federation()
    from dataclasses import replace

    three = replace(fed, splits=fed.splits[:3], partition=replace(fed.partition, indices=fed.partition.indices[:3]))
    made = fedkin.run("pfedhn", three, rounds=1, engine="serial", model="mlp")
    state, id = with_newcomer(method("pfedhn"), made.state, made._server(), 10)
    assert state["embeddings"].shape == (4, made.state["embeddings"].shape[1])
    assert torch.equal(state["embeddings"][:3], made.state["embeddings"])
    assert {k: v.shape for k, v in state["net"].items()} == {k: v.shape for k, v in made.state["net"].items()}
    assert id == 3


def test_the_table_of_newcomers_has_every_method():
    page = (Path(__file__).parents[2] / "docs" / "joining.md").read_text()
    assert re.findall(r"^\| ([\w-]+) \| +[\d.]+ \|", page, re.MULTILINE) == list(METHODS)
