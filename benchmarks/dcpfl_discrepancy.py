"""DC-PFL on real data: does model discrepancy follow the data, when do groups split, and what does it cost?

    FEDKIN_DATA=/path/to/data python benchmarks/dcpfl_discrepancy.py [--data fashion-mnist] [--model lenet]
        [--part correlation|run] [--rounds 45] [--epochs 5]

correlation: pairwise KLD of the clients' labels against D_ij after the first five rounds (fig. 5a) for three scalings,
and each layer's share of the sum of D_{g,l} for four.
run: DC-PFL (`dcpfl@0.2`: with low=0.2), its ablations and FedAvg: accuracy, groups, bytes, simulated time; and the loss
curve, the trials and the layers of the first DC-PFL.
30 clients of 300 examples each (210 for training), primary_secondary, batch 32, lr 0.01 unless given otherwise.
"""

from __future__ import annotations

import argparse
import itertools
import time
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

import fedkin
from fedkin.experiments.convergence import convergence_round
from fedkin.maths.divergence import pairwise_kld
from fedkin.methods.dcpfl import DCPFL
from fedkin.methods.dcpfl.curvature import radius
from fedkin.methods.dcpfl.discrepancy import LayerScale, layer_discrepancy, pairwise_discrepancy


def series(result: fedkin.Run, metric: str) -> dict[int, object]:
    return {row.round: row.value for row in result.history.select(metric) if row.client is None}


def measured(result: fedkin.Run, round: int) -> float:
    """Mean accuracy over the round's participants (here all clients), or over all clients if all were measured."""
    values = result.history.values("personal", round=round, scope="round")
    return float(np.mean(list((values or result.history.values("personal", round=round)).values())))


class Watched(DCPFL):
    """DC-PFL that keeps the uploads of its first rounds."""

    uploads: ClassVar[list[Tensor]] = []

    def _averaged(self, *arguments: Any) -> Any:
        state, *_, uploads, _ = arguments
        if state["tree"] is None:
            Watched.uploads.append(uploads[:, : state["parameters"]].clone())
        return super()._averaged(*arguments)


def correlation(federation: fedkin.Federation, args: argparse.Namespace) -> None:
    upper = np.triu_indices(len(federation), 1)
    kld = pairwise_kld(federation.counts)[upper]
    Watched.uploads.clear()
    result = fedkin.run(Watched(), federation, rounds=5, **settings(args))
    owner = result.state["owner"][: result.state["parameters"]]
    layers = [(owner == layer).nonzero().flatten() for layer in range(len(result.state["layers"]))]
    print(f"\n{args.data}, {args.model}, {args.epochs} local epochs, lr {args.lr}, seed {args.seed}")
    print("correlation of KLD with D averaged over the first 1, 3 and 5 rounds, and mean D of 5")
    for scale in ("common", "model", "layer"):
        rounds = [pairwise_discrepancy(rows, scale, layers).numpy()[upper] for rows in Watched.uploads]
        found = [np.corrcoef(kld, np.mean(rounds[:k], 0))[0, 1] for k in (1, 3, 5)]
        print(f"{scale:8}" + "".join(f"{value:8.3f}" for value in found) + f"   {np.mean(rounds):.6f}")
    plain = np.mean([torch.cdist(rows, rows).numpy()[upper] for rows in Watched.uploads], 0)
    print(f"L2 distance, unscaled, 5 rounds: {np.corrcoef(kld, plain)[0, 1]:.3f}")
    print("a layer's share of the sum of D_{g,l} while all clients are one group (low: below 0.1)")
    shares = federation.sizes.float() / federation.sizes.sum()
    layer_scales: tuple[LayerScale, ...] = ("model", "own", "layer", "layer_own")
    for layer_scale, round in itertools.product(layer_scales, (1, 5)):
        rows = Watched.uploads[round - 1]
        found = layer_discrepancy(rows, shares @ rows, layers, layer_scale)
        values = zip(result.state["layers"], (found / found.sum()).tolist())
        print(f"{layer_scale:9} round {round}: " + "  ".join(f"{name} {value:.2f}" for name, value in values))


