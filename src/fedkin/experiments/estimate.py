"""How long runs take: estimated from their settings, corrected by finished runs. Without torch, so it is quick."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

from fedkin.experiments.cells import Cells, Job

SHAPES = {  # numbers of one example, classes, examples in the training part
    "mnist": (784, 10, 60_000),
    "fashion-mnist": (784, 10, 60_000),
    "cifar10": (3072, 10, 50_000),
    "cifar100": (3072, 100, 50_000),
    "svhn": (3072, 10, 73_257),
    "har": (1152, 6, 10_299),
    "heart": (13, 2, 740),
}
DENSE = {"mlp": (64,), "fcnn1": (200,), "fcnn2": (200, 100)}
# Milliseconds of one core for each example of a step, at width 1 (measured with two busy cores).
CONVOLUTIONAL = {"lenet": 0.15, "cnn2": 0.5, "cnn3": 0.8, "cnn3fc3": 0.8, "cnn6": 2.5, "har": 0.15}
# Rough cost of a local round relative to plain SGD; 1 for methods that are not listed.
FACTOR = {
    "perfedavg": 2.0,
    "pfedme": 5.0,
    "pfedbayes": 3.0,
    "ifca": 1.5,
    "pflic": 1.7,
    "pfedhn": 1.5,
    "fedrod": 1.5,
    "fedah": 1.5,
    "moon": 2.0,
    "ditto": 2.0,
    "apfl": 2.0,
    "clusterfl": 1.2,
}
OVERHEAD = 1.0  # seconds of a run that are not training


def seconds(job: Job) -> float:
    """Estimate for one run on one core."""
    s = job.setting
    numbers, classes, pool = SHAPES.get(s.data, (100, 10, 10_000))
    examples = min(s.examples or pool // s.clients, pool // s.clients)
    train = s.train_examples or ceil((1 - s.validation - (0 if s.official_test else s.test)) * examples)
    size = ceil(train / s.batches) if s.batches else min(s.batch_size, train)
    steps = ceil(train / size) * s.epochs
    measured = 1 + (s.rounds // s.evaluate_every if s.evaluate_every else 0)
    trained = s.clients * (s.participation * s.rounds + 0.1 * measured)
    if s.model in DENSE:
        units = [numbers, *(max(1, round(u * s.width)) for u in DENSE[s.model]), classes]
        parameters = sum(a * b for a, b in pairwise(units))
        step = 0.15 + parameters * (3e-6 + 6e-8 * size)
    else:
        step = 0.3 + CONVOLUTIONAL.get(s.model, 0.5) * max(0.2, s.width) * size
    factor = FACTOR.get(job.method.split(",")[0].split("-")[0], 1.0)
    return OVERHEAD + factor * steps * trained * step / 1000


@dataclass(frozen=True)
class Status:
    done: int
    total: int
    spent: float
    """Core seconds of the finished runs."""
    left: float
    """Estimated core seconds of the remaining runs."""

    @property
    def hours_left(self) -> float:
        """Estimated hours on all cores of this machine."""
        return self.left / 3600 / (os.cpu_count() or 1)


def status(jobs: Iterable[Job], cells: Cells, keep: Mapping[str, Iterable[str]]) -> Status:
    distinct = {j.name: j for j in jobs}
    done: dict[str, float] = {}
    for name, job in distinct.items():
        if (found := cells.get(job, keep.get(name, ()))) is not None:
            done[name] = found["seconds"]
    by_cell: dict[tuple[str, str], list[float]] = {}
    by_setting: dict[str, list[float]] = {}
    for name, spent in done.items():
        job = distinct[name]
        by_cell.setdefault((job.folder, job.file), []).append(spent)
        by_setting.setdefault(job.folder, []).append(spent / seconds(job))
    ratios = [r for found in by_setting.values() for r in found]
    usual = sum(ratios) / len(ratios) if ratios else 1.0
    left = 0.0
    for name, job in distinct.items():
        if name in done:
            continue
        if same := by_cell.get((job.folder, job.file)):  # another seed of the same cell
            left += sum(same) / len(same)
        else:
            near = by_setting.get(job.folder)
            left += seconds(job) * (sum(near) / len(near) if near else usual)
    return Status(len(done), len(distinct), sum(done.values()), left)
