"""`Federation`: arrays and row numbers become clients with train, validation and test rows."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkin.data import Arrays
from fedkin.data import load as load_data
from fedkin.data.partition import PARTITIONS, Ints, Partition
from fedkin.maths.divergence import mean_kld
from fedkin.protocol import Data, Examples


@dataclass(frozen=True)
class Split:
    """One client's row numbers."""

    train: Ints
    validation: Ints
    test: Ints


class Population(Protocol):
    """Clients as a run sees them, wherever their rows are."""

    @property
    def description(self) -> dict[str, Any]: ...
    @property
    def classes(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def groups(self) -> Ints | None: ...
    @property
    def sizes(self) -> Tensor: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def example(self) -> Tensor: ...
    def __len__(self) -> int: ...
    def data(self, client: int, *, with_test: bool = False) -> Data: ...
    def test(self, client: int) -> Examples: ...
    def fingerprint(self) -> str: ...
    def facts(self) -> Iterator[tuple[int | None, str, Any]]: ...


@dataclass(frozen=True)
class Federation:
    """Clients and their rows. `description` says how it was made, so that a run can be repeated from its file."""

    arrays: Arrays
    partition: Partition
    splits: tuple[Split, ...]
    description: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.splits)

    @property
    def classes(self) -> int:
        return self.arrays.classes

    @property
    def shape(self) -> tuple[int, ...]:
        return self.arrays.shape

    @property
    def groups(self) -> Ints | None:
        return self.partition.groups

    @cached_property
    def sizes(self) -> Tensor:
        """Training rows of each client."""
        return torch.tensor([len(s.train) for s in self.splits])

    @cached_property
    def counts(self) -> Ints:
        """Labels of each client's training rows: [clients, classes]."""
        rows = tuple(s.train for s in self.splits)
        return replace(self.partition, rows=rows).counts(self.arrays.y, self.classes)

    @cached_property
    def mean_kld(self) -> float:
        return mean_kld(self.counts)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The user's own names of the clients where there are any."""
        names = self.arrays.names
        if self.description.get("partition") == "by_group" and len(names) == len(self):
            return names
        return tuple(f"client {i}" for i in range(len(self)))

    def rows(self, client: int, numbers: Ints) -> Examples:
        """These rows of a client as the network takes them."""
        x = torch.from_numpy(self.arrays.x[numbers])
        y = torch.from_numpy(self.arrays.y[numbers])
        # images are channels_last in memory, which is the fast way on a CPU
        if not self.arrays.image:
            x = x.float()
            return Examples(x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x, y)
        if self.partition.turns is not None:
            x = torch.rot90(x, int(self.partition.turns[client]), (1, 2)).contiguous()
        x = (x.float() - self._mean).div_(self._std)
        return Examples(x.permute(0, 3, 1, 2), y)

    @cached_property
    def _mean(self) -> Tensor:
        return torch.tensor(self.arrays.mean)

    @cached_property
    def _std(self) -> Tensor:
        return torch.tensor(self.arrays.std)

    def data(self, client: int, *, with_test: bool = False) -> Data:
        split = self.splits[client]
        return Data(
            lambda: self.rows(client, split.train),
            lambda: self.rows(client, split.validation),
            self.classes,
            (lambda: self.rows(client, split.test)) if with_test else None,
        )

    def test(self, client: int) -> Examples:
        """Only for the scorer."""
        return self.rows(client, self.splits[client].test)

    @property
    def example(self) -> Tensor:
        """One row, to build a network for."""
        return self.rows(0, self.splits[0].train[:1]).x

    def fingerprint(self) -> str:
        """Of who has which rows with which labels: tells own data apart, and data sets that changed on disk."""
        digest = hashlib.blake2b(digest_size=8)
        digest.update(np.ascontiguousarray(self.arrays.y).tobytes())
        digest.update(np.ascontiguousarray(self.arrays.x).data)
        for split in self.splits:
            for part in (split.train, split.validation, split.test):
                digest.update(part.tobytes() + b"|")
        return digest.hexdigest()

    def facts(self) -> Iterator[tuple[int | None, str, Any]]:
        """For the history: client (None: all of them), metric, value."""
        yield None, "mean_kld", self.mean_kld
        if self.partition.edges is not None:
            yield None, "true_edges", self.partition.edges.tolist()
        for client, split in enumerate(self.splits):
            yield client, "train_rows", len(split.train)
            yield client, "validation_rows", len(split.validation)
            yield client, "test_rows", len(split.test)
            yield client, "labels", self.counts[client].tolist()
            if self.groups is not None:
                yield client, "group", int(self.groups[client])
            if self.names[client] != f"client {client}":
                yield client, "name", self.names[client]


