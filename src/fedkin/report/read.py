"""Read run folders and build the data that the page and the figures show.

Every number comes from the history: rates rounded to five decimals, mixing weights to ten-thousandths. If a long run
of many clients would make the page too large, the matrices of some rounds are left out.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.results.files import read_json
from fedkin.results.history import ALL, PARTICIPANTS, History, Record
from fedkin.results.summary import ACCURACY

REFERENCE = "local"
REFERENCE_CLASS = "fedkin.methods.local:Local"
USUAL = ("lr", "epochs", "batch_size", "momentum", "weight_decay")  # settings of training that are always shown
WEIGHT_SCALE = 10_000  # mixing weights are stored as integers; this one means 1
MATRIX_BUDGET = 800_000  # numbers in all mixing matrices of a page
FACT_BUDGET = 2_000_000  # characters of everything that the methods report
MOST_ANSWERS = 20  # clients whose answers are listed one by one
PART = "model_weight_"  # metrics that say how much a client's model relies on each of its parts
SCORES = ("personal", "received", "personal_loss")
# Not shown as a chart of its own: it repeats other records, or another panel shows it.
SHOWN_ELSEWHERE = {"mixing", "attention", "compute_seconds", "communication_seconds", "mean_kld", "true_edges"}


class NoRun(FileNotFoundError):
    """There is no run to show, at least not yet."""


@dataclass(frozen=True)
class Run:
    folder: Path
    config: dict[str, Any]
    history: History

    @property
    def seed(self) -> int:
        return int(self.config["options"]["seed"])


def folders(paths: Sequence[str | Path]) -> list[Path]:
    """Find the run folders at or below these paths, in the order in which the page shows them."""
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.is_dir():
            raise FileNotFoundError(f"{path} is not a folder. Give the --out folder of a run or of a comparison.")
        inside = [path] if _is_run(path) else [c.parent for c in path.rglob("config.json") if _is_run(c.parent)]
        inside.sort(key=lambda f: ((f / "config.json").stat().st_mtime_ns, str(f)))
        if (path / "comparison.json").exists():
            with understood([path]):
                named = [line["method"] for line in read_json(path / "comparison.json").get("methods", [])]
                rank = {name: i for i, name in enumerate(named)}
                inside.sort(key=lambda f: rank.get(read_json(f / "config.json").get("label"), len(rank)))
        found += [f for f in inside if f not in found]
    if not found:
        given = ", ".join(map(str, paths))
        raise NoRun(f"No run in {given}: a run folder has a config.json and a history.jsonl with at least one record.")
    return found


def _is_run(folder: Path) -> bool:
    history = folder / "history.jsonl"
    return (folder / "config.json").exists() and history.exists() and history.stat().st_size > 0


def config(folder: Path) -> dict[str, Any]:
    """A run's config.json, with the types of its main parts checked."""
    found = read_json(folder / "config.json", constant=str)  # the page's JSON cannot hold infinity as a number
    for part in ("label", "options", "federation"):
        if part not in found:
            raise ValueError(f"{folder / 'config.json'} has no '{part}': this is not the folder of a fedkin run.")
    if not all(isinstance(found.get(part, {}), dict) for part in ("options", "federation", "method", "training")):
        raise ValueError(f"{folder / 'config.json'} is damaged: restore it from a copy.")
    return found


def load(folder: Path) -> Run:
    return Run(folder, config(folder), History.load(folder))


def label(folder: Path) -> str:
    return str(config(folder)["label"])


