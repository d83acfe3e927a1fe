"""Data sets by name, and the user's own data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedkin.data.arrays import Arrays
from fedkin.data.datasets import from_dataset
from fedkin.data.own import from_arrays, from_file, from_folder, from_frame
from fedkin.registry import Entry, lookup

DATASETS: dict[str, Entry] = {
    "digits": Entry("fedkin.data.digits:load", "1,797 digits of 8x8, 10 classes; part of scikit-learn, no download"),
    "synthetic": Entry("fedkin.data.synthetic:load", "Gaussian classes in hidden groups, generated"),
    "mnist": Entry("fedkin.data.idx:mnist", "70,000 digits of 28x28, 10 classes"),
    "fashion-mnist": Entry("fedkin.data.idx:fashion_mnist", "70,000 garments of 28x28, 10 classes"),
    "cifar10": Entry("fedkin.data.cifar:cifar10", "60,000 color images of 32x32, 10 classes"),
    "cifar100": Entry("fedkin.data.cifar:cifar100", "60,000 color images of 32x32, 100 classes"),
    "svhn": Entry("fedkin.data.svhn:load", "99,289 house numbers of 32x32, 10 classes"),
    "har": Entry("fedkin.data.har:load", "10,299 windows [9, 128] of 30 people's movement, 6 classes"),
    "heart": Entry("fedkin.data.heart:load", "920 patients of 4 hospitals, 13 columns, heart disease or not"),
}

# Small enough for a CPU. Ask for the larger networks of the papers with --model.
DEFAULT_MODEL: dict[str, str] = {
    "digits": "mlp",
    "synthetic": "mlp",
    "mnist": "lenet",
    "fashion-mnist": "lenet",
    "cifar10": "lenet",
    "cifar100": "lenet",
    "svhn": "lenet",
    "har": "har",
    "heart": "mlp_small",
}


NATURAL = frozenset(("har", "heart"))
"""Data sets whose named groups (persons, hospitals) are the clients unless the user asks for a partition."""


def load(name: str, data_dir: str | Path | None = None, **options: Any) -> Arrays:
    """Load a data set by name. "own" is a user's folder: `options` are then those of `from_folder`."""
    if name == "own":
        if "folder" not in options:
            raise ValueError("Own data in memory cannot be loaded again by name: pass the arrays themselves.")
        return from_folder(**options)
    arrays: Arrays = lookup(DATASETS, name, "data set").load()(data_dir, **options)
    return arrays


def default_partition(data: str | Arrays) -> str:
    """The default partition: the clients that the data names, else dirichlet."""
    if isinstance(data, str):
        return "by_group" if data in NATURAL or data not in DATASETS else "dirichlet"
    if data.group is not None and data.names:
        return "by_group"
    return "dirichlet" if data.classes else "iid"


__all__ = [
    "DATASETS",
    "DEFAULT_MODEL",
    "Arrays",
    "default_partition",
    "from_arrays",
    "from_dataset",
    "from_file",
    "from_folder",
    "from_frame",
    "load",
]
