"""Speed of fedkin against a plain PyTorch loop, pfl-research and Flower on the same work, in one run.

    python -m venv /tmp/pfl && /tmp/pfl/bin/pip install -c constraints.txt 'pfl[pytorch]'
    python benchmarks/speed.py [--rounds 3] [--only P1|P2] [--pfl /tmp/pfl/bin/python]

`--rounds 1` is the short form: one turn of each, two rounds of P1 or ten of P2 after one that starts it, about 7
minutes on two idle cores.

P1: 100 clients x 480 images of 28x28, 30 a round, 5 epochs, batch 16, cnn3, evaluation of all clients each round.
P2: the same clients, fcnn1, batch 10, 1 epoch.
They take turns, so that a slow minute of the machine hits all; Flower comes last. The images are random: speed does not
look at them. CPU seconds are user and system time of all processes of a round. Where other programs keep the machine
busy, they tell more than wall seconds do.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import socket
import statistics
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import fedkin
from fedkin.engine.trackers import Tracker
from fedkin.models.build import maker
from fedkin.models.network import Network

CLIENTS, TRAIN, TEST, CHOSEN = 100, 480, 120, 30
FLOWER = True


@dataclass(frozen=True)
class Work:
    name: str
    model: str
    epochs: int
    batch: int
    rounds: int
    """Rounds of a turn. The last of fedkin's also saves the models, so short rounds need more of them."""


WORKS = (Work("P1", "cnn3", 5, 16, 2), Work("P2", "fcnn1", 1, 10, 10))


