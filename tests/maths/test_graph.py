from __future__ import annotations

import numpy as np
import pytest
import torch

from fedkin.maths.graph import centered, cosine, edge_auc, evenness, majority, normalized, propagation
from fedkin.maths.kmeans import gram


def rows(count: int = 5, width: int = 30) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(0))


def test_cosine_is_that_of_the_vectors():
    x = rows()
    expected = torch.nn.functional.cosine_similarity(x.double()[:, None], x.double()[None], dim=2).numpy()
    np.testing.assert_allclose(cosine(gram(x)), expected, atol=1e-12)


def test_centered_is_that_of_the_vectors_less_their_mean():
    x = rows()
    moved = (x.double() - x.double().mean(0)).numpy()
    np.testing.assert_allclose(centered(gram(x)), moved @ moved.T, atol=1e-12)
    assert not centered(gram(x[:1])).any()
    assert not centered(gram(x[[0, 0, 0]])).any()  # rounding is no direction


def test_a_zero_vector_is_like_itself_alone():
    x = rows(3)
    x[1] = 0
    found = cosine(gram(x))
    assert np.isfinite(found).all()
    assert found[1].tolist() == [0, 1, 0]


@pytest.mark.parametrize("how", ["sum", "softmax"])
def test_rows_sum_to_one(how):
    weights = normalized(cosine(gram(rows())), how, 0.3)
    np.testing.assert_allclose(weights.sum(1), 1, atol=1e-12)
    assert (weights >= 0).all()


def test_sum_by_hand():
    similarity = np.array([[1.0, 0.5, -0.5], [0.5, 1.0, 0.5], [-0.5, 0.5, 1.0]])
    expected = [[2 / 3, 1 / 3, 0], [0.25, 0.5, 0.25], [0, 1 / 3, 2 / 3]]
    np.testing.assert_allclose(normalized(similarity, "sum"), expected)
    assert similarity[0, 2] == -0.5  # the argument is not written to


def test_softmax_by_hand():
    similarity = np.array([[1.0, 0.4], [0.4, 1.0]])
    own = 1 / (1 + np.exp(-0.6 / 0.3))
    np.testing.assert_allclose(normalized(similarity, "softmax", 0.3), [[own, 1 - own], [1 - own, own]])
    np.testing.assert_allclose(normalized(similarity, "softmax", 1e-4), np.eye(2), atol=1e-12)  # no overflow


def test_a_row_without_any_similarity_keeps_to_itself():
    similarity = np.array([[0.0, 0.0, -1.0], [0.0, 1.0, 1.0], [-1.0, 0.0, -1.0]])
    assert normalized(similarity, "sum").tolist() == [[1, 0, 0], [0, 0.5, 0.5], [0, 0, 1]]


def test_propagation_repeats_the_step():
    graph = normalized(cosine(gram(rows().abs())), "sum")
    x = rows().double().numpy()
    step = x
    for times in range(4):
        np.testing.assert_allclose(propagation(graph, times) @ x, step, atol=1e-12)
        step = np.stack([sum(graph[k, i] * step[i] for i in range(5)) for k in range(5)])
    far = propagation(graph, 200)
    np.testing.assert_allclose(far, np.broadcast_to(far[0], far.shape), atol=1e-9)  # one model for all in the end


def test_evenness():
    assert evenness(np.eye(4)) == 0
    assert evenness(np.full((4, 4), 0.25)) == pytest.approx(1)
    assert evenness(np.ones((1, 1))) == 0
    assert 0 < evenness(np.array([[0.9, 0.1], [0.1, 0.9]])) < 1


def test_edge_auc_by_hand():
    chain = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], bool)
    right = np.array([[0.6, 0.3, 0.1], [0.3, 0.5, 0.2], [0.1, 0.2, 0.7]])
    assert edge_auc(right, chain) == 1
    assert edge_auc(1 - right, chain) == 0
    assert edge_auc(np.full((3, 3), 1 / 3), chain) == 0.5
    # pairs with an edge: .3 .3 .2 .2; without: .25 .25
    half = right.copy()
    half[0, 2] = half[2, 0] = 0.25
    assert edge_auc(half, chain) == 0.5


def test_edge_auc_knows_which_true_node_a_center_is():
    chain = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], bool)
    right = np.array([[0.6, 0.3, 0.1], [0.3, 0.5, 0.2], [0.1, 0.2, 0.7]])
    order = [2, 0, 1]
    shuffled = right[order][:, order]
    assert edge_auc(shuffled, chain, order) == 1
    assert edge_auc(shuffled, chain) < 1
    # centers 0 and 1 are both of node 0: their weight, the largest, is no edge to be found
    split = np.array([[0.4, 0.9, 0.2, 0.1], [0.9, 0.4, 0.2, 0.1], [0.2, 0.2, 0.4, 0.2], [0.1, 0.1, 0.2, 0.4]])
    assert edge_auc(split, chain, [0, 0, 1, 2]) == 1
    assert edge_auc(np.ones((2, 2)), chain, [0, 1]) is None  # no pair without an edge
    assert edge_auc(np.ones((1, 1)), chain) is None


def test_majority_names_the_true_node_of_each_cluster():
    assert majority([0, 0, 0, 1, -1, 1], [2, 2, 0, 1, 0, 1]).tolist() == [2, 1]
