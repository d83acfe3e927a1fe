"""Model discrepancy and its tree against the paper's formulas in plain loops."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedkin.methods.dcpfl import discrepancy as module
from fedkin.methods.dcpfl.discrepancy import layer_discrepancy, pairwise_discrepancy
from fedkin.methods.dcpfl.layerwise import averaged, overall, pick, put, stacked
from fedkin.methods.dcpfl.tree import cut, filled, gamma_for, group_tree, labels_at
from fedkin.protocol import Replies

LAYERS = [torch.arange(0, 30), torch.arange(30, 47), torch.tensor([47, 49, 48, 50])]


def models(n=6, d=51, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)) * 0.3


def scaled(w, low, high):
    return (w - low) / (high - low)


def by_hand(w, scale):
    """Eq. (3), one pair at a time."""
    w = w.double().numpy()
    n, d = w.shape
    out = np.zeros((n, n))
    for i, j in itertools.product(range(n), range(n)):
        if scale == "common":
            out[i, j] = np.abs(scaled(w[i], w.min(), w.max()) - scaled(w[j], w.min(), w.max())).sum() / d
        elif scale == "model":
            a, b = (scaled(w[k], w[k].min(), w[k].max()) for k in (i, j))
            out[i, j] = np.abs(a - b).sum() / d
        else:
            for at in LAYERS:
                part = w[:, at.numpy()]
                a, b = (scaled(part[k], part.min(), part.max()) for k in (i, j))
                out[i, j] += np.abs(a - b).sum() / len(at) / len(LAYERS)
    return out


@pytest.mark.parametrize("scale", ["common", "model", "layer"])
@pytest.mark.parametrize("block", [7, 2048])
def test_is_equation_3_however_it_is_cut(monkeypatch, scale, block):
    monkeypatch.setattr(module, "BLOCK", block)
    found = pairwise_discrepancy(models(), scale, LAYERS)
    np.testing.assert_allclose(found.numpy(), by_hand(models(), scale), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("scale", ["common", "model", "layer"])
def test_is_symmetric_with_a_zero_diagonal_and_lies_in_0_1(scale):
    d = pairwise_discrepancy(models(), scale, LAYERS)
    assert torch.equal(d, d.T)
    assert torch.equal(d.diagonal(), torch.zeros(6, dtype=torch.double))
    assert 0 < float(d[0, 1]) <= 1


def test_an_affine_rescaling_of_one_model_changes_nothing_only_if_each_has_its_own_scale():
    w = models()
    other = w.clone()
    other[2] = 4 * w[2] - 1.5
    assert torch.allclose(pairwise_discrepancy(w, "model"), pairwise_discrepancy(other, "model"), atol=1e-6)
    assert not torch.allclose(pairwise_discrepancy(w, "common"), pairwise_discrepancy(other, "common"), atol=1e-3)
    # common and layer scales follow a rescaling of all models together
    for scale in ("common", "layer"):
        a, b = (pairwise_discrepancy(x, scale, LAYERS) for x in (w, 4 * w - 1.5))
        assert torch.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("scale", ["common", "model", "layer"])
def test_models_that_are_constant_or_alike_have_no_discrepancy(scale):
    same = models(1).repeat(4, 1)
    assert torch.equal(pairwise_discrepancy(same, scale, LAYERS), torch.zeros(4, 4, dtype=torch.double))
    assert not pairwise_discrepancy(torch.zeros(3, 51), scale, LAYERS).any()


def test_threads_are_left_as_they_were():
    before = torch.get_num_threads()
    pairwise_discrepancy(models())
    assert torch.get_num_threads() == before


class Largest(TorchDispatchMode):
    """Notes the size of the largest array that an operation returns in memory of its own."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out._base is None and not func.is_view:
            self.size = max(self.size, out.numel())
        return out


@pytest.mark.parametrize("scale", ["common", "model"])
def test_many_large_models_are_compared_block_by_block(scale):
    """A hundred models of a million numbers on two cores: about 1.5 s, and 5 MB beside the 400 MB of the matrix."""
    w = torch.randn(20, 10 * module.BLOCK)
    with Largest() as largest:
        group_tree(pairwise_discrepancy(w, scale))
    assert largest.size == 20 * module.BLOCK


