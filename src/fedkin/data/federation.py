"""`Federation`: arrays become clients, each with training, validation and test examples."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedkin.data import Arrays, default_partition
from fedkin.data import load as load_data
from fedkin.data.partition import BY_LABEL, PARTITIONS, Ints, Partition
from fedkin.data.preprocess import Fit, Preprocessing, fitted, shared, statistics, target_statistics
from fedkin.data.shift import shifted
from fedkin.data.split import Split as Split
from fedkin.data.split import splits as split_all
from fedkin.maths.divergence import mean_kld
from fedkin.protocol import Data, Examples
from fedkin.registry import hint


class Population(Protocol):
    """Clients as a run sees them, wherever their examples are."""

    @property
    def description(self) -> dict[str, Any]: ...
    @property
    def classes(self) -> int: ...
    @property
    def outputs(self) -> int: ...
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
    """Clients and their examples. `description` says how they were made, so that a run can be repeated from its
    file."""

    arrays: Arrays
    partition: Partition
    splits: tuple[Split, ...]
    description: dict[str, Any] = field(default_factory=dict)
    preprocessing: Preprocessing | None = None
    """How a table became numbers; None if the data was numbers from the start."""

    def __len__(self) -> int:
        return len(self.splits)

    @property
    def classes(self) -> int:
        return self.arrays.classes

    @property
    def outputs(self) -> int:
        """Number of outputs of a network for this data: its classes, or the numbers that a regression predicts."""
        return self.arrays.outputs

    @property
    def shape(self) -> tuple[int, ...]:
        return self.arrays.shape

    @property
    def groups(self) -> Ints | None:
        return self.partition.groups

    @cached_property
    def sizes(self) -> Tensor:
        """Training examples of each client."""
        return torch.tensor([len(s.train) for s in self.splits])

    @cached_property
    def counts(self) -> Ints:
        """Labels of each client's training examples: [clients, classes]."""
        trained = replace(self.partition, indices=tuple(s.train for s in self.splits))
        return trained.counts(self.arrays.y, self.classes)

    @cached_property
    def mean_kld(self) -> float | None:
        """How different the clients' labels are; None in a regression."""
        return mean_kld(self.counts) if self.classes else None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The clients' names: the user's own, or client 0, client 1, …"""
        return _names(self.arrays, self.description.get("partition"), len(self))

    @property
    def schema(self) -> tuple[str, ...]:
        """What must be the same at all sites of a table: features in their order, names of classes or of several
        targets."""
        if self.preprocessing is None:
            return ()
        targets = self.preprocessing.reading.labels
        classes = self.preprocessing.classes or (targets if len(targets) > 1 else ())
        numbered = classes == tuple(map(str, range(len(classes))))
        return (*self.preprocessing.feature_names, *(() if numbered else (f"label={name}" for name in classes)))

    def examples(self, client: int, indices: Ints) -> Examples:
        """These examples of a client as the network takes them."""
        x = torch.from_numpy(self.arrays.x[indices])
        y = torch.from_numpy(self.arrays.y[indices])
        if not self.arrays.image:
            x = x if x.dtype == torch.int64 else x.float()
            return Examples(_channels_last(x) if x.dim() == 4 else x, y)
        if self.partition.turns is not None:
            x = torch.rot90(x, int(self.partition.turns[client]), (1, 2)).contiguous()
        x = x.float()
        x.flatten(1).sub_(self._mean).div_(self._std)
        return Examples(x.permute(0, 3, 1, 2), y)

    @cached_property
    def _mean(self) -> Tensor:
        """Of each number of an image: broadcasting three channels takes ten times as long."""
        return torch.tensor(self.arrays.mean).expand(self.arrays.x.shape[1:]).flatten()

    @cached_property
    def _std(self) -> Tensor:
        return torch.tensor(self.arrays.std).expand(self.arrays.x.shape[1:]).flatten()

    def data(self, client: int, *, with_test: bool = False) -> Data:
        split = self.splits[client]
        return Data(
            lambda: self.examples(client, split.train),
            lambda: self.examples(client, split.validation) if len(split.validation) else self._no_examples,
            self.classes,
            (lambda: self.examples(client, split.test)) if with_test else None,
        )

    @cached_property
    def _no_examples(self) -> Examples:
        return self.examples(0, self.splits[0].train[:0])

    def test(self, client: int) -> Examples:
        """A client's test examples. Methods never see them; only the scorer does."""
        return self.examples(client, self.splits[client].test)

    @property
    def example(self) -> Tensor:
        """One example, to build a network for."""
        return self.examples(0, self.splits[0].train[:1]).x

    def __repr__(self) -> str:
        about = self.description
        return f"<Federation of {len(self)} clients: data {about.get('data')}, partition {about.get('partition')}>"

    def _repr_html_(self) -> str:
        """For notebooks."""
        from fedkin.report import notebook

        return notebook.federation(self)

    def fingerprint(self) -> str:
        """A hash of all examples, labels and splits: it tells own data apart, and data sets that changed on disk."""
        digest = hashlib.blake2b(digest_size=8)
        digest.update(np.ascontiguousarray(self.arrays.y).tobytes())
        digest.update(np.ascontiguousarray(self.arrays.x).data)
        for split in self.splits:
            for part in (split.train, split.validation, split.test):
                digest.update(part.tobytes() + b"|")
        return digest.hexdigest()

    def facts(self) -> Iterator[tuple[int | None, str, Any]]:
        """For the history: client (None: all of them), metric, value."""
        if self.mean_kld is not None:
            yield None, "mean_kld", self.mean_kld
        if self.partition.edges is not None:
            yield None, "true_edges", self.partition.edges.tolist()
        for client, split in enumerate(self.splits):
            yield client, "train_examples", len(split.train)
            yield client, "validation_examples", len(split.validation)
            yield client, "test_examples", len(split.test)
            if self.classes:
                yield client, "labels", self.counts[client].tolist()
                yield client, "majority_rate", self.majority_rate(client)
            if self.groups is not None:
                yield client, "group", int(self.groups[client])
            if self.partition.shifts is not None:
                shift = self.partition.shifts[client]._asdict()
                yield client, "feature_shift", {k: v for k, v in shift.items() if k != "seed"}
            if self.names[client] != f"client {client}":
                yield client, "name", self.names[client]

    def majority_rate(self, client: int) -> float:
        """Accuracy on the client's test examples of always predicting the most frequent class of its training
        examples: what a model must beat to have learned anything."""
        most = int(self.counts[client].argmax())
        return float((self.arrays.y[self.splits[client].test] == most).mean())


