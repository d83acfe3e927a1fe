"""Server time and peak extra memory of a round of the four systems, with models of 1e6 parameters.

    python benchmarks/server.py [--clients 125 250 500 1000] [--parameters 1000000] [--repeats 2]

Each cell runs in its own process, so that the peak memory is that of the cell. The matrix of client models that come in
(4 GB for 1,000 clients) is a memory-mapped file without a name in TMPDIR. Extra memory is memory beyond that matrix, in
multiples of it; it includes the models that go out, unless there is one for each client and they take more than 1 GiB:
then they are in a file too (`fedkin.maths.table`). Growth is that of the time with the number of clients n.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from math import log
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import fedkin
from fedkin.methods.dcpfl.discrepancy import pairwise_discrepancy
from fedkin.methods.dcpfl.tree import group_tree
from fedkin.protocol import Message, Replies, Server, Training


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
    file = tempfile.TemporaryFile()  # noqa: SIM115  (numpy keeps it open)
    out = torch.from_numpy(np.memmap(file, np.float32, "w+", shape=(fed.size, len(start))))
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
    sent = Message(own=(fed.initial(0).expand(fed.size, -1),))  # as `send` gives it, without a copy for each client
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
    """Bytes of memory without those of mapped files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no RssAnon: this benchmark needs Linux.")


def cell(system: str, clients: int, parameters: int, repeats: int) -> dict[str, float]:
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
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    stop.set()
    return {"seconds": min(times), "extra": max(0, peak - before) / (vectors.numel() * 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[125, 250, 500, 1000])
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=2, help="of each cell; the fastest counts")
    parser.add_argument("--cell", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        print(json.dumps(cell(arguments.cell[0], int(arguments.cell[1]), arguments.parameters, arguments.repeats)))
        return
    print(f"Server seconds (extra memory in multiples of the models' matrix), {arguments.parameters} parameters")
    print(f"{'clients':22}" + "".join(f"{n:>16}" for n in arguments.clients))
    for system in SYSTEMS:
        found, times = [], []
        for clients in arguments.clients:
            command = [sys.executable, __file__, "--cell", system, str(clients)]
            command += ["--parameters", str(arguments.parameters), "--repeats", str(arguments.repeats)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            got = json.loads(done.stdout)
            times.append(got["seconds"])
            found.append(f"{got['seconds']:.2f} s ({got['extra']:.2f}x)")
        few, many = arguments.clients[0], arguments.clients[-1]
        growth = f"  n^{log(times[-1] / times[0]) / log(many / few):.1f}" if many > few else ""
        print(f"{LABEL.get(system, system):22}" + "".join(f"{text:>16}" for text in found) + growth, flush=True)


if __name__ == "__main__":
    main()