class PlainCnn3(nn.Module):
    """cnn3 as anybody would write it."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((1, 32), (32, 64), (64, 64)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        self.net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(576, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


class PlainFcnn1(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


class Plain:
    """FedAvg in a plain loop: DataLoader, default threads."""

    def __init__(self, work: Work, federation: fedkin.Federation) -> None:
        torch.manual_seed(0)
        self.work = work
        self.net = PlainCnn3() if work.model == "cnn3" else PlainFcnn1()
        self.train, self.test = [], []
        for client in range(len(federation)):
            data = federation.data(client)
            self.train.append(
                DataLoader(TensorDataset(data.x.contiguous(), data.y), batch_size=work.batch, shuffle=True)
            )
            test = federation.test(client)
            self.test.append(DataLoader(TensorDataset(test.x.contiguous(), test.y), batch_size=600))
        self.model = {k: v.clone() for k, v in self.net.state_dict().items()}

    def round(self, number: int) -> tuple[float, float]:
        """Seconds of training and of evaluation."""
        start = time.perf_counter()
        chosen = np.random.default_rng(number).choice(CLIENTS, CHOSEN, replace=False)
        total = {k: torch.zeros_like(v) for k, v in self.model.items()}
        for client in chosen:
            self.net.load_state_dict(self.model)
            self.net.train()
            optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
            for _ in range(self.work.epochs):
                for x, y in self.train[client]:
                    optimizer.zero_grad()
                    F.cross_entropy(self.net(x), y).backward()
                    optimizer.step()
            for k, v in self.net.state_dict().items():
                total[k] += v / CHOSEN
        self.model = total
        middle = time.perf_counter()
        self.net.load_state_dict(self.model)
        self.net.eval()
        right = 0
        with torch.no_grad():
            for loader in self.test:
                for x, y in loader:
                    right += int((self.net(x).argmax(1) == y).sum())
        return middle - start, time.perf_counter() - middle


def cpu_seconds() -> float:
    """CPU time of this process and of its children that are still there."""
    total, family = 0.0, [os.getpid()]
    for pid in family:
        try:
            family += [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


class Watch(Tracker):
    """Wall and CPU seconds of each round."""

    def __init__(self) -> None:
        self.seconds: list[tuple[float, float]] = []
        self._cpu = cpu_seconds()

    def round(self, round: int, metrics: dict[str, float]) -> None:
        now = cpu_seconds()
        self.seconds.append((metrics["seconds"], now - self._cpu))
        self._cpu = now


def pfl_rounds(work: Work, rounds: int, python: str) -> list[tuple[float, float]]:
    """Wall and CPU seconds of rounds of pfl-research in two processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [python, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1"]
    command += [f"--master-port={port}", str(Path(__file__).with_name("pfl_rounds.py")), work.model]
    command += [str(work.epochs), str(work.batch), str(rounds)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    found = [json.loads(text) for text in re.findall(r"RESULT (\[\[.*?\]\])", done.stdout)]  # both may be on one line
    if done.returncode or len(found) != 2:
        raise SystemExit(f"pfl-research failed:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")
    return [(max(a[0], b[0]), a[1] + b[1]) for a, b in zip(*found)]


def fedkin_rounds(work: Work, federation: fedkin.Federation, rounds: int) -> list[tuple[float, float]]:
    watch = Watch()
    fedkin.run(
        "fedavg", federation, model=work.model, rounds=rounds + 1, participation=CHOSEN / CLIENTS, lr=0.01,
        epochs=work.epochs, batch_size=work.batch, evaluate_every=1, trackers=[watch],
    )  # fmt: skip
    return watch.seconds[1:]  # the first round also starts the workers


def training_only(work: Work, federation: fedkin.Federation) -> float:
    """Samples a second of one worker's training loop alone, on one thread."""
    from fedkin.client.training import sgd
    from fedkin.protocol import Client, Training

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    net = Network(maker(work.model, (1, 28, 28), 10, 0, {})(0), federation.example)
    client = Client({}, federation.data(0), 0, net, Training(lr=0.01, epochs=1, batch_size=work.batch))
    sgd(client, net.initial)
    best = 0.0
    for _ in range(5):
        start = time.perf_counter()
        sgd(client, net.initial)
        best = max(best, TRAIN / (time.perf_counter() - start))
    torch.set_num_threads(threads)
    return best


def peak() -> float:
    """FLOPs a second of one thread: the faster of a large matrix product and a large convolution.

    Where PyTorch's matrix library does not know the processor (MKL on AMD), the product takes twice as long.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    x = torch.randn(8, 256, 32, 32).contiguous(memory_format=torch.channels_last)
    w = torch.randn(256, 256, 3, 3).contiguous(memory_format=torch.channels_last)
    best = 0.0
    for _ in range(12):
        for work, flops in ((lambda: a @ b, 2 * 1024**3), (lambda: F.conv2d(x, w, padding=1), 18 * 8 * 1024 * 256**2)):
            start = time.perf_counter()
            work()
            best = max(best, flops / (time.perf_counter() - start))
    torch.set_num_threads(threads)
    return best


def made() -> fedkin.Federation:
    rng = np.random.default_rng(0)
    rows = CLIENTS * (TRAIN + TEST)
    arrays = fedkin.Arrays(
        rng.integers(0, 256, (rows, 28, 28, 1), dtype=np.uint8),
        rng.integers(0, 10, rows).astype(np.int64),
        classes=10,
        image=True,
        mean=(128.0,),
        std=(74.0,),
    )
    return fedkin.federate(arrays, partition="iid", clients=CLIENTS, test=0.2, validation=0.0)


def measure(work: Work, rounds: int, pfl: str) -> None:
    federation = made()
    plain = Plain(work, federation)
    plain.round(0)
    times: dict[str, list[tuple[float, float]]] = {"plain loop": [], "fedkin": []}
    for turn in range(rounds):
        for i in range(work.rounds):
            cpu = time.process_time()
            wall = sum(plain.round(work.rounds * turn + i + 1))
            times["plain loop"].append((wall, time.process_time() - cpu))
        times["fedkin"] += fedkin_rounds(work, federation, work.rounds)
        if pfl:
            times.setdefault("pfl-research", []).extend(pfl_rounds(work, work.rounds, pfl))
    for peer, found in peers(work, federation, rounds * 2):
        times[peer] = [(seconds, float("nan")) for seconds in found]
    print(
        f"{work.name}: {work.model}, batch {work.batch}, {work.epochs} epochs, evaluation included; medians of rounds"
    )
    wall, cpu = (statistics.median(t[k] for t in times["fedkin"]) for k in (0, 1))
    for name, found in times.items():
        theirs = [statistics.median(t[k] for t in found) for k in (0, 1)]
        print(
            f"  {name:14} {theirs[0]:7.2f} s wall, {theirs[1]:7.2f} s CPU a round; fedkin is {theirs[0] / wall:5.2f} x "
            f"as fast by wall time, {theirs[1] / cpu:5.2f} x by CPU time"
        )
    net = Network(maker(work.model, (1, 28, 28), 10, 0, {})(0), federation.example)
    top, alone = peak(), training_only(work, federation)
    share = alone * net.training_flops / top
    print(
        f"  one worker's training: {alone:.0f} samples/s, {share:.0%} of this core's peak "
        f"({top / 1e9:.0f} GFLOP/s); load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def peers(work: Work, federation: fedkin.Federation, rounds: int) -> Iterator[tuple[str, list[float]]]:
    """Round times of other libraries, where they are installed, after ours: they cannot take turns in one process."""
    if FLOWER and importlib.util.find_spec("flwr") and importlib.util.find_spec("ray"):
        from peers import flower

        make = PlainCnn3 if work.model == "cnn3" else PlainFcnn1
        settings = {"epochs": work.epochs, "batch": work.batch, "chosen": CHOSEN, "rounds": rounds}
        yield "Flower (Ray)", flower(make, federation, **settings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="turns")
    parser.add_argument("--only", choices=[w.name for w in WORKS])
    parser.add_argument("--pfl", default="", help="Python of an environment with pfl[pytorch]")
    parser.add_argument("--no-flower", action="store_true", help="leave Flower out")
    arguments = parser.parse_args()
    global FLOWER
    FLOWER = not arguments.no_flower
    for work in WORKS:
        if arguments.only in (None, work.name):
            measure(work, arguments.rounds, arguments.pfl)


if __name__ == "__main__":
    main()
