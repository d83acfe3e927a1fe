"""A federation of 10,000 clients with a CNN, 1 % of them a round: what a round costs, and how much memory.

    python benchmarks/scale.py [--clients 10000] [--methods fedavg ditto kin pfedgat fedamp]

The comparison is the same number of participants out of no more clients than that: a round must not cost more. Methods
whose server keeps a model of every client (kin, pFedGAT, FedAMP, ...) keep those that it has heard of in a temporary
file without a name (`fedkin.maths.table`): its bytes are on the disk of TMPDIR, not in memory. Pages of that file which
the system caches are not counted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from speed import Watch

import fedkin

EXAMPLES, PARTICIPANTS, ROUNDS = 20, 100, 6


def memory() -> int:
    """Bytes of all processes of this run, shared pages counted once (proportional set size)."""
    total = 0
    family = [os.getpid()]
    for pid in family:
        try:
            family += [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
        except OSError:
            continue
    return total


def measure(clients: int, method: str) -> None:
    peak, stop = 0, threading.Event()

    def look() -> None:
        nonlocal peak
        while not stop.wait(0.2):
            peak = max(peak, memory())

    threading.Thread(target=look, daemon=True).start()
    begin = time.perf_counter()
    rng = np.random.default_rng(0)
    count = EXAMPLES * clients
    arrays = fedkin.Arrays(
        rng.integers(0, 256, (count, 28, 28, 1), dtype=np.uint8),
        rng.integers(0, 10, count).astype(np.int64),
        classes=10,
        image=True,
        mean=(128.0,),
        std=(74.0,),
    )
    federation = fedkin.federate(arrays, partition="iid", clients=clients)
    made = time.perf_counter() - begin
    watch = Rounds(f"{method:8} {clients:6} clients: made in {made:5.1f} s; ", lambda: peak)
    fedkin.run(
        method, federation, model="cnn2", rounds=ROUNDS, participation=PARTICIPANTS / clients, evaluate_every=0,
        save_models=False, trackers=[watch],
    )  # fmt: skip
    stop.set()
    print(
        f"    last round with all clients measured: {watch.seconds[-1][1]:5.1f} s CPU; peak memory {peak / 1e9:.2f} GB"
    )


class Rounds(Watch):
    """Prints what the rounds cost before the last one, which measures all clients and takes much longer."""

    def __init__(self, start: str, peak: Callable[[], int]) -> None:
        super().__init__()
        self._start, self._peak = start, peak

    def round(self, round: int, metrics: dict[str, float]) -> None:
        super().round(round, metrics)
        if round == ROUNDS - 1:
            rounds = self.seconds[1:]  # the first starts the workers
            wall, cpu = (statistics.median(r[k] for r in rounds) for k in (0, 1))
            print(
                f"{self._start}a round of {PARTICIPANTS}: {wall:6.2f} s wall, {cpu:5.2f} s CPU; peak memory "
                f"{self._peak() / 1e9:.2f} GB; load {os.getloadavg()[0]:.0f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--methods", nargs="+", default=["fedavg", "ditto", "kin", "pfedgat", "fedamp"])
    arguments = parser.parse_args()
    for method in arguments.methods:
        for clients in (PARTICIPANTS, arguments.clients):
            measure(clients, method)


if __name__ == "__main__":
    main()
