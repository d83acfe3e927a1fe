"""A federation of 10,000 clients: a round costs what its 50 participants cost, and memory stays small.

python benchmarks/scale.py [--clients 10000]
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from pathlib import Path

import fedkin
from fedkin.engine.trackers import Tracker


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


class Watch(Tracker):
    def __init__(self) -> None:
        self.seconds: list[float] = []

    def round(self, round: int, metrics: dict[str, float]) -> None:
        self.seconds.append(metrics["seconds"])


def measure(clients: int, method: str) -> None:
    peak, stop = 0, threading.Event()

    def look() -> None:
        nonlocal peak
        while not stop.wait(0.2):
            peak = max(peak, memory())

    threading.Thread(target=look, daemon=True).start()
    begin = time.perf_counter()
    federation = fedkin.federate(
        "synthetic", partition="by_group", clients=clients, data_options={"samples": 50 * clients, "groups": 4}
    )
    made = time.perf_counter() - begin
    watch = Watch()
    fedkin.run(
        method, federation, rounds=12, participation=50 / clients, evaluate_every=0, epochs=2, trackers=[watch],
        link_rate=2e6,
    )  # fmt: skip
    stop.set()
    rounds = sorted(watch.seconds[1:-1])
    print(
        f"{method:8} {clients:6} clients: made in {made:5.1f} s; a round of 50: "
        f"{1000 * rounds[len(rounds) // 2]:6.1f} ms; "
        f"last round with all clients measured: {watch.seconds[-1]:5.1f} s; peak memory {peak / 1e9:.2f} GB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10_000)
    arguments = parser.parse_args()
    for method in ("fedavg", "fedavg-ft"):
        for clients in (100, arguments.clients):
            measure(clients, method)


if __name__ == "__main__":
    main()