# ---- eq. (5)
@pytest.mark.parametrize("scale", ["model", "own", "layer", "layer_own"])
def test_layer_discrepancy_is_equation_5(scale):
    w = models()
    center = w.mean(0)
    expected = []
    for at in LAYERS:
        whole, middle, total = w.double().numpy(), center.double().numpy(), 0.0
        inside = at.numpy() if scale.startswith("layer") else np.arange(51)
        for row in whole:
            if scale.endswith("own"):
                of_row, of_center = row[inside], middle[inside]
            else:
                of_row = of_center = whole[:, inside]
            a = scaled(row[at.numpy()], of_row.min(), of_row.max())
            b = scaled(middle[at.numpy()], of_center.min(), of_center.max())
            total += np.abs(a - b).sum() / len(at)
        expected.append(total / len(w))
    np.testing.assert_allclose(layer_discrepancy(w, center, LAYERS, scale).numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("scale", ["model", "own", "layer", "layer_own"])
def test_a_group_of_one_has_no_layer_discrepancy(scale):
    assert not layer_discrepancy(models(1), models(1)[0], LAYERS, scale).any()
    assert not layer_discrepancy(torch.zeros(3, 51), torch.zeros(51), LAYERS, scale).any()


# ---- pairs never seen together
def test_pairs_never_seen_get_what_is_usual_for_both():
    count = torch.tensor([[2, 1, 0], [1, 1, 2], [0, 2, 2]])
    total = torch.tensor([[0.0, 3.0, 0.0], [3.0, 0.0, 2.0], [0.0, 2.0, 0.0]], dtype=torch.double)
    found = filled(total, count)
    assert found[0, 1] == 3
    assert found[1, 2] == 1
    assert found[0, 2] == found[2, 0] == (3 + 1) / 2
    assert not found.diagonal().any()
    assert not filled(torch.zeros(2, 2, dtype=torch.double), torch.eye(2, dtype=torch.long)).isnan().any()


# ---- the tree
def average_linkage(d, threshold):
    """Sec. II-C by hand: merge the two nearest groups while their distance does not exceed the threshold."""
    groups = [[i] for i in range(len(d))]

    def apart(a, b):
        return np.mean([d[i, j] for i in a for j in b])

    heights = []
    while len(groups) > 1:
        a, b = min(itertools.combinations(groups, 2), key=lambda pair: apart(*pair))
        if threshold is not None and apart(a, b) > threshold:
            break
        heights.append(apart(a, b))
        groups = [g for g in groups if g not in (a, b)] + [a + b]
    return {frozenset(g) for g in groups}, heights


def as_sets(labels):
    return {frozenset((labels == k).nonzero().flatten().tolist()) for k in labels.unique()}


def test_the_tree_is_the_papers_and_gamma_global_is_its_last_merge():
    d = pairwise_discrepancy(models(9))
    tree = group_tree(d)
    _, heights = average_linkage(d.numpy(), None)
    np.testing.assert_allclose(tree[:, 2].numpy(), heights)
    for gamma in (0.95, 0.8, 0.6):
        assert as_sets(cut(tree, gamma)) == average_linkage(d.numpy(), gamma * heights[-1])[0]


def test_cuts_are_nested_from_one_group_to_singletons():
    tree = group_tree(pairwise_discrepancy(models(12)))
    assert torch.equal(cut(tree, 1.0), torch.zeros(12, dtype=torch.long))
    assert torch.equal(cut(tree, 0.0), torch.arange(12))
    cuts = [cut(tree, gamma) for gamma in np.linspace(1, 0, 21)]
    assert len({int(c.max()) for c in cuts}) > 3
    for coarse, fine in itertools.pairwise(cuts):
        for group in fine.unique():
            assert len(coarse[fine == group].unique()) == 1
        assert fine[0] == 0  # numbered by first member
        assert torch.equal(fine.unique(), torch.arange(int(fine.max()) + 1))


def test_the_tree_can_be_cut_into_a_given_number_of_groups():
    tree = group_tree(pairwise_discrepancy(models(7)))
    for groups in range(1, 8):
        assert len(cut(tree, gamma_for(tree, groups)).unique()) == groups
    assert gamma_for(tree, 9) == 0.0
    assert gamma_for(group_tree(torch.zeros(1, 1)), 2) == 1.0


def test_models_that_are_alike_are_still_alone_at_0_and_together_above():
    tree = group_tree(torch.zeros(3, 3))
    assert torch.equal(cut(tree, 0.0), torch.arange(3))
    assert torch.equal(cut(tree, 0.5), torch.zeros(3, dtype=torch.long))
    assert torch.equal(cut(group_tree(torch.zeros(1, 1)), 0.5), torch.zeros(1, dtype=torch.long))


def test_clients_outside_the_tree_follow_their_leader_or_have_no_group():
    d = torch.tensor([[0, 1, 9.0], [1, 0, 9], [9, 9, 0]])
    tree, leaves = group_tree(d), torch.tensor([0, 2, 3])
    leader = torch.tensor([0, 3, 2, 3, -1])
    assert labels_at(tree, leaves, leader, 1.0).tolist() == [0, 0, 0, 0, 0]
    assert labels_at(tree, leaves, leader, 0.5).tolist() == [0, 1, 0, 1, -1]
    assert labels_at(tree, leaves, leader, 0.0).tolist() == [0, 1, 2, 3, -1]


# ---- rows of which only some layers are there
def test_layers_are_picked_out_and_put_back():
    owner = torch.tensor([0, 0, 1, 2, 1], dtype=torch.int32)
    row, some = torch.arange(5.0), torch.tensor([False, True, True])
    assert pick(row, some, owner).tolist() == [2, 3, 4]
    assert put(torch.zeros(5), pick(row, some, owner), some, owner).tolist() == [0, 0, 2, 3, 4]
    masks = torch.stack([some, ~some])
    assert stacked([pick(row, m, owner) for m in masks], masks, owner).tolist() == [[0, 0, 2, 3, 4], [0, 1, 0, 0, 0]]


def test_only_what_is_due_is_averaged_and_a_group_that_sent_nothing_stays():
    owner = torch.tensor([0, 1], dtype=torch.int32)
    groups = {
        "models": torch.tensor([[10.0, 20], [30, 40]]),
        "version": torch.zeros(2, 2, dtype=torch.long),
        "since": torch.zeros(2, 2, dtype=torch.long),
        "spread": torch.full((2, 2), torch.inf, dtype=torch.double),
        "shares": torch.full((2, 2, 4), 0.25),
    }
    due = torch.tensor([[True, False], [True, True]])
    rows, position = torch.tensor([[1.0, 0], [4, 0]]), torch.arange(2)
    replies = Replies(torch.tensor([1, 3]), torch.tensor([10, 20]), ([rows[0], rows[1]],), position, 0)
    state, labels = {"clock": 7, "owner": owner, "parameters": 2}, torch.tensor([1, 0, 1, 0])
    out = averaged(state, groups, labels, replies, rows, due, scale="model", drift="raw")
    assert out["models"].tolist() == [[3, 20], [30, 40]]
    assert out["version"].tolist() == [[7, 0], [0, 0]]
    torch.testing.assert_close(out["shares"][0, 0], torch.tensor([0, 1 / 3, 0, 2 / 3]))
    assert out["shares"][0, 1].tolist() == [0.25] * 4
    assert float(out["spread"][0, 0]) == pytest.approx((2 / 3 + 1 / 3) / 2)
    assert groups["models"].tolist() == [[10, 20], [30, 40]]


def test_the_mean_over_groups_counts_examples_and_leaves_out_who_has_no_group():
    table, labels, n = torch.tensor([[0.0], [6.0]]), torch.tensor([0, 1, 1, -1]), torch.tensor([4, 1, 1, 100])
    assert overall(table, labels, n).tolist() == [2.0]
