"""`fedkin bench`: our own leaderboard. Every method on every data set and partition at one fixed budget."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedkin.experiments.carry_out import Job, run_all
from fedkin.experiments.declare import Setting
from fedkin.methods import METHODS
from fedkin.registry import lookup
from fedkin.report.tables import markdown, percent, size
from fedkin.results.folder import prepare
from fedkin.results.store import write_json

if TYPE_CHECKING:
    from rich.console import Console

DATA = {"fashion-mnist": ("cnn2", 0.25), "cifar10": ("cnn2", 0.25), "har": ("har", 0.5)}
PARTITIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "iid": ("iid", {}),
    "pathological": ("pathological", {"classes_per_client": 2}),
    "dirichlet": ("dirichlet", {"alpha": 0.1}),
    "natural": ("by_group", {}),
}
BUDGET = (
    "20 clients (30 people where natural), at most 120 rows each (half to learn from, a tenth to validate, the rest to "
    "test), 10 rounds, everybody takes part, 2 local epochs, batch 16, SGD with rate 0.05; every method with its own "
    "defaults, nothing tuned (DC-PFL aggregates in every round, as the others do)"
)
EPOCHS = 2
# By default DC-PFL counts 5 epochs between aggregations: here that were 3 rounds, and 10 rounds no split.
OPTIONS = dict.fromkeys(("dcpfl", "dcpfl-nola", "dcpfl-nodc"), f",tau={EPOCHS}")


def track(data: str, partition: str) -> Setting | None:
    """None where there is no such thing: only har has natural clients."""
    scheme, options = PARTITIONS[partition]
    if partition == "natural" and data != "har":
        return None
    clients = 30 if partition == "natural" else 20
    return Setting(data, scheme, clients, 120, 10, DATA[data][0], options, 0.4, lr=0.05, epochs=EPOCHS, batch_size=16)


@dataclass(frozen=True)
class Place:
    """One method on the leaderboard."""

    method: str
    rank: float
    """Mean over tracks of its rank by personal accuracy; those that tie share theirs."""
    accuracy: dict[str, float]
    worst_decile: float
    """Mean over tracks of the accuracy of the worst-served tenth of clients."""
    megabytes: float
    """Mean over tracks, both ways, a round and client."""
    seconds: float
    """Mean over tracks of the computing time of a run on this machine."""


def bench(
    *,
    data: Sequence[str] = (),
    partitions: Sequence[str] = (),
    methods: Sequence[str] = (),
    seeds: int = 1,
    out: Path = Path("runs/bench"),
    workers: int = 0,
    console: Console,
) -> list[Place]:
    """Run the leaderboard, print it and write it to `out`; data sets, partitions and methods not named: all."""
    from fedkin.engine.progress import counting
    from fedkin.report.tables import terminal

    data, partitions, methods = data or list(DATA), partitions or list(PARTITIONS), methods or list(METHODS)
    for name in methods:
        lookup(METHODS, name, "method")
    for given, known in ((data, DATA), (partitions, PARTITIONS)):
        for word in given:
            if word not in known:
                raise ValueError(f"bench does not know '{word}'. Known: {', '.join(known)}.")
    tracks = {
        f"{name} {partition}": setting
        for name in data
        for partition in partitions
        if (setting := track(name, partition)) is not None
    }
    jobs = {
        (name, label, seed): Job(name + OPTIONS.get(name, ""), setting, DATA[setting.data][1], seed)
        for label, setting in tracks.items()
        for name in methods
        for seed in range(seeds)
    }
    prepare(out, "experiment")
    with counting("bench", console) as on_progress:
        failed = run_all(list(jobs.values()), out, workers=workers, on_progress=on_progress)
    places = ranked({k: out / "runs" / j.name for k, j in jobs.items() if j.name not in failed})
    header, rows = table(places, list(tracks))
    console.print(terminal("Leaderboard", header, rows, BUDGET))
    lost = [f"{name} on {label}: {failed[j.name]}" for (name, label, _), j in jobs.items() if j.name in failed]
    for line in lost:
        console.print(f"Not run, so not ranked: {line}", markup=False, highlight=False)
    command = f"fedkin bench --data {','.join(data)} --partitions {','.join(partitions)} --seeds {seeds}"
    about = {"command": command, "budget": BUDGET, "seeds": seeds, "not run": lost}
    write_json(out / "leaderboard.json", {**about, "methods": [vars(p) for p in places]})
    text = f"{BUDGET}; seeds: {seeds}.\n\n{markdown(header, rows)}"
    text += "".join(f"\nNot run, so not ranked: {line}\n" for line in lost)
    (out / "leaderboard.md").write_text(text)
    print(f"leaderboard.md and leaderboard.json are in {out}.")
    return places


def ranked(folders: dict[tuple[str, str, int], Path]) -> list[Place]:
    """Methods by mean rank over the tracks that they were all measured on."""
    from scipy.stats import rankdata

    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for (name, label, _), folder in folders.items():
        summary = json.loads((folder / "summary.json").read_text())
        summary["wall"] = json.loads((folder / "cell.json").read_text())["seconds"]
        found.setdefault(name, {}).setdefault(label, []).append(summary)
    tracks = sorted({label for by_track in found.values() for label in by_track})
    whole = [name for name, by_track in found.items() if set(by_track) == set(tracks)]
    accuracy = np.array([[np.mean([s["personal"]["mean"] for s in found[m][t]]) for t in tracks] for m in whole])
    ranks = rankdata(-accuracy.round(6), axis=0).mean(1) if whole else np.empty(0)
    places = []
    for i, name in enumerate(whole):
        runs = [s for t in tracks for s in found[name][t]]
        traffic = [(s["bytes_down"] + s["bytes_up"]) / s["rounds"] / s["clients"] / 1e6 for s in runs]
        places.append(
            Place(
                name,
                float(ranks[i]),
                {t: float(accuracy[i, j]) for j, t in enumerate(tracks)},
                float(np.mean([s["personal"]["worst_decile"] for s in runs])),
                float(np.mean(traffic)),
                float(np.mean([s["wall"] for s in runs])),
            )
        )
    return sorted(places, key=lambda p: (p.rank, p.method))


def table(places: list[Place], tracks: list[str]) -> tuple[list[str], list[list[str]]]:
    header = ["method", "mean rank", *(f"{t} %" for t in tracks), "worst 10 %", "traffic", "seconds"]
    rows = [
        [
            p.method,
            f"{p.rank:.1f}",
            *(percent(p.accuracy[t]) for t in tracks),
            percent(p.worst_decile),
            size(1e6 * p.megabytes),
            f"{p.seconds:.1f}",
        ]
        for p in places
    ]
    return header, rows
