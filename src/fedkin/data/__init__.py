"""Data sets by name, and the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedkin.data.arrays import Arrays
from fedkin.data.own import columns, from_arrays, from_file, from_folder
from fedkin.registry import Entry, lookup

DATASETS: dict[str, Entry] = {
    "digits": Entry("fedkin.data.digits:load", "1,797 digits of 8x8, 10 classes; part of scikit-learn, no download"),
    "synthetic": Entry("fedkin.data.synthetic:load", "Gaussian classes in hidden groups, made on the spot"),
    "mnist": Entry("fedkin.data.idx:mnist", "70,000 digits of 28x28, 10 classes"),
    "fashion-mnist": Entry("fedkin.data.idx:fashion_mnist", "70,000 garments of 28x28, 10 classes"),
    "cifar10": Entry("fedkin.data.cifar:cifar10", "60,000 color images of 32x32, 10 classes"),
    "cifar100": Entry("fedkin.data.cifar:cifar100", "60,000 color images of 32x32, 100 classes"),
    "svhn": Entry("fedkin.data.svhn:load", "99,289 house numbers of 32x32, 10 classes"),
    "har": Entry("fedkin.data.har:load", "10,299 windows [9, 128] of 30 people's movement, 6 classes"),
}

# Small enough for a CPU; the larger networks of the papers are a flag away.
DEFAULT_MODEL: dict[str, str] = {
    "digits": "mlp",
    "synthetic": "mlp",
    "mnist": "lenet",
    "fashion-mnist": "lenet",
    "cifar10": "lenet",
    "cifar100": "lenet",
    "svhn": "lenet",
    "har": "har",
}


def load(name: str, folder: str | Path | None = None, **options: Any) -> Arrays:
    arrays: Arrays = lookup(DATASETS, name, "data set").load()(folder, **options)
    return arrays


__all__ = ["DATASETS", "DEFAULT_MODEL", "Arrays", "columns", "from_arrays", "from_file", "from_folder", "load"]
