from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

from fedkin.maths import kmeans as module
from fedkin.maths.cluster import rand_index
from fedkin.maths.kmeans import gram, kmeans, lloyd, membership, spread_out, squared_distances


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def blobs(clients: int, groups: int, width: int, *, apart: float, seed: int = 0) -> tuple[torch.Tensor, np.ndarray]:
    r = rng(seed)
    centers = apart * r.normal(size=(groups, width))
    group = np.arange(clients) % groups
    # a large common part, as in models with a common ancestor
    rows = 3 * r.normal(size=width) + centers[group] + r.normal(size=(clients, width))
    return torch.from_numpy(rows.astype(np.float32)), group


def test_gram_is_the_product_of_float64_rows_however_it_is_cut(monkeypatch):
    rows, _ = blobs(7, 2, 1001, apart=1.0)
    minus, of = torch.randn(4, 1001, generator=torch.Generator().manual_seed(0)), torch.tensor([3, 3, 0, 1, 2, 0, 1])
    monkeypatch.setattr(module, "BLOCK", 7 * 13)
    double = rows.double().numpy()
    np.testing.assert_allclose(gram(rows), double @ double.T, rtol=1e-13)
    moved = double - minus.double().numpy()[of]
    np.testing.assert_allclose(gram(rows, minus, of), moved @ moved.T, rtol=1e-11, atol=1e-9)


def test_gram_keeps_differences_that_float32_sums_would_lose():
    common = 10 * torch.randn(1, 200_000, generator=torch.Generator().manual_seed(1))
    small = 1e-4 * torch.randn(3, 200_000, generator=torch.Generator().manual_seed(2))
    rows = common + small
    exact = torch.cdist(rows.double(), rows.double(), compute_mode="donot_use_mm_for_euclid_dist").square().numpy()
    np.testing.assert_allclose(squared_distances(gram(rows)), exact, rtol=1e-3)


@pytest.mark.parametrize("seed", range(6))
def test_lloyd_from_the_same_start_has_scikit_learns_inertia_and_clusters(seed):
    rows, _ = blobs(60, 4, 40, apart=0.15, seed=seed)  # overlapping: many local optima, so that the start decides
    start = spread_out(squared_distances(gram(rows)), 5, rng(seed))
    ours = lloyd(squared_distances(gram(rows)), start)
    x = rows.double().numpy()
    theirs = KMeans(5, init=x[start], n_init=1, algorithm="lloyd", tol=0).fit(x)
    assert ours.inertia == pytest.approx(theirs.inertia_, rel=1e-9)
    assert rand_index(ours.labels, theirs.labels_) == 1


@pytest.mark.parametrize(("clients", "groups", "width"), [(30, 3, 20_000), (40, 5, 2_000), (12, 4, 100)])
def test_kmeans_has_scikit_learns_inertia_on_the_full_vectors(clients, groups, width):
    rows, group = blobs(clients, groups, width, apart=1.0)
    ours = kmeans(gram(rows), groups, restarts=10, rng=rng())
    x = rows.double().numpy()
    theirs = KMeans(groups, n_init=10, random_state=0).fit(x)
    assert ours.inertia == pytest.approx(theirs.inertia_, rel=1e-9)
    assert rand_index(ours.labels, group) == 1
    centers = membership(ours.labels) @ x
    assert ours.inertia == pytest.approx(((x - centers[ours.labels]) ** 2).sum(), rel=1e-9)


def test_restarts_help_and_the_seed_decides():
    rows, _ = blobs(60, 12, 30, apart=1.0, seed=3)
    products = gram(rows)
    one = [kmeans(products, 12, restarts=1, rng=rng(s)).inertia for s in range(12)]
    assert len(set(np.round(one, 6))) > 1  # a single start gets stuck in places
    assert kmeans(products, 12, restarts=12, rng=rng(0)).inertia <= one[0]
    again = kmeans(products, 12, restarts=3, rng=rng(5))
    assert np.array_equal(again.labels, kmeans(products, 12, restarts=3, rng=rng(5)).labels)


def test_labels_are_numbered_in_order_of_first_appearance():
    rows, _ = blobs(20, 4, 50, apart=3.0)
    assert kmeans(gram(rows), 4, restarts=5, rng=rng()).labels.tolist() == [0, 1, 2, 3] * 5


@pytest.mark.parametrize("width", [3, 300_000])
def test_clusters_fall_to_the_number_of_distinct_rows(width):
    distinct = torch.randn(3, width, generator=torch.Generator().manual_seed(0))
    rows = distinct[[0, 1, 0, 2, 2, 1, 0]]
    found = kmeans(gram(rows), 5, restarts=10, rng=rng())
    assert found.labels.tolist() == [0, 1, 0, 2, 2, 1, 0]
    assert found.inertia == pytest.approx(0, abs=1e-6)
    assert kmeans(gram(torch.ones(4, width)), 3, restarts=2, rng=rng()).labels.tolist() == [0, 0, 0, 0]
    assert kmeans(gram(torch.zeros(4, width)), 3, restarts=2, rng=rng()).labels.tolist() == [0, 0, 0, 0]
    assert kmeans(gram(distinct[:1]), 3, restarts=2, rng=rng()).labels.tolist() == [0]


def test_rows_apart_by_rounding_are_the_same_row():
    products = np.array([[1.0, 1 - 3e-15, 0.5], [1 - 3e-15, 1.0, 0.5], [0.5, 0.5, 1.0]])
    assert squared_distances(products).tolist() == [[0, 0, 1], [0, 0, 1], [1, 1, 0]]
    assert kmeans(products, 3, restarts=5, rng=rng()).labels.tolist() == [0, 0, 1]


def test_a_far_outlier_does_not_make_the_others_the_same():
    rows, group = blobs(8, 2, 100, apart=1.0)
    rows = torch.cat([rows, 1e6 * torch.ones(1, 100)])
    found = kmeans(gram(rows), 3, restarts=20, rng=rng())
    assert found.labels.tolist() == [*group.tolist(), 2]


def test_a_cluster_that_lost_its_last_row_gets_the_farthest_one():
    to_center = np.array([[1.0, 5.0, 9.0], [4.0, 5.0, 9.0], [7.0, 2.0, 9.0]])
    assert module._none_empty(to_center.argmin(1), to_center).tolist() == [0, 2, 1]
    # the farthest row of all is alone in its cluster and stays
    to_center = np.array([[1.0, 50.0, 90.0], [2.0, 50.0, 90.0], [70.0, 20.0, 90.0]])
    assert module._none_empty(to_center.argmin(1), to_center).tolist() == [0, 2, 1]


def test_no_cluster_is_ever_empty():
    for seed in range(40):
        rows = torch.from_numpy(rng(seed).integers(0, 3, (9, 2)).astype(np.float32))
        distinct = len(rows.unique(dim=0))
        found = kmeans(gram(rows), 7, restarts=1, rng=rng(seed))
        assert set(found.labels) == set(range(min(7, distinct)))


def test_memory_stays_far_below_the_rows():
    import tracemalloc

    rows = torch.randn(50, 200_000)
    tracemalloc.start()  # numpy tells it of its arrays
    gram(rows, torch.randn(1, 200_000), torch.zeros(50, dtype=torch.long))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.5 * rows.numel() * 4
