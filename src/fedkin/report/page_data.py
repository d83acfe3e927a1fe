"""Build the data that the page and the figures show, from the runs that were read.

Every number comes from the history: rates rounded to five decimals, mixing weights to ten-thousandths.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.report import compact
from fedkin.report.gathered import SCORES, Gathered
from fedkin.report.read import Run
from fedkin.report.words import class_names, partition_words
from fedkin.results.files import read_json
from fedkin.results.summary import ACCURACY

REFERENCE = "local"
REFERENCE_CLASS = "fedkin.methods.local:Local"
USUAL = ("lr", "epochs", "batch_size", "momentum", "weight_decay")  # settings of training that are always shown
MOST_ROUNDS = 1000  # points of a curve
TABLE_BUDGET = 1_000_000  # numbers in all tables of clients' scores of a page


def page_data(runs: Sequence[Run]) -> dict[str, Any]:
    """Everything that the page shows. Runs that differ only in their seed count as one method."""
    groups = _grouped(runs)
    federations: dict[str, dict[str, Any]] = {}
    differing = _differing([members[0].config for members in groups.values()])
    methods = []
    for name, members in groups.items():
        for run in members:
            run.gathered.check(run.folder)
            found = {**run.gathered.federation(), "classes": class_names(run.config)}
            federations.setdefault(_federation_key(run), found)
        methods.append(_method(name, members, len(groups), differing))
    first = next(iter(groups.values()))[0]
    order = list(federations)
    for method in methods:
        for run in method["runs"]:
            run["federation"] = order.index(run["federation"])
    return {
        "title": _title(groups),
        "headline": _headline(runs),
        "setting": _setting(first.config, first.folder, differing),
        "reference": next((name for name, members in groups.items() if _is_alone(name, members[0].config)), None),
        "federations": list(federations.values()),
        "methods": methods,
    }


def _is_alone(name: str, config: dict[str, Any]) -> bool:
    """Is this training alone, whatever its label is? A method of one's own may be called Local, too."""
    return name.split(",")[0] == REFERENCE or config.get("method", {}).get("class") == REFERENCE_CLASS


def _headline(runs: Sequence[Run]) -> dict[str, Any]:
    """The metric that all these runs are judged by."""
    found = {
        json.dumps({"metric": task["headline"], **{k: task[k] for k in ("higher_is_better", "percent")}})
        for run in runs
        for task in [run.config.get("task", ACCURACY)]
    }
    if len(found) > 1:
        names = ", ".join(sorted(str(json.loads(text)["metric"]) for text in found))
        raise ValueError(f"These runs are judged by different metrics ({names}): make a report for each.")
    out: dict[str, Any] = json.loads(found.pop())
    return out


def _grouped(runs: Sequence[Run]) -> dict[str, list[Run]]:
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(_alike(run.config), []).append(run)
    labels = [members[0].config["label"] for members in groups.values()]
    named: dict[str, list[Run]] = {}
    for label, members in zip(labels, groups.values()):
        name = label if labels.count(label) == 1 else f"{label} ({members[0].folder})"
        named[name] = sorted(members, key=lambda run: run.seed)
    return named


def _alike(config: dict[str, Any]) -> str:
    """A key that runs share if they differ only in their seeds."""
    options = {k: v for k, v in config["options"].items() if k not in ("seed", "engine", "workers", "checkpoint_every")}
    federation = {k: v for k, v in config["federation"].items() if k != "seed"}
    model = {k: v for k, v in config.get("model", {}).items() if k != "start"}
    kept = [config["label"], config.get("method"), config.get("training"), options, federation, model]
    return json.dumps(kept, sort_keys=True)


def _federation_key(run: Run) -> str:
    return str(run.config.get("fingerprint") or run.folder)


def _title(groups: dict[str, list[Run]]) -> str:
    federation = next(iter(groups.values()))[0].config["federation"]
    what = next(iter(groups)) if len(groups) == 1 else f"{len(groups)} methods"
    if federation.get("partition") == "by_group":  # the clients that the data names
        return f"{what} on {_data_name(federation)}, {federation.get('clients', '')} clients"
    return f"{what} on {_data_name(federation)}, {federation.get('partition', 'own')} partition"