@contextmanager
def understood(paths: Sequence[str | Path]) -> Iterator[None]:
    """Turn errors that unexpected content of a run's files causes in this block into one that names the folders."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise ValueError(
            f"{', '.join(map(str, paths))}: config.json or history.jsonl has content that fedkin did not write "
            f"({type(error).__name__}: {error}). Restore it from a copy, or leave this run out."
        ) from error


# ---- the page's data
def page_data(runs: Sequence[Run]) -> dict[str, Any]:
    """Everything that the page shows. Runs that differ only in their seed count as one method."""
    groups = _grouped(runs)
    federations: dict[str, dict[str, Any]] = {}
    methods = []
    for name, members in groups.items():
        histories = [_RunData(run) for run in members]
        for run, history in zip(members, histories):
            federations.setdefault(_federation_key(run), history.federation())
        methods.append(_method(name, members, histories, len(groups)))
    first = next(iter(groups.values()))[0]
    order = list(federations)
    for method in methods:
        for run in method["runs"]:
            run["federation"] = order.index(run["federation"])
    return {
        "title": _title(groups),
        "headline": _headline(runs),
        "setting": _setting(first.config, first.folder),
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


def answers(paths: Sequence[str | Path]) -> list[dict[str, Any]]:
    """What a comparison found for each of its clients; empty for other folders."""
    files = [Path(path) / "comparison.json" for path in paths]
    found: list[dict[str, Any]] = (
        read_json(files[0]).get("clients", []) if len(files) == 1 and files[0].exists() else []
    )
    return found if len(found) <= MOST_ANSWERS else []


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
    return f"{what} on {federation.get('data', 'own data')}, {federation.get('partition', 'own')} partition"


def _privacy(config: dict[str, Any], folder: Path) -> str:
    """The setting, with epsilon once the run is finished."""
    text = str(config["options"].get("privacy", ""))
    if text and (folder / "summary.json").exists():
        found = read_json(folder / "summary.json").get("privacy", {})
        if "epsilon" in found:
            text += f": ε = {found['epsilon']:.3g} at δ = {found['delta']:g}"
    return text


def _setting(config: dict[str, Any], folder: Path) -> list[tuple[str, str]]:
    federation, training, options = config["federation"], config.get("training", {}), config["options"]
    chosen = ", ".join(f"{k} {v}" for k, v in (federation.get("partition_options") or {}).items())
    model = config.get("model", {}).get("name", "")
    rows = [
        ("data", str(federation.get("data", "own"))),
        ("partition", f"{federation.get('partition', 'own')}{f' ({chosen})' if chosen else ''}"),
        ("clients", str(federation.get("clients", ""))),
        ("model", str(model)),
        ("rounds", str(options["rounds"])),
        ("participation", f"{100 * options.get('participation', 1):g} %"),
        ("attack", str(options.get("attack", ""))),
        ("defense", str(options.get("defend", ""))),
        ("privacy", _privacy(config, folder)),
        ("training", ", ".join(_training(training))),
    ]
    return [(k, v) for k, v in rows if v]


def _training(training: dict[str, Any]) -> Iterator[str]:
    """The settings of local training; the less common ones only if they are used."""
    unused = {"optimizer": "sgd", "schedule": "constant", "augment": "none", "decay_factor": 0.1}
    for name, value in training.items():
        if name in USUAL or value not in (unused.get(name), 0):
            yield f"{name.replace('_', ' ')} {value if isinstance(value, str) else f'{value:g}'}"


def _method(name: str, runs: list[Run], histories: list[_RunData], methods: int) -> dict[str, Any]:
    first = histories[0]
    return {
        "name": name,
        "class": str(runs[0].config.get("method", {}).get("class", "")).rpartition(":")[2],
        "parameters": {k: v for k, v in runs[0].config.get("method", {}).items() if k != "class"},
        "sees_test": bool(runs[0].config.get("sees_test")),
        "command": _command(runs[0].config),
        "environment": {k: v for k, v in runs[0].config.get("environment", {}).items() if k != "command"},
        "runs": [
            {
                "seed": run.seed,
                "folder": str(run.folder),
                "federation": _federation_key(run),
                **history.outcome(),
            }
            for run, history in zip(runs, histories)
        ],
        "curves": {metric: _curve([history.scores[metric] for history in histories]) for metric in SCORES},
        "costs": {kind: _mean_by_round([history.costs[kind] for history in histories]) for kind in first.costs},
        "clients": {metric: _table(first.scores[metric], first.size, first.done) for metric in SCORES},
        "evaluated": sorted(first.evaluated),
        "mixing": _mixing(first.mixing, MATRIX_BUDGET // methods),
        "facts": _facts(first.facts, FACT_BUDGET // methods),
        "parts": {name: [_number(table.get(c)) for c in range(first.size)] for name, table in first.parts.items()},
    }


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


class _RunData:
    """A history's records, sorted by what they are about."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.planned = int(run.config["options"]["rounds"])
        self.facts: dict[str, list[tuple[int, Any]]] = {}
        self.mixing: list[tuple[int, Any]] = []
        self.scores: dict[str, dict[int, dict[int, float]]] = {metric: {} for metric in SCORES}
        self.evaluated: set[int] = set()
        """Rounds after which all clients were evaluated."""
        self._evaluated: set[tuple[int, str]] = set()
        self.costs: dict[str, dict[int, float]] = {k: {} for k in ("down", "up", "flops", "compute", "communication")}
        self.dropped: list[tuple[int, int | None, str]] = []
        self.outliers: Counter[int] = Counter()
        """In how many rounds the defense named a client."""
        self.about: dict[str, dict[int, Any]] = {}
        self.parts: dict[str, dict[int, float]] = {}
        """How much each client's model relies on each of its parts, at the last measurement."""
        self.edges: Any = None
        self.mean_kld: float | None = None
        self.done = 0
        for record in run.history.records:
            self._take(record)
        known = [client for table in self.about.values() for client in table]
        self.size = max([*known, -1]) + 1
        if max(self.size, self.done) > len(run.history.records):  # each client and each round has a record
            raise ValueError(f"{run.folder / 'history.jsonl'} is damaged: it has clients or rounds that do not exist.")

    def _take(self, record: Record) -> None:
        round, client, metric, value, scope = record
        self.done = max(self.done, round)
        if metric in self.scores and client is not None:
            if scope not in (ALL, PARTICIPANTS) or not round:
                return  # it is not a score of the state after a round, so it does not belong on a curve
            table = self.scores[metric].setdefault(round, {})
            if scope == ALL and (round, metric) not in self._evaluated:
                table.clear()
                self._evaluated.add((round, metric))
                self.evaluated.add(round)
            if value is not None:
                table[client] = value
        elif metric.startswith(PART) and client is not None:
            if scope == ALL and value is not None:
                self.parts.setdefault(metric.removeprefix(PART), {})[client] = value
        elif round == 0 and client is not None:
            self.about.setdefault(metric, {})[client] = value
        elif metric in ("bytes_down", "bytes_up", "flops") and client is not None:
            kind = metric.removeprefix("bytes_")
            self.costs[kind][round] = self.costs[kind].get(round, 0) + (value or 0)
        elif metric in ("compute_seconds", "communication_seconds"):
            self.costs[metric.removesuffix("_seconds")][round] = value or 0
        elif metric == "dropped":
            self.dropped.append((round, client, str(value)))
        elif metric == "outlier" and client is not None:
            self.outliers[client] += 1
        elif metric == "mixing":
            self.mixing.append((round, value))
        elif metric == "true_edges":
            self.edges = value
        elif metric == "mean_kld":
            self.mean_kld = value
        elif client is None and metric not in SHOWN_ELSEWHERE:
            self.facts.setdefault(metric, []).append((round, value))

    def federation(self) -> dict[str, Any]:
        names = self.about.get("name", {})

        def column(metric: str) -> list[Any] | None:
            table = self.about.get(metric)
            return [table.get(c) for c in range(self.size)] if table else None

        return {
            "names": [str(names.get(c, f"client {c}")) for c in range(self.size)],
            "train": column("train_examples"),
            "validation": column("validation_examples"),
            "test": column("test_examples"),
            "labels": column("labels"),
            "group": column("group"),
            "edges": self.edges,
            "mean_kld": self.mean_kld,
        }

    def outcome(self) -> dict[str, Any]:
        """The results of a run: after its last round, or after the latest one if it is not finished."""
        out: dict[str, Any] = {
            "rounds": self.done,
            "planned": self.planned,
            "finished": self.done >= self.planned and self.planned in self.evaluated,
            "down": sum(self.costs["down"].values()),
            "up": sum(self.costs["up"].values()),
            "flops": sum(self.costs["flops"].values()),
            "compute": sum(self.costs["compute"].values()),
            "communication": sum(self.costs["communication"].values()),
            "wall": _wall(self.run.folder),
            "dropped": len(self.dropped),
            "dropped_first": [list(d) for d in self.dropped[:20]],
            "outliers": [list(o) for o in sorted(self.outliers.items(), key=lambda o: (-o[1], o[0]))[:20]],
        }
        for metric in ("personal", "received"):
            measured = self.scores[metric]
            if not measured:
                continue
            last = max(measured)
            values = np.array(list(measured[last].values()), float)
            if len(values):
                higher = self.run.config.get("task", ACCURACY)["higher_is_better"]
                out[metric] = {"round": last, **_spread(values, higher)}
                out[f"last_{metric}"] = [_number(measured[last].get(c)) for c in range(self.size)]
        return out


