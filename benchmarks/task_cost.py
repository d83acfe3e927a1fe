"""Fixed cost of a client's task on the pool: what it takes beyond the client's own training.

    python benchmarks/task_cost.py [--clients 1000] [--rounds 5]

FedAvg of `mlp` on 10 random examples a client, one step in a task. A round with all clients is compared with a round
with a tenth of them, so that what a round costs by itself does not count; the same training in one process, without
engine, is taken off. CPU time is that of all processes: it tells more than wall time where other programs keep the
machine busy.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch
from speed import Watch

import fedkin
from fedkin.client.training import sgd
from fedkin.models.build import maker
from fedkin.models.network import Network
from fedkin.protocol import Client, Training

SHAPE, CLASSES, TRAIN, TEST = (1, 8, 8), 10, 10, 2


def made(clients: int) -> fedkin.Federation:
    rng = np.random.default_rng(0)
    examples = clients * (TRAIN + TEST)
    arrays = fedkin.Arrays(
        rng.normal(size=(examples, *SHAPE)).astype(np.float32), rng.integers(0, CLASSES, examples), classes=CLASSES
    )
    share = TEST / (TRAIN + TEST)
    return fedkin.federate(arrays, partition="iid", clients=clients, test=share, validation=0.0)


def round_seconds(federation: fedkin.Federation, participation: float, rounds: int) -> tuple[float, float]:
    """Wall and CPU seconds of a round without evaluation: the medians. The first and the last round do not count: one
    starts the workers, the other is evaluated."""
    watch = Watch()
    fedkin.run(
        "fedavg", federation, model="mlp", rounds=rounds + 2, participation=participation, lr=0.01, epochs=1,
        batch_size=TRAIN, evaluate_every=0, trackers=[watch],
    )  # fmt: skip
    wall, cpu = zip(*watch.seconds[1:-1])
    return statistics.median(wall), statistics.median(cpu)


def training_seconds(federation: fedkin.Federation) -> float:
    """CPU seconds of one client's training alone, on one thread."""
    torch.set_num_threads(1)
    net = Network(maker("mlp", SHAPE, CLASSES, 0, {})(0), federation.example)
    client = Client({}, federation.data(0), 0, net, Training(lr=0.01, epochs=1, batch_size=TRAIN))
    times = []
    for _ in range(300):
        start = time.thread_time()
        sgd(client, net.initial)
        times.append(time.thread_time() - start)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    federation = made(arguments.clients)
    few = round_seconds(federation, 0.1, arguments.rounds)
    many = round_seconds(federation, 1.0, arguments.rounds)
    tasks = arguments.clients - round(0.1 * arguments.clients)
    wall, cpu = (1000 * (b - a) / tasks for a, b in zip(few, many))
    training = 1000 * training_seconds(federation)
    print(f"a task: {cpu:.3f} ms CPU in all processes, {wall:.3f} ms wall with the pool's workers side by side")
    print(f"of which training: {training:.3f} ms; fixed cost {cpu - training:.3f} ms CPU")


if __name__ == "__main__":
    main()
