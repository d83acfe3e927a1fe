"""Gaussian classes in hidden groups: the same classes have different means in different groups."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedkin.data.arrays import Arrays


def load(
    folder: str | Path | None = None,
    *,
    samples: int = 8000,
    groups: int = 4,
    features: int = 32,
    classes: int = 10,
    separation: float = 3.0,
    shared: float = 0.3,
    seed: int = 0,
) -> Arrays:
    """`shared` is the fraction of a class's mean that all groups have in common: 1 makes all groups the same."""
    if min(groups, features, classes) < 1:
        raise ValueError(f"groups={groups}, features={features} and classes={classes} must each be at least 1.")
    if samples < groups * classes:
        raise ValueError(
            f"samples={samples} are too few for one of each of {classes} classes in each of {groups} groups: use at "
            f"least {groups * classes}."
        )
    if not 0 <= shared <= 1:
        raise ValueError(f"shared={shared} must lie in [0, 1].")
    rng = np.random.default_rng([seed, 0xDA7A])
    common = rng.normal(size=(1, classes, features))
    special = rng.normal(size=(groups, classes, features))
    means = np.sqrt(shared) * common + np.sqrt(1 - shared) * special
    means *= separation / np.sqrt(features)
    group = np.arange(samples) % groups
    y = (np.arange(samples) // groups) % classes
    x = (means[group, y] + rng.normal(size=(samples, features))).astype(np.float32)
    order = rng.permutation(samples)
    return Arrays(x[order], y[order].astype(np.int64), classes=classes, group=group[order].astype(np.int64))