def _channels_last(images: Tensor) -> Tensor:
    """Channels innermost in memory, which is the fast layout on a CPU. `contiguous` leaves gray images alone, because
    both layouts are one for them; but convolutions choose their kernel by the strides."""
    out = torch.empty(images.shape, dtype=images.dtype, memory_format=torch.channels_last)
    return out.copy_(images)


def _names(arrays: Arrays, partition: str | None, clients: int) -> tuple[str, ...]:
    if partition == "by_group" and len(arrays.names) == clients:
        return arrays.names
    return tuple(f"client {i}" for i in range(clients))


def federate(
    data: str | Arrays = "digits",
    *,
    partition: str | None = None,
    clients: int | None = None,
    seed: int = 0,
    test: float = 0.2,
    validation: float = 0.1,
    pool: str = "all",
    samples_per_client: int | None = None,
    data_dir: str | Path | None = None,
    data_options: dict[str, Any] | None = None,
    fit: Fit = "each",
    preprocessing: Preprocessing | Mapping[str, Any] | None = None,
    **options: Any,
) -> Federation:
    """Load data, spread it over clients, and split each client's examples.

    Without a `partition`, named groups of the data (hospitals, persons, the files of a folder) are the clients; data
    without them is spread by dirichlet. Test examples follow the client's own label distribution, because they are a
    stratified part of its own examples; examples that are ordered in time are cut in time. `pool`: spread "all"
    official examples, or only the "train" part. `fit`: number columns of a table are scaled by "each" client's own
    training examples, or by those of all "sites"; `preprocessing` is applied instead of fitting one. `options` are the
    partition's own, such as alpha.
    """
    arrays = load_data(data, data_dir, **(data_options or {})) if isinstance(data, str) else data
    asked, partition = partition, partition or default_partition(arrays)
    if partition not in PARTITIONS:
        near = hint(partition, PARTITIONS)
        raise ValueError(f"There is no partition '{partition}'.{near} Known: {', '.join(PARTITIONS)}.")
    if pool not in ("all", "train"):
        raise ValueError(f"pool='{pool}' must be 'all' (both official parts) or 'train'.")
    if not (0 < test < 1 and 0 <= validation < 1 and test + validation < 1):
        raise ValueError(
            f"test={test} and validation={validation} are fractions of a client's examples: test above 0, sum below 1."
        )
    if samples_per_client is not None and samples_per_client < 2:
        raise ValueError(f"samples_per_client={samples_per_client}: a client needs at least 2 examples.")
    if seed < 0:
        raise ValueError(f"seed={seed} must be at least 0.")
    if pool == "train" and arrays.train is None:
        raise ValueError("This data has no official training part: use pool='all'.")
    try:
        scheme = PARTITIONS[partition](**options)
    except TypeError:
        known = [f for f in getattr(PARTITIONS[partition], "__dataclass_fields__", {}) if f != "summary"]
        raise ValueError(
            f"{partition} takes {', '.join(known) or 'no options'}; given: {', '.join(options)}."
        ) from None
    _check_partition(arrays, partition, asked, clients, options)
    usable = slice(arrays.train if pool == "train" else None)
    group = arrays.group[usable] if arrays.group is not None else None
    if clients is None:
        clients = len(np.unique(group)) if partition == "by_group" and group is not None else 20
    labels = _labels(arrays)
    made = scheme(labels[usable], clients, seed, group)
    names = _names(arrays, partition, clients)
    splits = split_all(arrays, made, labels, names, test, validation, samples_per_client, seed)
    description = {
        "data": data if isinstance(data, str) else "own",
        "data_options": dict(data_options or ({} if isinstance(data, str) else arrays.source)),
        "partition": partition,
        "partition_options": dict(options),
        "clients": clients,
        "seed": seed,
        "test": test,
        "validation": validation,
        "pool": pool,
        "samples_per_client": samples_per_client,
    }
    prepared = None
    if arrays.columns:
        prepared = _preprocessing(arrays, splits, names, fit, preprocessing)
        arrays = _transformed(arrays, splits, names, prepared)
        description |= {"fit": prepared.fit, "preprocessing": prepared.to_json()}
    elif preprocessing is not None:
        raise ValueError("This data is not a table: there is nothing to apply the preprocessing to.")
    if made.shifts is not None:
        arrays = _shifted(arrays, made, splits)
    return Federation(arrays, made, splits, description, prepared)