def _spread(values: np.ndarray[Any, Any], higher_is_better: bool = True) -> dict[str, float]:
    worst = np.sort(values if higher_is_better else -values)[: max(1, int(np.ceil(len(values) / 10)))]
    return {
        "mean": float(values.mean()),
        "std": float(values.std()),
        "worst_decile": float(worst.mean() if higher_is_better else -worst.mean()),
        "clients": len(values),
    }


def _wall(folder: Path) -> float | None:
    """Wall time in seconds, if it was recorded."""
    try:
        lines = (folder / "timing.jsonl").read_text().splitlines()
        return float(sum(json.loads(line)["seconds"] for line in lines))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # the file is missing, or its last line is being written


def _number(value: Any) -> Any:
    return round(value, 5) if isinstance(value, float) else value


def _curve(tables: Sequence[dict[int, dict[int, float]]]) -> dict[str, list[Any]] | None:
    """Means over seeds of the means over clients, and quantiles over the clients of all seeds. With several seeds also
    the standard deviation of these means over seeds."""
    rounds = sorted(set().union(*tables))
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
            out[key].append(_number(value))
        if len(tables) > 1:
            spread = np.std([np.mean(seed) for seed in seeds], ddof=1) if len(seeds) > 1 else None
            out.setdefault("std", []).append(_number(spread))
    return out