def _data_name(federation: dict[str, Any]) -> str:
    """The name of a data set, or of the folder of the user's own data."""
    folder = (federation.get("data_options") or {}).get("folder")
    return Path(folder).name if folder else str(federation.get("data", "own data"))


def _privacy(config: dict[str, Any], folder: Path) -> str:
    """The setting, with epsilon once the run is finished."""
    text = str(config["options"].get("privacy", ""))
    if text and (folder / "summary.json").exists():
        found = read_json(folder / "summary.json").get("privacy", {})
        if "epsilon" in found:
            text += f": ε = {found['epsilon']:.3g} at δ = {found['delta']:g}"
    return text


def _setting(config: dict[str, Any], folder: Path, differing: frozenset[str]) -> list[tuple[str, str]]:
    federation, training, options = config["federation"], config.get("training", {}), config["options"]
    chosen = ", ".join(f"{k} {v}" for k, v in (federation.get("partition_options") or {}).items())
    model = config.get("model", {}).get("name", "")
    rows = [
        ("data", _data_name(federation)),
        ("partition", f"{partition_words(federation.get('partition'))}{f' ({chosen})' if chosen else ''}"),
        ("clients", str(federation.get("clients", ""))),
        ("model", str(model)),
        ("rounds", str(options["rounds"])),
        ("participation", f"{100 * options.get('participation', 1):g} %"),
        ("attack", str(options.get("attack", ""))),
        ("defense", str(options.get("defend", ""))),
        ("privacy", _privacy(config, folder)),
        ("training", ", ".join(_training(training, differing))),
    ]
    return [(k, v) for k, v in rows if v]


def _differing(configs: Sequence[dict[str, Any]]) -> frozenset[str]:
    """The settings of training that are not the same for all methods."""
    trainings = [config.get("training", {}) for config in configs]
    names = {name for training in trainings for name in training}
    return frozenset(name for name in names if any(t.get(name) != trainings[0].get(name) for t in trainings))


def _training(training: dict[str, Any], differing: frozenset[str]) -> Iterator[str]:
    """The settings of local training; the less common ones only if they are used."""
    unused = {"optimizer": "sgd", "schedule": "constant", "augment": "none", "decay_factor": 0.1}
    for name, value in training.items():
        if name in differing:
            yield f"{name.replace('_', ' ')} by method"
        elif name in USUAL or value not in (unused.get(name), 0):
            yield f"{name.replace('_', ' ')} {value if isinstance(value, str) else f'{value:g}'}"


