"""The clients of a setting: which examples each one trains, validates and tests on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from fedkin.data import DATASETS, svhn
from fedkin.data.arrays import Arrays
from fedkin.data.federation import Federation, Split, federate
from fedkin.data.files import data_dir
from fedkin.data.partition import PARTITIONS, Ints
from fedkin.experiments.declare import Setting

DRAWS = 100  # partitions to choose a level of heterogeneity from


@lru_cache(maxsize=2)
def arrays(data: str) -> Arrays:
    from fedkin.data import load

    return load(data)


def unavailable(setting: Setting) -> str:
    """Why a setting cannot be run here; empty if it can."""
    if setting.data not in DATASETS:
        return f"The data set {setting.data} is not known to this version."
    if setting.partition not in PARTITIONS:
        return f"The partition {setting.partition} is not known to this version."
    if setting.data == "svhn" and not svhn.at_hand():  # few have it, and a run of many items must not wait for it
        return (
            f"not run: SVHN is not at hand (it is not in {data_dir(None) / 'svhn'}, and reproduce does not download "
            "it; `fedkin run local --data svhn --rounds 1` does)"
        )
    try:
        arrays(setting.data)
    except FileNotFoundError as error:
        return str(error)
    return ""


def build(setting: Setting, seed: int) -> Federation:
    """The federation of a setting. Methods that run with the same seed get the same one."""
    source = arrays(setting.data)
    made = federate(
        source,
        partition=setting.partition,
        clients=setting.clients,
        seed=level_seed(setting, seed) if setting.level else seed,
        pool="all" if source.train is None or source.group is not None else "train",
        samples_per_client=setting.examples or None,
        test=setting.test,
        validation=setting.validation,
        **setting.partition_options,
    )
    if setting.train_examples or setting.official_test:
        made = replace(made, splits=tuple(_drawn(made, setting, seed)))
    extra = {k: v for k in ("train_examples", "official_test", "level") if (v := getattr(setting, k))}
    return replace(made, description={**made.description, "data": setting.data, **extra})


def _drawn(made: Federation, setting: Setting, seed: int) -> Iterator[Split]:
    """Each client's split, with training or test examples redrawn from its own label distribution."""
    source, rng = made.arrays, np.random.default_rng([seed, 0xD4A3])
    assert source.train is not None
    labels = source.y[: source.train]
    by_class = [np.flatnonzero(labels == c) for c in range(source.classes)]
    tests = [source.train + np.flatnonzero(source.y[source.train :] == c) for c in range(source.classes)]
    turns = made.partition.turns
    decks: dict[int, Ints] = {}
    for client, split in enumerate(made.splits):
        own = np.concatenate([split.train, split.validation, split.test])
        share = np.bincount(source.y[own], minlength=source.classes) / len(own)
        train, validation, test = split.train, split.validation, split.test
        if setting.train_examples and turns is not None:
            # all images in every rotation, dealt to the clients of that rotation
            turn = int(turns[client])
            deck = decks.setdefault(turn, rng.permutation(source.train))
            rank = int((turns[:client] == turn).sum())
            train = deck[rank * setting.train_examples : (rank + 1) * setting.train_examples]
            validation = train[:0]
        elif setting.train_examples:
            train, validation = _by_share(by_class, share, setting.train_examples, rng), train[:0]
        if setting.official_test:
            test = _by_share(tests, share, setting.official_test, rng)
            if not setting.train_examples:
                train = np.concatenate([split.train, split.test])  # nothing is held back from training
        yield Split(*(np.sort(part).astype(np.int64) for part in (train, validation, test)))


def _by_share(by_class: list[Ints], share: Any, count: int, rng: np.random.Generator) -> Ints:
    """`count` examples whose labels follow `share`, each at most once."""
    wanted = share * count
    each = np.floor(wanted).astype(int)
    for c in np.argsort(-(wanted - each), kind="stable")[: count - each.sum()]:
        each[c] += 1
    short = np.maximum(each - [len(found) for found in by_class], 0)
    if short.any():
        raise ValueError(f"A client wants {each.max()} examples of a class that has fewer: use fewer examples.")
    return np.concatenate([rng.choice(found, n, replace=False) for found, n in zip(by_class, each)])


def level_seed(setting: Setting, seed: int) -> int:
    """Of `DRAWS` partitions, one in the middle of the wanted third of the range of mean KLD."""
    options = tuple(sorted(setting.partition_options.items()))
    klds = draws(setting.data, setting.partition, options, setting.clients, seed)
    third = ("Low", "Mid", "High").index(setting.level)
    low, high = min(klds), max(klds)
    wanted = low + (high - low) * (third + 0.5) / 3
    return seed * DRAWS + min(range(len(klds)), key=lambda i: abs(klds[i] - wanted))


@lru_cache(maxsize=8)
def draws(data: str, partition: str, options: tuple[Any, ...], clients: int, seed: int) -> tuple[float, ...]:
    """Mean KLD of each of the partitions to choose from."""
    from fedkin.maths.divergence import mean_kld

    source = arrays(data)
    labels = source.y[: source.train]
    scheme = PARTITIONS[partition](**dict(options))
    return tuple(
        mean_kld(scheme(labels, clients, seed * DRAWS + draw).counts(labels, source.classes)) for draw in range(DRAWS)
    )


def by_kld(counts: Ints, *, share: float | None = None, count: int | None = None) -> tuple[int, ...]:
    """The group of each client, by an oracle that knows the labels (DC-PFL, fig. 2 and 3): average linkage on the
    pairwise KLD of label histograms [clients, classes], cut at a share of the tree's height (1: one group) or into
    `count` groups."""
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    from fedkin.maths.divergence import pairwise_kld

    tree = linkage(squareform(pairwise_kld(counts), checks=False), "average")
    if count is not None:
        labels = fcluster(tree, count, "maxclust")
    else:
        assert share is not None
        labels = fcluster(tree, share * tree[-1, 2], "distance")
    return tuple(int(label) - 1 for label in labels)