def federate(
    data: str | Arrays = "digits",
    *,
    partition: str = "dirichlet",
    clients: int | None = None,
    seed: int = 0,
    test: float = 0.2,
    validation: float = 0.1,
    pool: str = "all",
    samples_per_client: int | None = None,
    data_dir: str | Path | None = None,
    data_options: dict[str, Any] | None = None,
    **options: Any,
) -> Federation:
    """Load data, spread it over clients, and split each client's rows.

    Test rows follow the client's own label distribution, because they are a stratified part of its own rows; rows
    that are ordered in time are cut in time. `pool`: spread "all" official rows, or only the "train" part.
    `options` are the partition's own, such as alpha.
    """
    arrays = load_data(data, data_dir, **(data_options or {})) if isinstance(data, str) else data
    if partition not in PARTITIONS:
        near = difflib.get_close_matches(partition, PARTITIONS, n=2)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise ValueError(f"There is no partition '{partition}'.{hint} Known: {', '.join(PARTITIONS)}.")
    if pool not in ("all", "train"):
        raise ValueError(f"pool='{pool}' must be 'all' (both official parts) or 'train'.")
    if not (0 < test < 1 and 0 <= validation < 1 and test + validation < 1):
        raise ValueError(
            f"test={test} and validation={validation} are shares of a client's rows: test above 0, sum below 1."
        )
    if samples_per_client is not None and samples_per_client < 2:
        raise ValueError(f"samples_per_client={samples_per_client}: a client needs at least 2 rows.")
    if seed < 0:
        raise ValueError(f"seed={seed} must be at least 0.")
    if pool == "train" and arrays.train is None:
        raise ValueError("This data has no official training part: take pool='all'.")
    try:
        scheme = PARTITIONS[partition](**options)
    except TypeError:
        known = [f for f in getattr(PARTITIONS[partition], "__dataclass_fields__", {}) if f != "summary"]
        raise ValueError(
            f"{partition} takes {', '.join(known) or 'no options'}; given: {', '.join(options)}."
        ) from None
    if partition == "rotated" and not (arrays.image and arrays.x.shape[1] == arrays.x.shape[2]):
        raise ValueError(
            "rotated turns square images; this data has none: take synthetic's by_group for hidden groups."
        )
    usable = slice(arrays.train if pool == "train" else None)
    group = arrays.group[usable] if arrays.group is not None else None
    if clients is None:
        clients = len(np.unique(group)) if partition == "by_group" and group is not None else 20
    made = scheme(arrays.y[usable], clients, seed, group)
    rng = np.random.default_rng([seed, 0x5917])
    strata = arrays.y
    if arrays.ordered and arrays.group is not None:  # time goes on within a group, not from one group to the next
        strata = arrays.group * arrays.classes + arrays.y
    splits = []
    for client, rows in enumerate(made.rows):
        if arrays.ordered:
            rows = np.sort(rows)
        if samples_per_client is not None and len(rows) > samples_per_client:
            rows = _thinned(rows, strata, samples_per_client, rng, ordered=arrays.ordered)
        if len(rows) < 2:
            raise ValueError(
                f"Client {client} has {len(rows)} rows; it needs one to learn from and one to test on: take fewer "
                "clients, or leave its rows out."
            )
        splits.append(_split(rows, strata, test, validation, rng, ordered=arrays.ordered))
    description = {
        "data": data if isinstance(data, str) else "own",
        "data_options": dict(data_options or {}),
        "partition": partition,
        "partition_options": dict(options),
        "clients": clients,
        "seed": seed,
        "test": test,
        "validation": validation,
        "pool": pool,
        "samples_per_client": samples_per_client,
    }
    return Federation(arrays, made, tuple(splits), description)


def _thinned(rows: Ints, labels: Ints, count: int, rng: np.random.Generator, *, ordered: bool) -> Ints:
    if ordered:
        spaced: Ints = rows[np.linspace(0, len(rows) - 1, count).astype(int)]
        return spaced
    return _stratified(rows, labels, [count / len(rows)], rng)[0]


def _split(
    rows: Ints, labels: Ints, test: float, validation: float, rng: np.random.Generator, *, ordered: bool
) -> Split:
    if ordered:  # by time within each class, so that overlapping neighbors do not fall on both sides
        parts: list[list[Ints]] = [[], [], []]
        for label in np.unique(labels[rows]):
            own = rows[labels[rows] == label]
            cuts = np.round(np.cumsum([1 - test - validation, validation]) * len(own)).astype(int)
            for part, piece in zip(parts, np.split(own, cuts)):
                part.append(piece)
        cut = [np.concatenate(part) for part in parts]
    else:
        tested, held, train = _stratified(rows, labels, [test, validation], rng)
        cut = [train, held, tested]
    # one row to test on and one to learn from, however few there are; in time, what is tested comes later
    if not len(cut[2]):
        giver = 1 if len(cut[1]) else 0
        cut[giver], cut[2] = cut[giver][:-1], cut[giver][-1:]
    if not len(cut[0]):
        giver = 1 if len(cut[1]) else 2
        cut[0], cut[giver] = cut[giver][:1], cut[giver][1:]
    return Split(*(np.sort(c).astype(np.int64) for c in cut))


def _stratified(rows: Ints, labels: Ints, shares: list[float], rng: np.random.Generator) -> list[Ints]:
    """Parts of the given shares and the rest, each following the label distribution of `rows`.

    Rows are laid out so that every stretch holds labels in proportion; then the layout is cut.
    """
    rows = rng.permutation(rows)
    y = labels[rows]
    place = np.empty(len(rows))
    for label in np.unique(y):
        at = np.flatnonzero(y == label)
        place[at] = (np.arange(len(at)) + rng.random()) / len(at)
    laid: NDArray[np.int64] = rows[np.argsort(place, kind="stable")]
    cuts = np.round(np.cumsum(shares) * len(rows)).astype(int)
    return [np.asarray(part) for part in np.split(laid, cuts)]
