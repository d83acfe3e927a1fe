"""Properties of every partition: pure functions of (labels, clients, seed) that give no example twice."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedkin.data.partition import (
    PARTITIONS,
    TOPOLOGIES,
    ByGroup,
    Dirichlet,
    Iid,
    Partition,
    Pathological,
    PrimarySecondary,
    QuantitySkew,
    Rotated,
    Shards,
    Topology,
)
from fedkin.maths.divergence import SMOOTHING, mean_kld, pairwise_kld

seeds = st.integers(0, 2**31)


def labels_of(examples: int, classes: int, seed: int) -> np.ndarray:
    """Every class occurs; how often is left to chance."""
    rng = np.random.default_rng(seed)
    return rng.permutation(np.concatenate([np.arange(classes), rng.integers(0, classes, examples - classes)]))


def options_of(name: str) -> dict[str, Any]:
    return {"dirichlet": {"minimum": 2}, "quantity": {"minimum": 2}}.get(name, {})


def check(made: Partition, examples: int, clients: int, *, complete: bool = True) -> None:
    together = np.concatenate(made.indices)
    assert len(made.indices) == clients
    assert all(r.dtype == np.int64 and len(r) for r in made.indices)
    assert len(np.unique(together)) == len(together), "an example is given twice"
    assert together.min() >= 0
    assert together.max() < examples
    if complete:
        assert len(together) == examples


# ---- what all have in common


@pytest.mark.parametrize("name", PARTITIONS)
@given(seed=seeds, clients=st.integers(5, 15), examples=st.integers(400, 900))
def test_no_example_twice_and_a_pure_function_of_the_seed(name, seed, clients, examples):
    labels, group = labels_of(examples, 10, seed), np.arange(examples) % clients
    scheme = PARTITIONS[name](**options_of(name))
    made, same, other = (scheme(labels, clients, s, group) for s in (seed, seed, seed + 1))
    check(made, examples, clients, complete=name not in ("primary_secondary", "topology"))
    assert all(np.array_equal(a, b) for a, b in zip(made.indices, same.indices))
    if name != "by_group":  # nothing in it is left to chance
        assert not all(np.array_equal(a, b) for a, b in zip(made.indices, other.indices))


@pytest.mark.parametrize("name", sorted(set(PARTITIONS) - {"by_group", "topology"}))
@pytest.mark.parametrize(("clients", "text"), [(0, "at least one"), (500, r"use at most \d+ clients")])
def test_nobody_or_too_many(name, clients, text):
    scheme = PARTITIONS[name](**options_of(name))
    with pytest.raises(ValueError, match=text) as caught:
        scheme(labels_of(100, 5, 0), clients, 0)
    if clients:  # what it says would work does
        possible = int(re.search(r"at most (\d+) clients", str(caught.value))[1])
        check(scheme(np.arange(100) % 5, possible, 0), 100, possible, complete=False)


def test_counts():
    made = Partition((np.array([0, 1, 2]), np.array([3])))
    assert made.counts(np.array([2, 0, 2, 1]), 4).tolist() == [[1, 0, 2, 0], [0, 1, 0, 0]]


# ---- one by one


@given(seed=seeds, clients=st.integers(1, 30), examples=st.integers(30, 300))
def test_iid_sizes_differ_by_one_at_most(seed, clients, examples):
    sizes = [len(r) for r in Iid()(labels_of(examples, 3, seed), clients, seed).indices]
    assert max(sizes) - min(sizes) <= 1


@given(seed=seeds, clients=st.integers(1, 12), shards=st.integers(1, 5))
def test_shards_hold_few_labels(seed, clients, shards):
    classes = 5
    labels = labels_of(300, classes, seed)
    made = Shards(shards)(labels, clients, seed)
    check(made, 300, clients)
    sizes = [len(r) for r in made.indices]
    assert max(sizes) - min(sizes) <= shards
    # a shard is a stretch of the sorted labels: all borders between labels fall into classes - 1 shards at most
    found = sum(len(np.unique(labels[r])) for r in made.indices)
    assert found <= clients * shards + classes - 1


def test_shards_refuse_none():
    with pytest.raises(ValueError, match="shards=0: each client needs at least one"):
        Shards(0)(np.arange(10), 2, 0)


@given(seed=seeds, clients=st.integers(1, 40), classes=st.integers(2, 12), data=st.data())
def test_pathological_gives_exactly_k_classes_and_balanced_holders(seed, clients, classes, data):
    k = data.draw(st.integers(1, classes))
    labels = np.random.default_rng(seed).permutation(np.arange(classes * 60) % classes)
    made = Pathological(k)(labels, clients, seed)
    held = made.counts(labels, classes) > 0
    assert (held.sum(1) == k).all()
    assert held.sum(0).max() - held.sum(0).min() <= 1
    check(made, len(labels), clients, complete=clients * k >= classes)
    for a in range(clients):
        assert all((made.groups[a] == made.groups[b]) == (held[a] == held[b]).all() for b in range(clients))


@given(seed=seeds, clients=st.integers(10, 60), k=st.integers(1, 4))
@example(seed=0, clients=32, k=1)
@example(seed=2, clients=11, k=2)
def test_pathological_says_how_many_clients_would_work(seed, clients, k):
    labels = np.repeat(np.arange(5), [3, 60, 60, 60, 60])
    try:
        Pathological(k)(labels, clients, seed)
    except ValueError as error:
        possible = int(re.search(r"at most (\d+)", str(error))[1])
        assert 0 < possible < clients
        check(Pathological(k)(labels, possible, seed), len(labels), possible, complete=possible * k >= 5)


@pytest.mark.parametrize("k", [0, 11])
def test_pathological_refuses_classes_there_are_not(k):
    with pytest.raises(ValueError, match="the data has 10 classes; use 1 to 10"):
        Pathological(k)(np.arange(100) % 10, 5, 0)


@pytest.mark.parametrize("scheme", [Dirichlet, QuantitySkew])
@given(
    seed=seeds,
    alpha=st.sampled_from([1e-320, 1e-6, 0.01, 0.5, 1e6, 1e300]),
    clients=st.integers(1, 30),
    minimum=st.integers(0, 10),
)
def test_dirichlet_always_ends_with_the_least_size(scheme, seed, alpha, clients, minimum):
    made = scheme(alpha, minimum)(labels_of(300, 4, seed), clients, seed)
    check(made, 300, clients)
    assert min(len(r) for r in made.indices) >= max(1, minimum)


@pytest.mark.parametrize("alpha", [1e-6, 0.5, 1e6])
def test_dirichlet_with_nothing_to_spare(alpha):
    """Rows for exactly `minimum` each: the hardest case for topping up."""
    made = Dirichlet(alpha, 10)(labels_of(300, 4, 0), 30, 0)
    assert [len(r) for r in made.indices] == [10] * 30


def test_dirichlet_with_many_clients():
    made = Dirichlet(0.01, 10)(labels_of(60_000, 10, 0), 5000, 0)
    check(made, 60_000, 5000)
    assert min(len(r) for r in made.indices) == 10


def test_dirichlet_alpha_says_how_unlike():
    labels = labels_of(5000, 10, 0)
    klds = [mean_kld(Dirichlet(a)(labels, 20, 0).counts(labels, 10)) for a in (0.05, 0.5, 5.0, 1e6)]
    assert klds == sorted(klds, reverse=True)
    assert klds[-1] < 0.01


def test_quantity_skews_sizes_and_not_labels():
    labels = labels_of(20_000, 4, 0)
    sizes = {a: np.array([len(r) for r in QuantitySkew(a)(labels, 10, 0).indices]) for a in (0.2, 1e6)}
    assert sizes[0.2].std() > 500 > 5 > sizes[1e6].std()
    counts = QuantitySkew(0.2)(labels, 10, 0).counts(labels, 4)
    shares = counts[counts.sum(1) > 1000] / counts[counts.sum(1) > 1000].sum(1, keepdims=True)
    np.testing.assert_allclose(shares, 0.25, atol=0.05)


@pytest.mark.parametrize("scheme", [Dirichlet, QuantitySkew])
@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_dirichlet_refuses_alpha(scheme, alpha):
    with pytest.raises(ValueError, match="must be above 0 and finite"):
        scheme(alpha)(np.arange(100) % 5, 2, 0)


def test_dirichlet_says_how_many_clients_the_least_size_allows():
    with pytest.raises(ValueError, match="at least 10 each: use at most 9 clients"):
        Dirichlet()(np.arange(99) % 5, 10, 0)


@given(seed=seeds, clients=st.integers(1, 30), classes=st.integers(3, 10), examples=st.integers(3000, 3100))
@example(seed=8, clients=9, classes=6, examples=117)  # here rounding wants more examples of a class than there are
@example(seed=42, clients=19, classes=3, examples=243)
def test_primary_secondary_sizes_and_shares(seed, clients, classes, examples):
    labels = np.random.default_rng(seed).permutation(np.arange(examples) % classes)
    made = PrimarySecondary()(labels, clients, seed)
    check(made, len(labels), clients, complete=False)
    counts = made.counts(labels, classes)
    each = counts.sum(1)[0]
    assert (counts.sum(1) == each).all(), "sizes must be equal"
    slack = 1 / each  # of rounding to whole examples
    for row in np.sort(counts / each, axis=1)[:, ::-1]:
        # the primary class is the largest (its least share is the secondary's greatest)
        assert 0.4 - slack <= row[0] <= 0.6 + slack
        if classes > 4:  # with fewer, a class of the rest may have more than the secondary one
            assert 0.2 - slack <= row[1] <= 0.4 + slack
            assert row[2:].max() - row[2:].min() <= 2 * slack, "the rest is uniform"


def test_primary_secondary_uses_as_much_as_it_can():
    labels = np.arange(10_000) % 10
    made = PrimarySecondary()(labels, 20, 0)
    counts = made.counts(labels, 10)
    assert counts.sum(0).max() >= 990, "the most wanted class is all but used up"


def test_primary_secondary_bounds_are_the_users():
    labels = np.arange(10_000) % 10
    counts = PrimarySecondary(0.9, 0.9, 0.1, 0.1)(labels, 10, 0).counts(labels, 10)
    top = np.sort(counts, axis=1)[:, ::-1] / counts.sum(1, keepdims=True)
    np.testing.assert_allclose(top[:, :3], [[0.9, 0.1, 0]] * 10, atol=0.01)


@pytest.mark.parametrize(
    ("bounds", "labels", "text"),
    [
        ((), np.arange(100) % 2, "at least 3 classes; the data has 2"),
        ((0.6, 0.4), np.arange(100) % 5, "bounds must be ordered"),
        ((0.4, 0.8, 0.2, 0.4), np.arange(100) % 5, "must not add to more than 1"),
        ((-0.1, 0.4), np.arange(100) % 5, "bounds must be ordered"),
        ((), np.repeat(np.arange(5), [1, 30, 30, 30, 30]), "use fewer clients"),
    ],
)
def test_primary_secondary_refuses(bounds, labels, text):
    with pytest.raises(ValueError, match=text):
        PrimarySecondary(*bounds)(labels, 20, 0)


def test_rotated_turns_make_four_groups():
    made = Rotated()(np.arange(100) % 10, 10, 0)
    assert made.turns.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert made.groups.tolist() == made.turns.tolist()


@pytest.mark.parametrize("nodes", TOPOLOGIES)
@given(seed=seeds, extra=st.integers(0, 20))
def test_topology_label_sets_and_edges(nodes, seed, extra):
    clients = nodes + extra
    labels = labels_of(1000, 10, seed)
    made = Topology(nodes)(labels, clients, seed)
    check(made, 1000, clients, complete=nodes == 5)
    for examples, group in zip(made.indices, made.groups):
        assert set(labels[examples]) == set(TOPOLOGIES[nodes][group])
    ring = nodes > 3
    expected = [[abs(a - b) == 1 or (ring and abs(a - b) == nodes - 1) for b in range(nodes)] for a in range(nodes)]
    assert made.edges.tolist() == expected


@pytest.mark.parametrize(
    ("nodes", "labels", "clients", "text"),
    [
        (6, np.arange(100) % 10, 12, "3, 4 and 5 nodes"),
        (5, np.arange(100) % 8, 12, r"labels 0\.\.9; the data has 0\.\.7"),
        (5, np.arange(100) % 10, 4, "use at least 5"),
        (3, np.repeat(np.arange(10), [9, 9, 4, 9, 9, 9, 9, 9, 9, 9]), 12, "use at most 6 clients"),
        (3, np.repeat(np.arange(10), [9, 9, 0, 9, 9, 9, 9, 9, 9, 9]), 12, "use another partition"),
    ],
)
def test_topology_refuses(nodes, labels, clients, text):
    with pytest.raises(ValueError, match=text):
        Topology(nodes)(labels, clients, 0)


def test_topology_advice_works():
    labels = np.repeat(np.arange(10), [9, 9, 4, 9, 9, 9, 9, 9, 9, 9])
    check(Topology(3)(labels, 6, 0), len(labels), 6, complete=False)


@given(seed=seeds, groups=st.integers(1, 6), parts=st.integers(1, 4))
def test_by_group_has_one_group_a_client_in_order(seed, groups, parts):
    group = np.random.default_rng(seed).permutation(np.arange(120) % groups)
    made = ByGroup()(np.zeros(120, np.int64), groups * parts, seed, group)
    check(made, 120, groups * parts)
    assert all((np.diff(r) > 0).all() for r in made.indices), "time goes on within a client"
    owners = [set(group[r]) for r in made.indices]
    assert owners == [{g} for g in range(groups) for _ in range(parts)]
    assert (made.groups is None) if parts == 1 else (made.groups.tolist() == [g for (g,) in owners])


@pytest.mark.parametrize(
    ("clients", "group", "text"),
    [
        (4, None, r"needs data with natural groups.*use iid"),
        (2, np.arange(12) % 3, "use clients=3, or a multiple of it"),
        (4, np.arange(12) % 3, "use clients=3, or a multiple of it"),
        (9, np.array([0] * 10 + [1, 2]), "Group 1 has 1 examples for 3 clients: use clients=3"),
    ],
)
def test_by_group_refuses(clients, group, text):
    with pytest.raises(ValueError, match=text):
        ByGroup()(np.zeros(12, np.int64), clients, 0, group)


# ---- how unlike the clients are


@given(
    counts=st.lists(st.lists(st.integers(0, 50), min_size=4, max_size=4), min_size=2, max_size=7).filter(
        lambda table: all(sum(row) for row in table)
    )
)
def test_mean_pairwise_kld_against_plain_loops(counts):
    def smooth(row):
        p = [c / sum(row) + SMOOTHING for c in row]
        return [v / sum(p) for v in p]

    def one_way(p, q):  # eq. (1)
        return sum(a * np.log(a / b) for a, b in zip(p, q))

    p = [smooth(row) for row in counts]
    n = len(p)
    pairs = [(one_way(p[i], p[j]) + one_way(p[j], p[i])) / 2 for i in range(n) for j in range(i + 1, n)]
    assert mean_kld(counts) == pytest.approx(2 / (n * (n - 1)) * sum(pairs), abs=1e-9)  # eq. (2)
    table = pairwise_kld(counts)
    np.testing.assert_allclose(table, table.T)
    assert (np.diag(table) == 0).all()


def test_mean_kld_of_one_client_and_of_very_many():
    assert mean_kld([[1, 2]]) == 0.0
    counts = np.random.default_rng(0).integers(5, 20, (300, 4))  # no zeros: few pairs with one would decide the mean
    assert mean_kld(counts, most=100) == pytest.approx(mean_kld(counts), rel=0.1)
    assert mean_kld(counts, most=100) == pytest.approx(mean_kld(counts[np.linspace(0, 299, 100).astype(int)]))
