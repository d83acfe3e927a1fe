"""How good is the model of a client that was not in the run? `join` on held-out clients, for every method.

Writes the table of docs/joining.md: python benchmarks/join.py docs/joining.md
Digits turned four ways over 20 clients. 16 of them train; the other four, one of each turn, join afterwards.
Their accuracy is on their own test examples, which neither the run nor the joining sees.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import fedkin
from fedkin.data.federation import Federation
from fedkin.methods import METHODS

TRAINED, ALL = 16, 20
SETTINGS = {
    "rounds": 12, "epochs": 2, "lr": 0.1, "batch_size": 8, "engine": "serial", "model": "mlp", "evaluate_every": 0,
}  # fmt: skip
BEGIN, END = "<!-- made by benchmarks/join.py -->", "<!-- end -->"


def part(fed: Federation, clients: range) -> Federation:
    """These clients of a federation, as one of their own."""
    own, index = fed.partition, np.array(clients)
    partition = replace(
        own,
        indices=tuple(own.indices[c] for c in clients),
        groups=None if own.groups is None else own.groups[index],
        turns=None if own.turns is None else own.turns[index],
    )
    return replace(fed, partition=partition, splits=tuple(fed.splits[c] for c in clients))


def main() -> None:
    torch.set_num_threads(1)
    fed = fedkin.federate("digits", partition="rotated", clients=ALL, samples_per_client=60, seed=0)
    first, late = part(fed, range(TRAINED)), part(fed, range(TRAINED, ALL))
    alone = fedkin.run("local", late, **SETTINGS).summary["personal"]["mean"]
    rows = []
    for name in METHODS:
        run = fedkin.run(name, first, **SETTINGS)
        found = []
        for client in range(len(late)):
            data, test = late.data(client), late.test(client)
            x, y = torch.cat([data.x, data.validation.x]), torch.cat([data.y, data.validation.y])
            joined = run.join(f"newcomer {client}", x, y)
            with torch.no_grad():
                found.append(float((joined.model(test.x).argmax(1) == test.y).float().mean()))
        rows.append((name, run.summary["personal"]["mean"], float(np.mean(found)), float(np.mean(found)) - alone))
        print(f"{name}: {rows[-1]}", flush=True)
    lines = ["| method | its own clients % | newcomers % | over training alone |", "| --- | ---: | ---: | ---: |"]
    lines += [f"| {n} | {100 * own:.1f} | {100 * new:.1f} | {100 * gain:+.1f} |" for n, own, new, gain in rows]
    text = "\n".join([BEGIN, "", f"Training alone: {100 * alone:.1f} %.", "", *lines, "", END])
    if len(sys.argv) > 1:
        page = Path(sys.argv[1])
        page.write_text(re.sub(f"{BEGIN}.*{END}", lambda _: text, page.read_text(), flags=re.DOTALL))


if __name__ == "__main__":
    main()