def site_statistics(
    arrays: Arrays, *, fit: Fit = "each", seed: int = 0, test: float = 0.2, validation: float = 0.1
) -> dict[str, Any]:
    """What a site shares so that `preprocess.agreed` can make the preprocessing of all sites: statistics
    of its training examples. Pass the result to `federate(arrays, preprocessing=…)` at the site."""
    if not arrays.columns or len(arrays.names) != 1:
        raise ValueError("Only a site's own table has statistics to share: read it with from_file.")
    everything = Partition((np.arange(len(arrays.y)),))
    (split,) = split_all(arrays, everything, _labels(arrays), arrays.names, test, validation, None, seed)
    measured = statistics(arrays.x[split.train], arrays.columns)
    targets = [] if arrays.classes else target_statistics(arrays.y[split.train], arrays.reading.labels, arrays.task)
    return shared(arrays.columns, measured, fit, classes=arrays.class_names, task=arrays.task, targets=targets)


def _labels(arrays: Arrays) -> Ints:
    """Labels to spread and to split by: all the same in a regression."""
    return arrays.y if arrays.classes else np.zeros(len(arrays.y), np.int64)


def _check_partition(
    arrays: Arrays, partition: str, asked: str | None, clients: int | None, options: Mapping[str, Any]
) -> None:
    if arrays.own_clients and asked not in (None, "by_group"):
        raise ValueError(
            f"This data names the client of each example ({_some(arrays.names)}); partition='{asked}' would spread the "
            "examples over other clients. Leave the partition out to keep the clients, or load the data without them."
        )
    if partition == "by_group" and arrays.names and clients not in (None, len(arrays.names)):
        raise ValueError(
            f"clients={clients}: the data has {len(arrays.names)} clients ({_some(arrays.names)}). Leave clients out."
        )
    images = arrays.x.ndim == 4
    if partition == "rotated" and not (arrays.image and arrays.x.shape[1] == arrays.x.shape[2]):
        raise ValueError(
            "rotated turns square images; this data has none. For hidden groups, use synthetic with by_group."
        )
    if partition == "feature_shift" and not images:
        raise ValueError("feature_shift changes images; this data has none: use iid, dirichlet or quantity.")
    by_label = partition in BY_LABEL or (partition == "feature_shift" and options.get("labels") == "dirichlet")
    if not arrays.classes and by_label:
        raise ValueError(f"{partition} spreads classes; a regression has none: use iid, quantity or by_group.")


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


