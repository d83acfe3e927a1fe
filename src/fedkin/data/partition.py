"""Which client gets which examples. Every partition is a pure function of (labels, clients, seed)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fedkin.data.shift import Shift, draw

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Partition:
    indices: tuple[Ints, ...]
    """Examples of each client, by index; no example is given twice."""
    groups: Ints | None = None
    """The true hidden group of each client, in partitions that have them."""
    turns: Ints | None = None
    """Quarter turns by which each client's images are rotated."""
    shifts: tuple[Shift, ...] | None = None
    """How each client's images are changed in color, contrast, sharpness and noise."""
    edges: NDArray[np.bool_] | None = None
    """Which true groups are connected (they share a label)."""

    def counts(self, labels: Ints, classes: int) -> Ints:
        """How often each client has each label: [clients, classes]."""
        return np.stack([np.bincount(labels[own], minlength=classes) for own in self.indices]).astype(np.int64)


class Scheme(Protocol):
    summary: ClassVar[str]

    def __call__(self, labels: Ints, clients: int, seed: int, group: Ints | None = None) -> Partition: ...


def _rng(seed: int, tag: int) -> np.random.Generator:
    return np.random.default_rng([seed, 0x9A57, tag])


def _check(labels: Ints, clients: int, each: int = 1) -> None:
    if clients < 1:
        raise ValueError(f"clients={clients}: there must be at least one.")
    if len(labels) < clients * each:
        raise ValueError(
            f"{len(labels)} examples cannot give {clients} clients at least {each} each: use at most "
            f"{len(labels) // each} clients."
        )


def _split(indices: Ints, parts: int) -> list[Ints]:
    return [np.asarray(part, np.int64) for part in np.array_split(indices, parts)]


@dataclass(frozen=True)
class Iid:
    summary: ClassVar[str] = "examples spread evenly and at random"

    def __call__(self, labels: Ints, clients: int, seed: int, group: Ints | None = None) -> Partition:
        _check(labels, clients)
        return Partition(tuple(_split(_rng(seed, 1).permutation(len(labels)), clients)))


@dataclass(frozen=True)
class Shards:
    summary: ClassVar[str] = "examples sorted by label, cut into shards, a few shards for each client (McMahan et al.)"
    shards: int = 2
    """Shards for each client."""

    def __call__(self, labels: Ints, clients: int, seed: int, group: Ints | None = None) -> Partition:
        if self.shards < 1:
            raise ValueError(f"shards={self.shards}: each client needs at least one.")
        _check(labels, clients, self.shards)
        rng = _rng(seed, 2)
        order = rng.permutation(len(labels))
        order = order[np.argsort(labels[order], kind="stable")]
        pieces = _split(order, clients * self.shards)
        deal = rng.permutation(len(pieces)).reshape(clients, self.shards)
        return Partition(tuple(np.concatenate([pieces[p] for p in hand]) for hand in deal))


