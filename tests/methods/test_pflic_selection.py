"""Means within clusters and the choice of clients, on numbers one can check by hand."""

from __future__ import annotations

import numpy as np
import torch

from fedkin.methods.pflic.selection import chosen, cluster_means, portions, turns_after


def test_cluster_means_by_hand() -> None:
    models = torch.tensor([[9.0, 9.0], [7.0, 7.0], [5.0, 5.0]])
    rows = torch.tensor([[1.0, 0.0], [3.0, 4.0], [10.0, 20.0]])
    out = cluster_means(models, rows, torch.tensor([0, 0, 2]), torch.tensor([1, 3, 8]))
    # cluster 0: (1·1 + 3·3)/4 = 2.5, (1·0 + 3·4)/4 = 3; cluster 1 has no members; cluster 2 has one
    assert out.tolist() == [[2.5, 3.0], [7.0, 7.0], [10.0, 20.0]]
    assert models[0].tolist() == [9.0, 9.0], "the models given were written into"


def test_portions() -> None:
    assert portions(torch.tensor([1, 3])).tolist() == [0.25, 0.75]


def test_chosen_by_hand() -> None:
    utilities = torch.tensor([5.0, 1.0, 3.0, 3.0, 9.0])
    turns = torch.tensor([0, 0, 0, 0, 2])
    members = torch.tensor([0, 1, 2, 3, 4])
    # half of five, rounded: three. Client 4 has the largest utility but had its two turns.
    assert chosen(utilities, turns, members, 0.5, 2).tolist() == [0, 2, 3]
    assert chosen(utilities, turns, members, 0.2, 2).tolist() == [0]
    assert chosen(utilities, turns, torch.tensor([1, 2, 3]), 0.4, 2).tolist() == [2], "of equals the lowest id"
    assert chosen(utilities, turns, torch.tensor([1, 4]), 0.01, 3).tolist() == [4], "at least one"
    assert chosen(utilities, turns, torch.tensor([4]), 1.0, 2).tolist() == [4], "nobody is below: all again"
    assert chosen(utilities, turns, torch.tensor([3, 4]), 1.0, 2).tolist() == [3], "only those below, even if fewer"


def test_turns_by_hand() -> None:
    labels = torch.tensor([0, 0, 1, 1])
    assert turns_after(torch.tensor([1, 2, 2, 0]), labels, torch.tensor([0, 3]), 2).tolist() == [2, 2, 2, 1]
    # cluster 0 is through: it starts again, cluster 1 does not
    assert turns_after(torch.tensor([2, 2, 2, 1]), labels, torch.tensor([1, 3]), 2).tolist() == [0, 1, 2, 2]


def test_nobody_has_more_turns_than_the_threshold_and_everybody_gets_them() -> None:
    rng = np.random.default_rng(0)
    labels, turns = torch.tensor([0] * 7 + [1] * 3), torch.zeros(10, dtype=torch.long)
    since = np.zeros(10, int)  # plain count of what was chosen since a cluster's last restart
    restarts = 0
    for _ in range(200):
        utilities = torch.from_numpy(rng.random(10))
        asked = torch.cat([chosen(utilities, turns, (labels == i).nonzero().flatten(), 0.4, 3) for i in (0, 1)])
        for i in (0, 1):
            members = np.flatnonzero(labels.numpy() == i)
            if (since[members] == 3).all():
                since[members], restarts = 0, restarts + 1
        since[asked.numpy()] += 1
        assert since.max() <= 3
        turns = turns_after(turns, labels, asked, 3)
        assert turns.tolist() == since.tolist()
    assert restarts > 20
