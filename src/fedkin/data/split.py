"""Train, validation and test examples of each client."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedkin.data.arrays import Arrays
from fedkin.data.partition import Ints, Partition


@dataclass(frozen=True)
class Split:
    """One client's examples, by index."""

    train: Ints
    validation: Ints
    test: Ints


def splits(
    arrays: Arrays,
    made: Partition,
    labels: Ints,
    names: tuple[str, ...],
    test: float,
    validation: float,
    samples_per_client: int | None,
    seed: int,
) -> tuple[Split, ...]:
    """Every client's split. `names` are the clients' names."""
    strata = labels
    if arrays.ordered and arrays.group is not None:  # time goes on within a group, not from one group to the next
        strata = arrays.group * max(1, arrays.classes) + labels
    rng = np.random.default_rng([seed, 0x5917])
    out = []
    for client, indices in enumerate(made.indices):
        if names is arrays.names:  # a named client's split is its own: a lone site splits as in a simulation
            rng = np.random.default_rng([seed, 0x5917, zlib.crc32(names[client].encode())])
        if arrays.ordered:
            indices = np.sort(indices)
        if samples_per_client is not None and len(indices) > samples_per_client:
            indices = _thinned(indices, strata, samples_per_client, rng, ordered=arrays.ordered)
        if len(indices) < 2:
            name = names[client].removeprefix("client ")
            raise ValueError(
                f"Client {name} has {len(indices)} examples; it needs one to learn from and one to test on: use fewer "
                "clients, or leave its examples out."
            )
        out.append(_split(indices, strata, test, validation, rng, ordered=arrays.ordered))
    return tuple(out)


def _thinned(indices: Ints, labels: Ints, count: int, rng: np.random.Generator, *, ordered: bool) -> Ints:
    if ordered:
        spaced: Ints = indices[np.linspace(0, len(indices) - 1, count).astype(int)]
        return spaced
    return _stratified(indices, labels, [count / len(indices)], rng)[0]


def _split(
    indices: Ints, labels: Ints, test: float, validation: float, rng: np.random.Generator, *, ordered: bool
) -> Split:
    if ordered:  # by time within each class, so that overlapping neighbors do not fall on both sides
        parts: list[list[Ints]] = [[], [], []]
        for label in np.unique(labels[indices]):
            own = indices[labels[indices] == label]
            cuts = np.round(np.cumsum([1 - test - validation, validation]) * len(own)).astype(int)
            for part, piece in zip(parts, np.split(own, cuts)):
                part.append(piece)
        cut = [np.concatenate(part) for part in parts]
    else:
        tested, held, train = _stratified(indices, labels, [test, validation], rng)
        cut = [train, held, tested]
    # one example to test on and one to learn from, however few there are; in time, what is tested comes later
    if not len(cut[2]):
        giver = 1 if len(cut[1]) else 0
        cut[giver], cut[2] = cut[giver][:-1], cut[giver][-1:]
    if not len(cut[0]):
        giver = 1 if len(cut[1]) else 2
        cut[0], cut[giver] = cut[giver][:1], cut[giver][1:]
    return Split(*(np.sort(c).astype(np.int64) for c in cut))


def _stratified(indices: Ints, labels: Ints, shares: list[float], rng: np.random.Generator) -> list[Ints]:
    """Parts of the given shares and the rest, each following the label distribution of `indices`.

    Examples are lined up so that every stretch holds labels in proportion; then the line is cut.
    """
    indices = rng.permutation(indices)
    y = labels[indices]
    rank = np.empty(len(indices))
    for label in np.unique(y):
        at = np.flatnonzero(y == label)
        rank[at] = (np.arange(len(at)) + rng.random()) / len(at)
    line: NDArray[np.int64] = indices[np.argsort(rank, kind="stable")]
    cuts = np.round(np.cumsum(shares) * len(indices)).astype(int)
    return [np.asarray(part) for part in np.split(line, cuts)]
