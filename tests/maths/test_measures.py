"""Rand index, fairness and means of rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import rand_score

from fedkin.maths.cluster import rand_index
from fedkin.maths.fairness import fairness
from fedkin.maths.mixing import average, shares

pairs_of_labels = st.integers(2, 30).flatmap(
    lambda n: st.tuples(*(st.lists(st.integers(-1, 5), min_size=n, max_size=n) for _ in range(2)))
)


@given(labels=pairs_of_labels)
def test_rand_index_is_that_of_scikit_learn(labels):
    assert rand_index(*labels) == pytest.approx(rand_score(*labels))


def test_rand_index_by_hand():
    # pairs: (0,1) together in both, (0,2) and (1,2) apart in the truth and together in what was found
    assert rand_index([0, 0, 1], [5, 5, 5]) == pytest.approx(1 / 3)
    assert rand_index([0, 0, 1], [7, 7, 2]) == 1.0, "names of clusters do not matter"
    assert rand_index([3], [1]) == 1.0
    assert rand_index([], []) == 1.0


def test_rand_index_of_unlike_lengths():
    with pytest.raises(ValueError, match="one has 2 labels, the other 3"):
        rand_index([0, 1], [0, 1, 2])


def test_fairness_by_hand():
    out = fairness([0.5, 1.0])
    assert out["std"] == pytest.approx(0.25)
    assert out["worst_decile"] == 0.5
    assert out["jain"] == pytest.approx(1.5**2 / (2 * 1.25))


@pytest.mark.parametrize(("count", "worst"), [(1, 1), (10, 1), (11, 2), (20, 2), (25, 3)])
def test_the_worst_tenth_is_rounded_up(count, worst):
    values = np.random.default_rng(0).permutation(count) + 1.0
    assert fairness(values)["worst_decile"] == pytest.approx(np.arange(1, worst + 1).mean())


@given(values=st.lists(st.floats(0.01, 1), min_size=1, max_size=20), factor=st.floats(0.1, 10))
def test_jains_index(values, factor):
    """Between 1/n (one has it all) and 1 (all have the same); it does not depend on the unit."""
    jain = fairness(values)["jain"]
    assert 1 / len(values) - 1e-9 <= jain <= 1 + 1e-9
    assert fairness([v * factor for v in values])["jain"] == pytest.approx(jain)
    assert fairness([values[0]] * 5)["jain"] == pytest.approx(1.0)
    assert fairness([1.0, 0, 0, 0])["jain"] == pytest.approx(0.25)


def test_jains_index_of_nothing_is_equality():
    assert fairness([0.0, 0.0])["jain"] == 1.0


def test_average_is_the_weighted_mean():
    rows = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
    assert average(rows, torch.tensor([0.25, 0.75])).tolist() == [2.5, 5.0]
    assert average(rows, torch.tensor([0.25, 0.75], dtype=torch.float64)).dtype == torch.float32


def test_shares_cover_the_whole_federation():
    found = shares(5, torch.tensor([3, 1]), torch.tensor([0.25, 0.75]))
    assert found.tolist() == [0, 0.75, 0, 0.25, 0]
    twice = shares(3, torch.tensor([2, 2, 0]), torch.tensor([0.25, 0.25, 0.5]))
    assert twice.tolist() == [0.5, 0, 0.5], "an id that was drawn twice counts twice"