def run(federation: fedkin.Federation, args: argparse.Namespace) -> None:
    print(f"\n{args.data}, {args.model}, {args.rounds} rounds of {args.epochs} epochs, lr {args.lr}, seed {args.seed}")
    print("method       personal  worst   groups  MB down   MB up  comm. s  compute s  converged  took")
    kept = {}
    for name in args.methods.split(","):
        begin = time.perf_counter()
        base, _, low = name.partition("@")
        method = fedkin.method(base, **({"low": float(low)} if low else {}))
        result = kept[name] = fedkin.run(method, federation, rounds=args.rounds, **settings(args))
        s, seconds = result.summary, result.summary["simulated_seconds"]
        accuracy = [measured(result, round) for round in range(1, args.rounds + 1)]
        groups = len(set(list(series(result, "clusters").values() or [[0]])[-1]))  # type: ignore[arg-type]
        print(
            f"{name:12} {s['personal']['mean']:8.4f} {s['personal']['worst_decile']:6.3f} {groups:7d} "
            f"{s['bytes_down'] / 1e6:9.2f} {s['bytes_up'] / 1e6:7.2f} {seconds['communication']:8.1f} "
            f"{seconds['compute']:9.1f} {convergence_round(accuracy)!s:>10} {time.perf_counter() - begin:5.0f}"
        )
    for name in [name for name in kept if name.partition("@")[0] == "dcpfl"][:1]:
        print(f"\n{name}")
        tell(kept[name])


def tell(result: fedkin.Run) -> None:
    losses, events = series(result, "loss"), {m: series(result, m) for m in ("radius", "trial", "rdp_end", "gamma")}
    sizes = {r: np.bincount(v).tolist() for r, v in series(result, "clusters").items()}
    print("round  loss    r(t)      what happened")
    for round, loss in losses.items():
        r, what = events["radius"].get(round), []
        if round in events["rdp_end"]:
            what.append(f"rapid decrease ended in communication round {events['rdp_end'][round]}")
        if trial := events["trial"].get(round):
            what.append(f"trial at {trial['gamma']} {trial['outcome']}: {trial['old']:.4f} old, {trial['new']:.4f} new")
            what.append(f"{len(sizes[round])} groups, the largest {max(sizes[round])}")
        print(f"{round:5d}  {loss:.4f}  {'-' if r is None else format(r, '.1f'):>8}  {'; '.join(what)}")
    plain = [float(v) for v in losses.values()]  # type: ignore[arg-type]
    first = next((r for r, t in events["trial"].items() if t["outcome"] == "accepted"), len(plain))
    raw = radius(plain[: first - 1], 1)
    if len(raw) and np.isfinite(raw.min()):
        print(
            f"Sharpest bend of the unsmoothed curve before that: round {int(raw.argmin()) + 1}; first split: {first}."
        )
    print(
        "\neach layer's share of the sum of D_{g,l}, smallest and largest over groups of two or more (low: below 0.1)"
    )
    for round in sorted({1, 3, 5, 6, first - 1, *events["trial"], max(losses)}):
        table = series(result, "layer_discrepancy").get(round)
        if table is None:
            continue
        rows = [list(row.values()) for row in table.values() if any(row.values())]  # type: ignore[union-attr]
        names = list(next(iter(table.values())))  # type: ignore[union-attr]
        if rows:
            ratio = np.array(rows, float) / np.array(rows, float).sum(1, keepdims=True)
            print(
                f"{round:5d}  "
                + "  ".join(f"{n} {a:.2f}-{b:.2f}" for n, a, b in zip(names, ratio.min(0), ratio.max(0)))
            )


def settings(args: argparse.Namespace) -> dict[str, object]:
    return {
        "model": args.model,
        "epochs": args.epochs,
        "lr": args.lr,
        "batch_size": 32,
        "seed": args.seed,
        "evaluate_every": 0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--part", default="correlation,run")
    parser.add_argument("--methods", default="fedavg,dcpfl,dcpfl-nola,dcpfl-nodc")
    parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=45)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    federation = fedkin.federate(
        args.data,
        partition="primary_secondary",
        clients=args.clients,
        samples_per_client=args.rows,
        seed=args.seed,
    )
    print(f"{len(federation)} clients, mean KLD {federation.mean_kld:.3f}")
    if "correlation" in args.part:
        correlation(federation, args)
    if "run" in args.part:
        run(federation, args)


if __name__ == "__main__":
    main()