@dataclass(frozen=True)
class Pathological:
    summary: ClassVar[str] = "each client has examples of a few classes only"
    classes_per_client: int = 2
    """Classes that each client has."""

    def __call__(self, labels: Ints, clients: int, seed: int, group: Ints | None = None) -> Partition:
        k, classes = self.classes_per_client, np.unique(labels)
        if not 1 <= k <= len(classes):
            raise ValueError(f"classes_per_client={k}: the data has {len(classes)} classes; use 1 to {len(classes)}.")
        _check(labels, clients, k)
        rng = _rng(seed, 3)
        held = np.zeros((clients, len(classes)), bool)
        for client in range(clients):
            # the classes with the fewest holders so far, ties at random: balanced, and never a class twice
            order = np.lexsort((rng.random(len(classes)), held.sum(0)))
            held[client, order[:k]] = True
        hands: list[list[Ints]] = [[] for _ in range(clients)]
        for c, label in enumerate(classes):
            holders = np.flatnonzero(held[:, c])
            indices = rng.permutation(np.flatnonzero(labels == label))
            if len(indices) < len(holders):
                least = int(np.unique(labels, return_counts=True)[1].min())
                raise ValueError(
                    f"Class {label} has {len(indices)} examples for the {len(holders)} clients that hold it: use "
                    f"fewer clients (at most {least * len(classes) // k}) or fewer classes_per_client."
                )
            for client, part in zip(holders.tolist(), _split(indices, max(1, len(holders)))):
                hands[client].append(part)
        groups = np.unique(held, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
        return Partition(tuple(np.concatenate(hand) for hand in hands), groups=groups)


@dataclass(frozen=True)
class Dirichlet:
    summary: ClassVar[str] = "each class spread over clients by Dirichlet(alpha) shares; small alpha: very different"
    alpha: float = 0.5
    minimum: int = 10
    """Minimum number of examples per client; clients with fewer get some of those of the largest clients."""

    def __call__(self, labels: Ints, clients: int, seed: int, group: Ints | None = None) -> Partition:
        if not 0 < self.alpha < np.inf:
            raise ValueError(
                f"alpha={self.alpha} must be above 0 and finite (0.1: very different clients, 100: nearly iid)."
            )
        _check(labels, clients, max(1, self.minimum))
        rng = _rng(seed, 4)
        hands: list[list[Ints]] = [[] for _ in range(clients)]
        for label in np.unique(labels):
            indices = rng.permutation(np.flatnonzero(labels == label))
            share = rng.dirichlet(np.full(clients, self.alpha))
            if not np.isfinite(share).all():  # alpha is so small that every gamma draw underflowed: one client gets all
                share = np.eye(clients)[rng.integers(clients)]
            cuts = np.round(np.cumsum(share)[:-1] * len(indices)).astype(int)
            for hand, part in zip(hands, np.split(indices, cuts)):
                hand.append(part)
        return Partition(tuple(_topped_up([np.concatenate(h) for h in hands], max(1, self.minimum), rng)))


def _topped_up(hands: list[Ints], minimum: int, rng: np.random.Generator) -> list[Ints]:
    """Move examples at random from the largest client until nobody has fewer than `minimum`. This ends: every move
    fills a gap, and there are enough examples."""
    hands = [rng.permutation(hand) for hand in hands]
    sizes = np.array([len(hand) for hand in hands])
    for poor in range(len(hands)):
        while sizes[poor] < minimum:
            rich = int(np.argmax(sizes))
            take = min(minimum - sizes[poor], max(1, (sizes[rich] - minimum) // 2))
            hands[poor] = np.concatenate([hands[poor], hands[rich][:take]])
            hands[rich] = hands[rich][take:]
            sizes[[poor, rich]] += take, -take
    return hands


@dataclass(frozen=True)
class PrimarySecondary:
    summary: ClassVar[str] = "a random primary and secondary class for each client, the rest uniform (DC-PFL)"
    primary_low: float = 0.4
    primary_high: float = 0.6
    secondary_low: float = 0.2
    secondary_high: float = 0.4

    def __call__(self, labels: Ints, clients: int, seed: int, group: Ints | None = None) -> Partition:
        classes = np.unique(labels)
        if len(classes) < 3:
            raise ValueError(f"primary_secondary needs at least 3 classes; the data has {len(classes)}.")
        bounds = (self.primary_low, self.primary_high, self.secondary_low, self.secondary_high)
        if not (0 <= bounds[0] <= bounds[1] and 0 <= bounds[2] <= bounds[3] and bounds[1] + bounds[3] <= 1 + 1e-9):
            raise ValueError(
                f"primary in [{bounds[0]}, {bounds[1]}] and secondary in [{bounds[2]}, {bounds[3]}]: bounds must be "
                "ordered, and the two upper bounds must not add up to more than 1."
            )
        _check(labels, clients, len(classes))
        rng = _rng(seed, 5)
        share = np.zeros((clients, len(classes)))
        for row in share:
            primary, secondary = rng.choice(len(classes), 2, replace=False)
            p, s = rng.uniform(*bounds[:2]), rng.uniform(*bounds[2:])
            row[:] = (1 - p - s) / (len(classes) - 2)
            row[primary], row[secondary] = p, s
        have = np.array([(labels == c).sum() for c in classes])
        # equal sizes, as large as the most wanted class allows
        each = min(len(labels) // clients, int((have / np.maximum(share.sum(0), 1e-12)).min()))
        counts = np.stack([_rounded(row * each) for row in share])
        while (counts.sum(0) > have).any():
            each -= 1
            counts = np.stack([_rounded(row * each) for row in share])
        if each < 1:
            raise ValueError(
                f"{len(labels)} examples are too few for {clients} clients of equal size: use fewer clients."
            )
        hands: list[list[Ints]] = [[] for _ in range(clients)]
        for c, label in enumerate(classes):
            indices = rng.permutation(np.flatnonzero(labels == label))
            for hand, part in zip(hands, np.split(indices, np.cumsum(counts[:, c]))):
                hand.append(part)
        return Partition(tuple(np.concatenate(h) for h in hands))


def _rounded(values: NDArray[np.float64]) -> Ints:
    """Round to whole numbers with the same (rounded) sum; the largest remainders are rounded up."""
    down = np.floor(values).astype(np.int64)
    missing = int(np.floor(values.sum() + 0.5)) - int(down.sum())
    down[np.argsort(-(values - down), kind="stable")[:missing]] += 1
    return down


@dataclass(frozen=True)
class Rotated:
    summary: ClassVar[str] = (
        "iid examples; images turned by 0, 90, 180 or 270 degrees: four hidden groups (IFCA, PFLIC)"
    )

    def __call__(self, labels: Ints, clients: int, seed: int, group: Ints | None = None) -> Partition:
        _check(labels, clients)
        turns = np.arange(clients, dtype=np.int64) % 4
        return Partition(tuple(_split(_rng(seed, 6).permutation(len(labels)), clients)), groups=turns, turns=turns)


TOPOLOGIES: dict[int, tuple[tuple[int, ...], ...]] = {
    3: ((0, 1, 2), (2, 3, 4), (4, 5, 6)),
    4: ((0, 1, 2), (2, 3, 4), (4, 5, 6), (6, 7, 0)),
    5: ((0, 1, 2), (2, 3, 4), (4, 5, 6), (6, 7, 8), (8, 9, 0)),
}


@dataclass(frozen=True)
class Topology:
    summary: ClassVar[str] = (
        "groups of clients with three classes each; neighbors in a chain or ring share one (FedCEDAR)"
    )
    nodes: int = 3
    """3 (a chain), 4 or 5 (rings)."""

    def __call__(self, labels: Ints, clients: int, seed: int, group: Ints | None = None) -> Partition:
        if self.nodes not in TOPOLOGIES:
            raise ValueError(f"nodes={self.nodes}: there are topologies of 3, 4 and 5 nodes.")
        sets = TOPOLOGIES[self.nodes]
        needed = max(max(s) for s in sets) + 1
        if int(labels.max()) + 1 < needed:
            raise ValueError(f"{self.nodes} nodes need labels 0..{needed - 1}; the data has 0..{int(labels.max())}.")
        if clients < self.nodes:
            raise ValueError(f"{clients} clients cannot fill {self.nodes} nodes: use at least {self.nodes}.")
        rng = _rng(seed, 7)
        groups = np.arange(clients, dtype=np.int64) % self.nodes
        hands: list[list[Ints]] = [[] for _ in range(clients)]
        for label in range(needed):
            holders = np.flatnonzero([label in sets[g] for g in groups])
            indices = rng.permutation(np.flatnonzero(labels == label))
            if len(indices) < len(holders):
                most = self.nodes * min((labels == c).sum() // sum(c in s for s in sets) for c in range(needed))
                raise ValueError(
                    f"Label {label} has {len(indices)} examples for {len(holders)} clients: "
                    + (f"use at most {most} clients." if most else "use another partition.")
                )
            for client, part in zip(holders, _split(indices, len(holders))):
                hands[client].append(part)
        edges = np.array([[bool(set(a) & set(b)) and a != b for b in sets] for a in sets])
        return Partition(tuple(np.concatenate(h) for h in hands), groups=groups, edges=edges)


@dataclass(frozen=True)
class ByGroup:
    summary: ClassVar[str] = "natural: each client has the examples of one group (a person, a hospital, a hidden group)"

    def __call__(self, labels: Ints, clients: int, seed: int, group: Ints | None = None) -> Partition:
        if group is None:
            raise ValueError(
                "by_group needs data with natural groups: har, heart, synthetic, or your own with client=… "
                "For this data use iid, dirichlet, pathological or another partition."
            )
        found = np.unique(group)
        if clients < len(found) or clients % len(found):
            raise ValueError(
                f"The data has {len(found)} groups; {clients} clients cannot share them evenly: use "
                f"clients={len(found)}, or a multiple of it (each group is then cut into parts)."
            )
        parts = clients // len(found)
        indices: list[Ints] = []
        for value in found:
            own = np.flatnonzero(group == value).astype(np.int64)
            if len(own) < parts:
                raise ValueError(
                    f"Group {value} has {len(own)} examples for {parts} clients: use clients={len(found)}."
                )
            indices += _split(own, parts)  # in order: examples of a group may be ordered in time
        groups = np.repeat(np.arange(len(found), dtype=np.int64), parts)
        # With one client per group there are no hidden groups to find.
        return Partition(tuple(indices), groups=groups if parts > 1 else None)


@dataclass(frozen=True)
class QuantitySkew:
    summary: ClassVar[str] = "iid labels, very different sizes, by Dirichlet(alpha) shares of the examples"
    alpha: float = 0.5
    minimum: int = 10

    def __call__(self, labels: Ints, clients: int, seed: int, group: Ints | None = None) -> Partition:
        if not 0 < self.alpha < np.inf:
            raise ValueError(f"alpha={self.alpha} must be above 0 and finite (small: very different sizes).")
        _check(labels, clients, max(1, self.minimum))
        rng = _rng(seed, 8)
        order = rng.permutation(len(labels))
        share = rng.dirichlet(np.full(clients, self.alpha))
        if not np.isfinite(share).all():
            share = np.eye(clients)[0]
        cuts = np.round(np.cumsum(share)[:-1] * len(order)).astype(int)
        return Partition(tuple(_topped_up([np.asarray(p) for p in np.split(order, cuts)], max(1, self.minimum), rng)))


@dataclass(frozen=True)
class FeatureShift:
    summary: ClassVar[str] = "each client's images with a color, contrast, blur and noise of its own; labels iid"
    labels: Literal["iid", "dirichlet"] = "iid"
    """How labels are spread: evenly, or by Dirichlet(alpha) shares."""
    alpha: float = 0.5
    """For labels=dirichlet: small values make the clients' labels very different."""
    strength: float = 1.0
    """Multiplies all changes; 0 changes nothing."""

    def __call__(self, labels: Ints, clients: int, seed: int, group: Ints | None = None) -> Partition:
        if not 0 <= self.strength < np.inf:
            raise ValueError(f"strength={self.strength} must be at least 0 and finite (1: clearly visible).")
        if self.labels not in ("iid", "dirichlet"):
            raise ValueError(f"labels='{self.labels}' must be 'iid' or 'dirichlet'.")
        spread = Iid() if self.labels == "iid" else Dirichlet(self.alpha)
        made = spread(labels, clients, seed)
        return replace(made, shifts=tuple(draw(seed, client, self.strength) for client in range(clients)))


BY_LABEL = frozenset(("shards", "pathological", "dirichlet", "primary_secondary", "topology"))
"""Partitions that spread classes: there are none in a regression."""

PARTITIONS: dict[str, type[Scheme]] = {
    "iid": Iid,
    "shards": Shards,
    "pathological": Pathological,
    "dirichlet": Dirichlet,
    "primary_secondary": PrimarySecondary,
    "rotated": Rotated,
    "topology": Topology,
    "by_group": ByGroup,
    "quantity": QuantitySkew,
    "feature_shift": FeatureShift,
}
