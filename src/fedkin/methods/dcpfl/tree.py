"""The tree of groups (DC-PFL, sec. II-C and III-B): built from the discrepancy of the first rounds, cut at γ̃, and how
clients that come later join it."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from torch import Tensor

from fedkin.methods.dcpfl.discrepancy import Scale, pairwise_discrepancy
from fedkin.methods.dcpfl.layerwise import overall
from fedkin.protocol import State


# ---- in a run's state
def compared(state: State, ids: Tensor, uploads: Tensor, scale: Scale) -> State:
    """The state after the discrepancy of this round's models was added to the sums."""
    trained = state["owner"][: state["parameters"]]
    layers = [(trained == layer).nonzero().flatten() for layer in range(len(state["layers"]))]
    pairs = torch.meshgrid(ids, ids, indexing="ij")
    distance, seen = state["distance"].clone(), state["seen"].clone()
    distance[pairs] += pairwise_discrepancy(uploads[:, : len(trained)], scale, layers)  # eq. (3)
    seen[pairs] += 1
    return {**state, "distance": distance, "seen": seen}


def grown(state: State) -> State:
    """The state with the tree of all clients seen so far."""
    leaves = state["seen"].diagonal().nonzero().flatten()
    leader = state["leader"].clone()
    leader[leaves] = leaves
    tree = group_tree(mean_discrepancy(state, leaves))
    return {**state, "tree": tree, "leaves": leaves, "leader": leader, "event": {**state["event"], "tree": True}}


def mean_discrepancy(state: State, leaves: Tensor) -> Tensor:
    grid = torch.meshgrid(leaves, leaves, indexing="ij")
    return filled(state["distance"][grid], state["seen"][grid])


def groups_at(state: State, gamma: float) -> Tensor:
    return labels_at(state["tree"], state["leaves"], state["leader"], gamma)


def finer(state: State, step: float) -> float | None:
    """The next γ̃, in steps, at which the groups are others. Steps that change no group are skipped: both models of a
    trial would be equal. None: every client is alone."""
    gamma, placed, same = state["gamma"], state["leader"] >= 0, True
    while same and gamma > 0:
        gamma = max(0.0, round(gamma - step, 9))
        same = torch.equal(groups_at(state, gamma)[placed], state["labels"][placed])
    return None if same else gamma


# ---- clients that come after the tree was built
def followed(before: State, state: State, ids: Tensor, uploads: Tensor, due: Tensor) -> State:
    """A client outside the tree follows, from its first upload on, the client with the most similar change.

    D compares clients that started from one model. These clients started from different ones, so changes are measured
    from the model that the newcomer started from, the mean of all groups, and divided by their length.
    """
    late = state["leader"][ids] < 0
    known = ~late & due.any(1)  # a client alone in its group sends nothing
    layers = due[known].all(0)
    if not bool(late.any()) or not bool(known.any()) or not bool(layers.any()):
        return state
    columns = layers[state["owner"]]
    columns[state["parameters"] :] = False
    moved = directions(uploads, overall(before["groups"]["models"], before["labels"], state["n"]), columns)
    leader, labels, held = state["leader"].clone(), state["labels"].clone(), state["held"].clone()
    leader[ids[late]] = ids[known][torch.cdist(moved[late], moved[known], p=1).argmin(1)]
    for client in ids[late].tolist():
        if labels[client] != labels[leader[client]]:
            labels[client] = labels[leader[client]]
            held[client] = -1  # it holds the mean of all groups, not its group's model
    return {**state, "leader": leader, "labels": labels, "held": held}


def directions(models: Tensor, mean: Tensor, columns: Tensor | slice) -> Tensor:
    """Changes from the mean, divided by their length."""
    moved = (models - mean)[:, columns]
    return moved / moved.abs().sum(1, keepdim=True).clamp(min=1e-30)


# ---- the tree itself
def filled(total: Tensor, count: Tensor) -> Tensor:
    """Mean discrepancy of each pair, from sums and counts. A pair never seen together gets the mean of its two members'
    mean discrepancies."""
    known = (count > 0) & ~torch.eye(len(count), dtype=torch.bool)
    mean = torch.where(known, total / count.clamp(min=1), 0.0)
    overall = mean.sum() / known.sum().clamp(min=1)
    usual = torch.where(known.any(1), mean.sum(1) / known.sum(1).clamp(min=1), overall)
    out = torch.where(known, mean, (usual[:, None] + usual[None]) / 2)
    return out.fill_diagonal_(0.0)


def group_tree(distance: Tensor) -> Tensor:
    """Average-linkage merges [n-1, 4] in scipy's form; γ_global is the height of the last one."""
    if len(distance) < 2:
        return torch.empty(0, 4, dtype=torch.double)
    square = distance.double().numpy()
    return torch.from_numpy(linkage(squareform((square + square.T) / 2, checks=False), "average"))


def cut(tree: Tensor, gamma: float) -> Tensor:
    """Group of each leaf at the normalized threshold: 1 is one group, 0 every leaf alone, and cuts are nested. Groups
    are numbered by their first leaf."""
    leaves = len(tree) + 1
    if gamma <= 0:
        return torch.arange(leaves)
    if leaves == 1 or gamma >= 1:
        return torch.zeros(leaves, dtype=torch.long)
    merges: NDArray[np.float64] = tree.numpy()
    return first_seen(torch.from_numpy(fcluster(merges, gamma * merges[-1, 2], "distance").astype(np.int64)))


def gamma_for(tree: Tensor, groups: int) -> float:
    """The normalized threshold at which the tree has this many groups (fewer where merges have equal heights)."""
    leaves = len(tree) + 1
    if groups <= 1 or leaves == 1:
        return 1.0
    if groups >= leaves:
        return 0.0
    height: list[float] = tree[:, 2].tolist()
    return (height[-groups] + height[1 - groups]) / 2 / height[-1] if height[-1] > 0 else 1.0


def labels_at(tree: Tensor, leaves: Tensor, leader: Tensor, gamma: float) -> Tensor:
    """Group of every client at γ̃. Leaf k of the tree is client `leaves[k]`. Client i joins the group of `leader[i]` (a
    leaf is its own leader) and has group -1 without a leader. At γ̃ = 1 all clients are together, leader or not."""
    if gamma >= 1:
        return torch.zeros_like(leader)
    group = torch.full_like(leader, -1)
    group[leaves] = cut(tree, gamma)
    placed = leader >= 0
    labels = group[leader.clamp(min=0)] if gamma > 0 else torch.arange(len(leader))
    out = torch.full_like(leader, -1)
    out[placed] = first_seen(labels[placed])
    return out


def first_seen(labels: Tensor) -> Tensor:
    """The same groups, numbered 0, 1, … in order of first appearance."""
    _, first, inverse = np.unique(labels.numpy(), return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return torch.from_numpy(rank[inverse.reshape(-1)])
