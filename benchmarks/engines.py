"""Seconds of a round and peak memory of the engines on the same work: pool, Ray, and Flower's own Ray simulation.

    pip install -c constraints.txt -e '.[ray]' flwr==1.41.0
    python benchmarks/engines.py [--rounds 10] [--turns 2] [--clients 10 100]

FedAvg on random rows, 100 training rows a client, an mlp of 12,948 numbers, one epoch of batches of 20, all clients in
every round; nobody is measured but after the last round, which does not count. Each engine runs in a process of its
own, two workers of one thread each; they take turns, so that a slow minute of the machine hits all. Memory is that of
the process and all it started, shared pages counted once. Where Flower is not installed it is left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

ENGINES = {"pool": "fedkin, pool", "ray": "fedkin, Ray", "flower": "Flower 1.41, Ray simulation"}
WORKERS, ROWS, EPOCHS, BATCH, LR = 2, 125, 1, 20, 0.01


def memory(pid: int) -> int:
    """Bytes of a process and of all that it started, shared pages counted once (proportional set size)."""
    total, family = 0, [pid]
    for one in family:
        try:
            for thread in Path(f"/proc/{one}/task").glob("*/children"):
                family += [int(child) for child in thread.read_text().split()]
            for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
        except OSError:
            continue
    return total


def federation(clients: int):
    import numpy as np

    import fedkin

    rng = np.random.default_rng(0)
    x = rng.standard_normal((clients * ROWS, 64)).astype(np.float32)
    arrays = fedkin.from_arrays(x, rng.integers(0, 10, len(x)), client=np.repeat(np.arange(clients), ROWS))
    return fedkin.federate(arrays, partition="by_group", test=0.2, validation=0.0)


def network():
    from torch import nn

    return nn.Sequential(nn.Linear(64, 168), nn.ReLU(), nn.Linear(168, 12))


def fedkin_rounds(engine: str, clients: int, rounds: int) -> list[float]:
    import fedkin
    from fedkin.engine.trackers import Tracker

    class Watch(Tracker):
        def __init__(self) -> None:
            self.ends: list[float] = []

        def round(self, round: int, metrics: dict[str, float]) -> None:
            self.ends.append(time.perf_counter())

    watch = Watch()
    fedkin.run(
        "fedavg", federation(clients), model=network, rounds=rounds + 2, engine=engine, workers=WORKERS, lr=LR,
        epochs=EPOCHS, batch_size=BATCH, evaluate_every=0, trackers=[watch],
    )  # fmt: skip
    return [b - a for a, b in zip(watch.ends[:-2], watch.ends[1:-1])]  # the last one measures all clients


def flower_rounds(clients: int, rounds: int) -> list[float]:
    from peers import flower

    return flower(
        network, federation(clients), epochs=EPOCHS, batch=BATCH, chosen=clients, rounds=rounds, lr=LR,
        workers=WORKERS, evaluate=False,
    )  # fmt: skip


def child(engine: str, clients: int, rounds: int) -> None:
    peak, stop = 0, threading.Event()

    def look() -> None:
        nonlocal peak
        while not stop.wait(0.2):
            peak = max(peak, memory(os.getpid()))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    begin = time.perf_counter()
    times = flower_rounds(clients, rounds) if engine == "flower" else fedkin_rounds(engine, clients, rounds)
    whole = time.perf_counter() - begin
    stop.set()
    thread.join()
    print("RESULT " + json.dumps({"times": times, "peak": peak, "rest": whole - sum(times)}), flush=True)


def measured(engine: str, clients: int, rounds: int) -> dict:
    command = [sys.executable, __file__, "--child", engine, "--clients", str(clients), "--rounds", str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode or not lines:
        raise SystemExit(f"{engine} failed with {clients} clients:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return json.loads(lines[0].removeprefix("RESULT "))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="rounds measured in each turn")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--child", choices=ENGINES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child, arguments.clients[0], arguments.rounds)
        return
    engines = [name for name in ENGINES if name == "pool" or importlib.util.find_spec("ray")]
    if not importlib.util.find_spec("flwr"):
        engines = [name for name in engines if name != "flower"]
    print("| engine | clients | seconds a round (median) | of the pool's | start and end, s | peak memory |")
    print("|---|---:|---:|---:|---:|---:|")
    for clients in arguments.clients:
        results: dict[str, list[dict]] = {name: [] for name in engines}
        for _ in range(arguments.turns):
            for name in engines:
                results[name].append(measured(name, clients, arguments.rounds))
        base = statistics.median(t for turn in results["pool"] for t in turn["times"])
        for name in engines:
            middle = statistics.median(t for turn in results[name] for t in turn["times"])
            rest = statistics.median(turn["rest"] for turn in results[name])
            peak = max(turn["peak"] for turn in results[name])
            print(
                f"| {ENGINES[name]} | {clients} | {middle:.3f} | {middle / base:.1f} × | {rest:.0f} | "
                f"{peak / 1e9:.2f} GB |",
                flush=True,
            )
    load = os.getloadavg()
    print(f"\n{os.cpu_count()} cores; load {load[0]:.1f} at the end (the engine's own two included).")


if __name__ == "__main__":
    main()