def _mean_by_round(tables: Sequence[dict[int, float]]) -> list[float]:
    last = max([0, *(round for table in tables for round in table)])
    return [
        float(f"{np.mean([t.get(r, 0) for t in tables if r <= max(t, default=0)]):.6g}") for r in range(1, last + 1)
    ]


def _table(scores: dict[int, dict[int, float]], size: int, rounds: int) -> list[list[Any]]:
    """Scores as [rounds][clients]; None where a client was not evaluated."""
    return [[_number(scores.get(r, {}).get(c)) for c in range(size)] for r in range(1, rounds + 1)]


def _mixing(frames: list[tuple[int, Any]], budget: int) -> dict[str, Any] | None:
    """Store each distinct matrix once, and in it each distinct row once."""
    matrices: list[dict[str, Any]] = []
    known: dict[str, int] = {}
    out: list[dict[str, Any]] = []
    kept = _thinned(frames, lambda value: sum(_distinct(m) for m in _parts(value).values()), budget)
    for round, value in kept:
        parts: dict[str, int] = {}
        for name, matrix in _parts(value).items():
            packed = _packed(matrix)
            key = json.dumps(packed)
            if key not in known:
                known[key] = len(matrices)
                matrices.append(packed)
            parts |= dict.fromkeys(name.split(", "), known[key])  # layers with the same matrix share an entry
        out.append({"round": round, "parts": parts})
    return {"matrices": matrices, "frames": out, "written": len(frames)} if out else None


def _parts(value: Any) -> dict[str, list[list[float]]]:
    return value if isinstance(value, dict) else {"model": value}


def _packed(matrix: list[list[float]]) -> dict[str, Any]:
    whole = [tuple(round(WEIGHT_SCALE * (w or 0)) for w in row) for row in matrix]
    rows: dict[tuple[int, ...], int] = {}
    of = [rows.setdefault(row, len(rows)) for row in whole]
    return {"rows": [list(row) for row in rows], "of": of}


def _distinct(matrix: list[list[float]]) -> int:
    return len({tuple(row) for row in matrix}) * len(matrix)


def _facts(facts: dict[str, list[tuple[int, Any]]], budget: int) -> dict[str, list[list[Any]]]:
    out = {}
    for metric, rows in facts.items():
        plain = [(round, _compact(value)) for round, value in rows]
        kept = _thinned(plain, lambda value: len(json.dumps(value, separators=(",", ":"))), budget // 4)
        out[metric] = [[round, value] for round, value in kept]
    return out


def _compact(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, list):
        return [_compact(v) for v in value]
    if isinstance(value, dict):
        return {k: _compact(v) for k, v in value.items()}
    return value


def _thinned(frames: list[tuple[int, Any]], cost: Callable[[Any], int], budget: int) -> list[tuple[int, Any]]:
    """Evenly spaced rounds, always with the first and the last, as many as the budget allows."""
    total = sum(cost(value) for _, value in frames)
    if total <= budget or len(frames) <= 2:
        return frames
    count = max(2, int(len(frames) * budget / total))
    return [frames[i] for i in sorted(set(np.linspace(0, len(frames) - 1, count).round().astype(int).tolist()))]