def _method(name: str, runs: list[Run], methods: int, differing: frozenset[str]) -> dict[str, Any]:
    histories = [run.gathered for run in runs]
    first, config = histories[0], runs[0].config
    rounds = shown_rounds(histories)
    by_client = compact.evenly(rounds, TABLE_BUDGET // methods // len(SCORES) // max(1, first.size))
    return {
        "name": name,
        "class": str(config.get("method", {}).get("class", "")).rpartition(":")[2],
        "parameters": {k: v for k, v in config.get("method", {}).items() if k != "class"}
        | {k: v for k, v in config.get("training", {}).items() if k in differing},
        "sees_test": bool(config.get("sees_test")),
        "command": _command(config),
        "environment": {k: v for k, v in config.get("environment", {}).items() if k != "command"},
        "runs": [
            {
                "seed": run.seed,
                "folder": str(run.folder),
                "federation": _federation_key(run),
                "wall": _wall(run.folder),
                **run.gathered.outcome(
                    int(run.config["options"]["rounds"]), run.config.get("task", ACCURACY)["higher_is_better"]
                ),
            }
            for run in runs
        ],
        "rounds": rounds,
        "curves": {metric: _curve([history.scores[metric] for history in histories], rounds) for metric in SCORES},
        "costs": {kind: by_round([history.costs[kind] for history in histories], rounds) for kind in first.costs},
        "clients": {
            "rounds": by_client,
            **{metric: _table(first.scores[metric], first.size, by_client) for metric in SCORES},
        },
        "evaluated": sorted(first.evaluated & set(rounds)),
        "mixing": compact.mixing(first.mixing, compact.MATRIX_BUDGET // methods),
        "facts": compact.facts(first.facts, compact.FACT_BUDGET // methods),
        "parts": {
            name: [compact.rounded(table.get(c)) for c in range(first.size)] for name, table in first.parts.items()
        },
    }


def shown_rounds(histories: Sequence[Gathered]) -> list[int]:
    """The rounds that the page shows: all of them, or of a long run evenly spaced ones. Half of these are rounds after
    which all clients were evaluated."""
    everything = range(1, max(history.done for history in histories) + 1)
    if len(everything) <= MOST_ROUNDS:
        return list(everything)
    evaluated = sorted(set().union(*(history.evaluated for history in histories)))
    return sorted({*compact.evenly(everything, MOST_ROUNDS // 2), *compact.evenly(evaluated, MOST_ROUNDS // 2)})


def _command(config: dict[str, Any]) -> str:
    """The command as a user would type it: without the folder of the program."""
    try:
        words = shlex.split(config.get("environment", {}).get("command", ""))
    except ValueError:
        return str(config["environment"]["command"])
    if not words:
        return ""
    program = Path(words[0]).name
    if program == "__main__.py" and Path(words[0]).parent.name == "fedkin":
        program = "fedkin"
    return shlex.join([program if program == "fedkin" else words[0], *words[1:]])


def _wall(folder: Path) -> float | None:
    """Wall time in seconds, if it was recorded."""
    try:
        lines = (folder / "timing.jsonl").read_text().splitlines()
        return float(sum(json.loads(line)["seconds"] for line in lines))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # the file is missing, or its last line is being written


def _curve(tables: Sequence[dict[int, dict[int, float]]], shown: Sequence[int]) -> dict[str, list[Any]] | None:
    """Means over seeds of the means over clients, and quantiles over the clients of all seeds. With several seeds also
    the standard deviation of these means over seeds."""
    rounds = [round for round in shown if any(round in table for table in tables)]
    if not rounds:
        return None
    out: dict[str, list[Any]] = {"round": rounds, "mean": [], "low": [], "high": [], "min": [], "max": []}
    for round in rounds:
        seeds = [list(t[round].values()) for t in tables if t.get(round)]
        values = np.array([v for seed in seeds for v in seed], float)
        if not len(values):
            numbers: Iterable[Any] = [None] * 5
        else:
            mean = float(np.mean([np.mean(seed) for seed in seeds]))
            low, high = np.quantile(values, [0.1, 0.9])
            numbers = [mean, float(low), float(high), float(values.min()), float(values.max())]
        for key, value in zip(("mean", "low", "high", "min", "max"), numbers):
            out[key].append(compact.rounded(value))
        if len(tables) > 1:
            std = np.std([np.mean(seed) for seed in seeds], ddof=1) if len(seeds) > 1 else None
            out.setdefault("std", []).append(compact.rounded(std))
    return out


def by_round(tables: Sequence[dict[int, float]], shown: Sequence[int]) -> list[float]:
    """The cost from one shown round to the next: in each round the mean over the seeds that have come so far."""
    ends = [max(table, default=0) for table in tables]
    out, since = [], 0
    for until in shown:
        cost = 0.0
        for number in range(since + 1, until + 1):
            found = [table.get(number, 0) for table, end in zip(tables, ends) if number <= end]
            cost += sum(found) / max(1, len(found))
        out.append(float(f"{cost:.6g}"))
        since = until
    return out


def _table(scores: dict[int, dict[int, float]], size: int, rounds: Sequence[int]) -> list[list[Any]]:
    """Scores as [rounds][clients]; None where a client was not evaluated."""
    return [[compact.rounded(scores.get(r, {}).get(c)) for c in range(size)] for r in rounds]