# ---- tables and images, after the split
def _preprocessing(
    arrays: Arrays,
    splits: tuple[Split, ...],
    names: tuple[str, ...],
    fit: Fit,
    given: Preprocessing | Mapping[str, Any] | None,
) -> Preprocessing:
    if given is None:
        measured = {name: statistics(arrays.x[split.train], arrays.columns) for name, split in zip(names, splits)}
        about: Any = {"reading": arrays.reading, "classes": arrays.class_names, "task": arrays.task}
        return fitted(arrays.columns, measured, fit, **about, one_of_several=arrays.one_of_several)
    made = given if isinstance(given, Preprocessing) else Preprocessing.from_json(given)
    table = made.recoded(arrays.x, arrays.columns)
    for name, split in zip(names, splits):  # if each client has its own scales, newcomers bring theirs
        made = made if name in made.scales else made.with_scales(name, table[split.train])
    return made


def _transformed(
    arrays: Arrays, splits: tuple[Split, ...], names: tuple[str, ...], preprocessing: Preprocessing
) -> Arrays:
    table = preprocessing.recoded(arrays.x, arrays.columns)
    x = np.zeros((len(table), len(preprocessing.feature_names)), np.float32)
    for name, split in zip(names, splits):
        own = np.concatenate([split.train, split.validation, split.test])
        x[own] = preprocessing.features(table[own], name)
    if not arrays.classes or arrays.class_names == preprocessing.classes:
        return replace(arrays, x=x, columns=())
    if unknown := set(arrays.class_names) - set(preprocessing.classes):
        raise ValueError(f"The data has {len(unknown)} classes that the given preprocessing does not know.")
    index = np.array([preprocessing.classes.index(name) for name in arrays.class_names])
    classes = preprocessing.classes
    return replace(arrays, x=x, y=index[arrays.y], classes=len(classes), class_names=classes, columns=())


def _shifted(arrays: Arrays, made: Partition, splits: tuple[Split, ...]) -> Arrays:
    assert made.shifts is not None
    images = arrays.x if arrays.image else arrays.x.transpose(0, 2, 3, 1)
    if arrays.image:
        mean, std = np.array(arrays.mean), np.array(arrays.std)
    else:
        mean, std = images.mean((0, 1, 2), dtype=np.float64), images.std((0, 1, 2), dtype=np.float64)
    bounds = (float(images.min()), float(images.max()))
    x = images.copy()
    for shift, split in zip(made.shifts, splits):
        own = np.sort(np.concatenate([split.train, split.validation, split.test]))
        x[own] = shifted(images[own], shift, mean=mean, std=std, bounds=bounds)
    return replace(arrays, x=x if arrays.image else np.ascontiguousarray(x.transpose(0, 3, 1, 2)))
