"""What FedCEDAR's graph is worth: clusters, edges and accuracy on MNIST topologies whose truth is known.

FEDKIN_DATA=… python benchmarks/fedcedar_graph.py graph    Rand index, cosines and edge AUC round by round
FEDKIN_DATA=… python benchmarks/fedcedar_graph.py forms    accuracy of the paper's form, fedcedar-soft, the ablations
FEDKIN_DATA=… python benchmarks/fedcedar_graph.py choose   how fedcedar-soft's features and temperature were chosen
python benchmarks/fedcedar_graph.py server                 seconds and memory of one merge, 100 clients x 1e6 numbers
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import torch

import fedkin
from fedkin.client.evaluate import evaluate
from fedkin.maths.graph import centered, cosine, edge_auc, evenness, majority, normalized
from fedkin.maths.kmeans import gram, membership
from fedkin.methods.fedcedar import FedCEDAR
from fedkin.models.build import maker
from fedkin.models.network import Network
from fedkin.protocol import Message, Replies, State

FEATURES = ("weights", "updates", "centered")
NORMALIZED = (("sum", 1.0), ("softmax", 0.3))
RUN: dict[str, Any] = {
    "model": "mlp",
    "participation": 0.3,
    "epochs": 5,
    "lr": 0.01,
    "batch_size": 16,
    "evaluate_every": 0,
}


def show(*cells: str, first: int = 20, width: int = 16) -> None:
    print(f"{cells[0]:<{first}}" + "".join(f"{cell:>{width}}" for cell in cells[1:]), flush=True)


def topology(nodes: int, seed: int, validation: float = 0.1) -> fedkin.Federation:
    return fedkin.federate(
        "mnist", partition="topology", nodes=nodes, clients=20 * nodes, samples_per_client=100, seed=seed,
        validation=validation,
    )  # fmt: skip


def case_study(federation: fedkin.Federation) -> dict[str, Any]:
    """K is the number of true nodes, and every fifth round draws from each of them."""
    assert federation.groups is not None
    groups = federation.groups.tolist()
    return {"clusters": max(groups) + 1, "activate_every": 5, "nodes": tuple(groups)}


SEEN: list[dict[str, Any]] = []


@dataclass(frozen=True)
class Watched(FedCEDAR):
    """FedCEDAR that also tells what the graph would be on other features."""

    def merge(self, state: State, sent: Message, replies: Replies) -> State:
        new = super().merge(state, sent, replies)
        rows, start = replies.body[0], sent.own[0]
        assert isinstance(start, torch.Tensor)
        labels = new["labels"][replies.ids].numpy()
        center = membership(labels)
        products = {"weights": gram(rows), "updates": gram(rows, start, replies.position)}
        between = {name: center @ p @ center.T for name, p in products.items()}
        between["centered"] = centered(between["weights"])
        cosines = {name: cosine(b) for name, b in between.items()}
        SEEN.append({"ids": replies.ids.numpy(), "labels": labels, **cosines})
        return new


def graph(rounds: int, participation: float) -> None:
    for nodes in (3, 4, 5):
        federation = topology(nodes, 0)
        truth, edges = federation.groups, federation.partition.edges
        assert truth is not None
        assert edges is not None
        SEEN.clear()
        result = fedkin.run(
            Watched(**case_study(federation)), federation, rounds=rounds, **{**RUN, "participation": participation}
        )
        rand = [row.value for row in result.history.select("rand_index")]
        print(f"\n{nodes} nodes, {len(federation)} clients, γ = {participation:g}, {rounds} rounds of the paper's form")
        below = (
            f"rounds below 1: {sum(r < 1 for r in rand)}, lowest {min(rand):.2f} in round {1 + int(np.argmin(rand))}"
        )
        print(f"Rand index in round 1: {rand[0]:.2f}; {below}; in rounds 5, 10, …: {[round(r, 2) for r in rand[4::5]]}")
        show("features, normalize", "lowest cosine", "median", "highest", "R diagonal", "R² diagonal", "evenness",
             "cosines' AUC", "R's AUC", "it is 1 in", first=22, width=14)  # fmt: skip
        for name, (how, temperature) in product(FEATURES, NORMALIZED):
            off = np.concatenate([s[name][~np.eye(len(s[name]), dtype=bool)] for s in SEEN])
            graphs = [normalized(s[name], how, temperature) for s in SEEN]  # type: ignore[arg-type]
            nodes_of = [majority(s["labels"], truth[s["ids"]]) for s in SEEN]
            plain = [auc for s, n in zip(SEEN, nodes_of) if (auc := edge_auc(s[name], edges, n)) is not None]
            aucs = [auc for r, n in zip(graphs, nodes_of) if (auc := edge_auc(r, edges, n)) is not None]
            numbers = (
                off.min(), np.median(off), off.max(), np.mean([np.diag(r) for r in graphs]),
                np.mean([np.diag(r @ r) for r in graphs]), np.mean([evenness(r) for r in graphs]),
                np.mean(plain), np.mean(aucs),
            )  # fmt: skip
            label = f"{name}, {how}" + (f" {temperature:g}" if how == "softmax" else "")
            perfect = f"{sum(auc == 1 for auc in aucs)} of {len(aucs)}"
            show(label, *(f"{n:.3f}" for n in numbers), perfect, first=22, width=14)


FORMS: dict[str, dict[str, Any]] = {
    "fedcedar": {},
    "fedcedar, updates": {"features": "updates"},
    "fedcedar, centered": {"features": "centered"},
    "fedcedar-soft": {},
    "fedcedar-as1": {},
    "fedcedar-as2": {},
    "fedcedar-as3": {},
}


def forms(rounds: int, seeds: range) -> None:
    print(f"test accuracy in %, all clients / those in the last round; {rounds} rounds, mean of seeds {list(seeds)}")
    show("", *(f"{n}: {kind}" for n in (3, 4, 5) for kind in ("received", "personal")))
    federations = {(n, s): topology(n, s) for n in (3, 4, 5) for s in seeds}
    for name, fields in FORMS.items():
        cells = []
        for nodes in (3, 4, 5):
            runs = []
            for seed in seeds:
                federation = federations[nodes, seed]
                method = fedkin.method(name.split(",")[0], **fields, **case_study(federation))
                result = fedkin.run(method, federation, rounds=rounds, seed=seed, **RUN)
                inside = [c for c, label in enumerate(result.state["labels"].tolist()) if label >= 0]
                both = [result.history.values(metric, round=rounds) for metric in ("received", "personal")]
                runs.append([100 * statistics.mean(v[c] for c in some) for v in both for some in (v, inside)])
            a = np.mean(runs, 0)
            cells += [f"{a[0]:.1f} / {a[1]:.1f}", f"{a[2]:.1f} / {a[3]:.1f}"]
        show(name, *cells)


def choose(rounds: int, seeds: range) -> None:
    """Validation accuracy alone; test rows are not looked at."""
    settings = [(f"mnist {n}", lambda seed, n=n: topology(n, seed, 0.2), n) for n in (3, 4, 5)]
    settings.append(
        ("digits", lambda seed: fedkin.federate("digits", clients=20, alpha=0.3, seed=seed, validation=0.2), 5)
    )
    federations = {(name, seed): make(seed) for name, make, _ in settings for seed in seeds}
    print(f"validation accuracy in %, received / personal; {rounds} rounds, mean of seeds {list(seeds)}")
    show("", *(name for name, *_ in settings), "mean")
    candidates = [FedCEDAR()] + [
        FedCEDAR(normalize="softmax", features=f, temperature=t)  # type: ignore[arg-type]
        for f, t in product(("centered", "updates"), (0.1, 0.3, 1.0))
    ]
    for candidate in candidates:
        cells = []
        for name, _, clusters in settings:
            pairs = []
            for seed in seeds:
                federation = federations[name, seed]
                method = replace(candidate, clusters=clusters)
                result = fedkin.run(method, federation, rounds=rounds, seed=seed, **RUN)
                personal = statistics.mean(result.history.values("validation", round=rounds).values())
                pairs.append((100 * on_validation(method, federation, result.state, seed), 100 * personal))
            cells.append(np.mean(pairs, 0))
        cells.append(np.mean(cells, 0))
        label = "paper" if candidate.normalize == "sum" else f"{candidate.features} {candidate.temperature:g}"
        show(label, *(f"{a:.2f} / {b:.2f}" for a, b in cells))


def on_validation(method: FedCEDAR, federation: fedkin.Federation, state: State, seed: int) -> float:
    """Mean validation accuracy of the models as sent."""
    net = Network(maker(RUN["model"], federation.shape, federation.classes, seed, {})(0), federation.example)
    rows = method.send(state, torch.arange(len(federation))).own[0]
    return statistics.mean(
        evaluate(net, rows[c], federation.data(c).validation)[0] for c in range(len(federation))
    )  # fmt: skip


def server(clients: int, width: int, repeats: int) -> None:
    print(f"{clients} clients x {width:,} numbers, a fresh process for each line; memory in client models")
    show("", "merge: seconds (processor seconds), each", "send: seconds", "peak extra memory", first=24, width=20)
    for fields in (
        {},
        {"features": "centered", "normalize": "softmax"},
        {"features": "updates"},
        {"clustering": False},
    ):
        arguments = [
            sys.executable,
            __file__,
            "once",
            f"--clients={clients}",
            f"--width={width}",
            f"--repeats={repeats}",
        ]
        arguments += [f"--fields={k}={v}" for k, v in fields.items()]
        print(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout, end="", flush=True)


def once(clients: int, width: int, repeats: int, fields: dict[str, Any]) -> None:
    torch.manual_seed(0)
    method = FedCEDAR(**fields)
    node = torch.arange(clients) % 5
    body = torch.randn(clients, width)
    for k, center in enumerate(torch.randn(5, width)):
        body[node == k] += center
    start = torch.randn(1, width)
    ids = torch.arange(clients)
    state: State = {
        "models": start, "labels": torch.full((clients,), -1), "ids": ids, "mix": torch.full((1, clients), 1 / clients),
        "graph": torch.ones(1, 1), "cosines": torch.ones(1, 1), "parameters": width,
    }  # fmt: skip
    sent = Message(own=(start.expand(clients, -1),))
    replies = Replies(ids, torch.ones(clients, dtype=torch.long), (body,), ids, 0)
    gram(body[:, :1000])  # threads of the linear algebra are started once
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    merges, sends = [], []
    for _ in range(repeats):
        begin, work = time.perf_counter(), time.process_time()
        new = method.merge(state, sent, replies)
        middle, worked = time.perf_counter(), time.process_time()
        method.send(new, ids)
        merges.append((middle - begin, worked - work))
        sends.append(time.perf_counter() - middle)
    extra = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    text = ", ".join(f"{k}={v}" for k, v in fields.items()) or "the paper's form"
    assert not method.clustering or len(set(map(tuple, zip(node.tolist(), new["labels"].tolist())))) == 5
    tries = "  ".join(f"{a:.2f} ({b:.2f})" for a, b in merges)
    show(text[:22], f"{tries:>40}", f"{min(sends):.2f}", f"{extra / (clients * width * 4):.2f}", first=24, width=20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("graph", "forms", "choose", "server", "once"))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--participation", type=float, default=0.3, help="of graph")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--width", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--fields", action="append", default=[])
    a = parser.parse_args()
    if a.part == "graph":
        graph(a.rounds, a.participation)
    elif a.part == "forms":
        forms(a.rounds, range(a.seed, a.seed + a.seeds))
    elif a.part == "choose":
        choose(a.rounds, range(a.seed, a.seed + a.seeds))
    elif a.part == "server":
        server(a.clients, a.width, a.repeats)
    else:
        given = dict(f.split("=") for f in a.fields)
        once(a.clients, a.width, a.repeats, {k: v != "False" if k == "clustering" else v for k, v in given.items()})


if __name__ == "__main__":
    main()
