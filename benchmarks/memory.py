"""Peak memory of 100 clients that share a frozen ResNet-18 of 11 million parameters and train a head each.

    python benchmarks/memory.py [--clients 100] [--method fedper] [--engine pool]

Memory is that of all processes of the run, shared pages counted once (proportional set size). The images are random.
"""

from __future__ import annotations

import argparse
import threading
import time

import numpy as np
from scale import memory
from torch import nn

import fedkin
from fedkin.models.resnet import resnet

EXAMPLES, SIDE = 10, 8  # small images: the memory in question is that of the parameters


def frozen_body(shape: tuple[int, ...], classes: int) -> nn.Module:
    module = resnet(shape, classes, depth=18)
    for part in module.children():
        if not isinstance(part, nn.Linear):
            part.requires_grad_(False)
    return module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--method", default="fedper")
    parser.add_argument("--engine", default="pool")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    count = arguments.clients * EXAMPLES
    federation = fedkin.federate(
        fedkin.from_arrays(
            rng.standard_normal((count, 3, SIDE, SIDE)).astype(np.float32),
            rng.integers(0, 10, count),
            client=np.repeat(np.arange(arguments.clients), EXAMPLES),
        )
    )
    peak, stop = 0, threading.Event()

    def look() -> None:
        nonlocal peak
        while not stop.wait(0.1):
            peak = max(peak, memory())

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    begin = time.perf_counter()
    run = fedkin.run(
        arguments.method, federation, model=frozen_body, rounds=2, evaluate_every=0, engine=arguments.engine,
        workers=arguments.workers,
    )  # fmt: skip
    seconds = time.perf_counter() - begin
    stop.set()
    thread.join()
    module = frozen_body(federation.shape, 10)
    whole = sum(p.numel() for p in module.parameters())
    frozen = sum(p.numel() for p in module.parameters() if not p.requires_grad)
    up = run.summary["bytes_up"] / 2 / arguments.clients
    print(
        f"{arguments.method}, {arguments.engine}: {arguments.clients} clients, {whole / 1e6:.1f} M parameters, "
        f"{frozen / 1e6:.1f} M of them frozen; {up / 1e3:.1f} kB up per client and round; "
        f"peak memory {peak / 1e9:.2f} GB; {seconds:.0f} s for 2 rounds"
    )


if __name__ == "__main__":
    main()
