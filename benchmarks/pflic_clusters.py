"""Does PFLIC find the four rotations of MNIST, and what does each of its parts contribute? Prints a table.

    FEDKIN_DATA=... python benchmarks/pflic_clusters.py [--model fcnn1] [--rounds 15] [--only default fedavg]

48 clients x 250 images rotated by 0, 90, 180 or 270 degrees. Finished runs are kept in --out, so the benchmark can be
stopped and started again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import fedkin
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.pflic import PFLIC
from fedkin.protocol import Method
from fedkin.results.run import Run

VARIANTS: dict[str, Method] = {
    "fedavg": FedAvg(),
    "pflic": PFLIC(),
    "pflic, shared layer from clusters": PFLIC(shared_from="clusters"),
    "pflic, nothing shared": PFLIC(shared=()),
    "pflic, all clients selected": PFLIC(rho=1.0),
    "three starts": PFLIC(restarts=3),
    "reseeding": PFLIC(reseed_empty=True),
    "pflic-restarts": PFLIC(restarts=3, reseed_empty=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="fcnn1", choices=["fcnn1", "fcnn2", "cnn2"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--only", nargs="*", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--out", type=Path, default=Path("runs/pflic_clusters"))
    given = parser.parse_args()
    print(f"{given.model}, {given.rounds} rounds of one epoch, lr {given.lr}, seeds 0 to {given.seeds - 1}")
    columns = (
        "Rand index by seed, frozen after round, accuracy by seed, mean, std over clients, worst tenth, MB down, MB up"
    )
    print("| | " + " | ".join(columns.split(", ")) + " |")
    print("|---" * (len(columns.split(", ")) + 1) + "|")
    for name in given.only:
        results = [one(name, given.model, given.rounds, given.lr, seed, given.out) for seed in range(given.seeds)]
        print(f"| {name} | " + " | ".join(cells(results)) + " |", flush=True)


def one(name: str, model: str, rounds: int, lr: float, seed: int, out: Path) -> Run:
    clients = fedkin.federate("mnist", partition="rotated", clients=48, samples_per_client=250, seed=seed)
    folder = out / f"{model}-{rounds}-{lr:g}" / f"{name.replace(', ', '-').replace(' ', '_')}-{seed}"
    return fedkin.run(
        VARIANTS[name],
        clients,
        model=model,
        rounds=rounds,
        lr=lr,
        seed=seed,
        evaluate_every=0,
        checkpoint_every=1,
        out=folder,
        save_models=False,
    )


def cells(results: list[Run]) -> list[str]:
    found = [[row.value for row in r.history.select("rand_index")] for r in results]
    phases = [[row.value for row in r.history.select("phase")] for r in results]
    scores = [r.summary["personal"] for r in results]
    return [
        ", ".join(f"{values[-1]:.3f}" if values else "-" for values in found),
        ", ".join(str(p.index(2)) if 2 in p else "-" for p in phases),
        ", ".join(f"{s['mean']:.3f}" for s in scores),
        *(f"{np.mean([s[key] for s in scores]):.3f}" for key in ("mean", "std", "worst_decile")),
        *(f"{np.mean([r.summary[key] for r in results]) / 1e6:.0f}" for key in ("bytes_down", "bytes_up")),
    ]


if __name__ == "__main__":
    main()
