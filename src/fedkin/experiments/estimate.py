"""How long an item takes on this machine: batches counted, a batch timed."""

from __future__ import annotations

import os
import time
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING

from fedkin.experiments.carry_out import Job, job
from fedkin.experiments.declare import Item, Scale

if TYPE_CHECKING:
    from fedkin.models.network import Network

SHAPES = {
    "mnist": ((1, 28, 28), 10),
    "fashion-mnist": ((1, 28, 28), 10),
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 100),
    "svhn": ((3, 32, 32), 10),
    "har": ((9, 128), 6),
}
# Work of a local round against plain SGD, roughly; 1 where it is not named.
FACTOR = {
    "perfedavg": 2,
    "pfedme": 5,
    "pfedbayes": 3,
    "ifca": 1.5,
    "pflic": 3,
    "pfedhn": 1.5,
    "fedrod": 1.5,
    "fedah": 1.5,
}
OVERHEAD = 0.5  # seconds of a run that are not training


def seconds(item: Item, scale: Scale, seeds: int | None = None) -> float:
    count = seeds if seeds is not None else item.seeds_at(scale)
    jobs = {j.name: j for cell in item.cells for seed in range(count) for j in [job(cell, scale, seed)]}
    return sum(_one(j) for j in jobs.values()) / (os.cpu_count() or 1)


def _one(job: Job) -> float:
    s = job.setting
    rows = ceil((0.9 - s.test) * s.rows)
    size = ceil(rows / s.batches) if s.batches else min(s.batch_size, rows)
    batches = ceil(rows / size) * s.epochs
    sweeps = 1 + (s.rounds // s.evaluate_every if s.evaluate_every else 0)
    trained = s.clients * (s.participation * s.rounds + (1 if s.participation < 1 else 0.05 * sweeps))
    factor = FACTOR.get(job.method.split(",")[0].split("-")[0], 1)
    return OVERHEAD + factor * batches * trained * _batch(s.data, s.model, job.width, size)


@lru_cache
def _batch(data: str, model: str, width: float, size: int) -> float:
    """Seconds of one step of SGD, timed."""
    import torch

    shape, classes = SHAPES[data]
    x, y = torch.randn(size, *shape), torch.randint(classes, (size,))
    net = _network(data, model, width)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found: list[float] = []
        while len(found) < 2 or (len(found) < 8 and sum(found) < 0.1):  # the first is slow: a plan is made for a shape
            begin = time.perf_counter()
            net.gradients(x, y, None, net.parameters)
            found.append(time.perf_counter() - begin)
        return min(found)
    finally:
        torch.set_num_threads(before)


@lru_cache
def _network(data: str, model: str, width: float) -> Network:
    import torch

    from fedkin.models.build import maker
    from fedkin.models.network import Network

    shape, classes = SHAPES[data]
    return Network(maker(model, shape, classes, 0, {"width": width})(0), torch.zeros(1, *shape))
