"""Server time and peak extra memory of a round of the four systems, with models of 1e6 parameters.

    python benchmarks/server.py [--clients 50 100 200 400] [--parameters 1000000]

Each cell runs in its own process, so that the peak memory is that of the cell. Extra memory is memory beyond the matrix
of client models that came in, in multiples of that matrix; it includes the models that go out.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import fedkin
from fedkin.methods.dcpfl.discrepancy import pairwise_discrepancy
from fedkin.methods.dcpfl.tree import group_tree
from fedkin.protocol import Replies, Server, Training


def server(clients: int, parameters: int) -> Server:
    hidden = max(1, (parameters - 10) // 110)
    example = torch.zeros(1, 99)
    net = fedkin.Network(nn.Sequential(nn.Linear(99, hidden), nn.Linear(hidden, 10)), example)
    start = net.vector()
    ids = torch.arange(clients)
    return Server(ids, torch.full((clients,), 100), 10, 0, 1.0, Training(), net.layout, lambda k: start.clone())


def models(fed: Server) -> Tensor:
    """Trained models: a common start, a direction for each of five groups, and noise."""
    generator = torch.Generator().manual_seed(1)
    start = fed.initial(0)
    direction = 0.02 * torch.randn(5, len(start), generator=generator)
    out = torch.empty(fed.size, len(start))
    for i in range(fed.size):
        out[i] = start + direction[i % 5] + 0.01 * torch.randn(len(start), generator=generator)
    return out


def fedcedar(fed: Server, vectors: Tensor) -> Callable[[], object]:
    method = fedkin.method("fedcedar")
    state = method.init(fed)
    sent = method.send(state, fed.ids[:1])
    return lambda: method.merge(state, sent, Replies(fed.ids, fed.n, (vectors,), fed.ids, 1))


def pfedgat(fed: Server, vectors: Tensor) -> Callable[[], object]:
    method = fedkin.method("pfedgat", projection="random", feedback="delta")
    state = method.init(fed)
    sent = method.send(state, fed.ids)
    state = method.merge(
        state, sent, Replies(fed.ids, fed.n, (vectors,), fed.ids, 1)
    )  # so that there is a gradient step to take
    return lambda: method.merge(state, sent, Replies(fed.ids, fed.n, (vectors,), fed.ids, 2))


def dcpfl(fed: Server, vectors: Tensor) -> Callable[[], object]:
    layers = [layer.parameters for layer in fed.layout.layers]
    return lambda: group_tree(pairwise_discrepancy(vectors, "common", layers))


def pflic(fed: Server, vectors: Tensor) -> Callable[[], object]:
    method = fedkin.method("pflic")
    state = method.init(fed)
    sent = method.send(state, fed.ids)
    identities = [torch.tensor([i % 4], dtype=torch.int32) for i in range(fed.size)]
    losses = [torch.tensor([1.0]) for _ in range(fed.size)]
    return lambda: method.merge(state, sent, Replies(fed.ids, fed.n, (vectors, identities, losses), fed.ids, 1))


SYSTEMS = {"fedcedar": fedcedar, "pflic": pflic, "pfedgat": pfedgat, "dcpfl": dcpfl}
LABEL = {"pfedgat": "pfedgat (projection)", "dcpfl": "dcpfl's one-off tree"}


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def cell(system: str, clients: int, parameters: int) -> dict[str, float]:
    fed = server(clients, parameters)
    vectors = models(fed)
    work = SYSTEMS[system](fed, vectors)
    before, peak, stop = resident(), 0, threading.Event()

    def look() -> None:
        nonlocal peak
        while not stop.wait(0.002):
            peak = max(peak, resident())

    threading.Thread(target=look, daemon=True).start()
    times = []
    for _ in range(2):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    stop.set()
    return {"seconds": min(times), "extra": max(0, peak - before) / (vectors.numel() * 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[50, 100, 200, 400])
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--cell", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        print(json.dumps(cell(arguments.cell[0], int(arguments.cell[1]), arguments.parameters)))
        return
    print(f"Server seconds (extra memory in multiples of the models' matrix), {arguments.parameters} parameters")
    print(f"{'clients':22}" + "".join(f"{n:>16}" for n in arguments.clients))
    for system in SYSTEMS:
        found = []
        for clients in arguments.clients:
            command = [sys.executable, __file__, "--cell", system, str(clients)]
            command += ["--parameters", str(arguments.parameters)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            got = json.loads(done.stdout)
            found.append(f"{got['seconds']:.2f} s ({got['extra']:.2f}x)")
        print(f"{LABEL.get(system, system):22}" + "".join(f"{text:>16}" for text in found), flush=True)


if __name__ == "__main__":
    main()
