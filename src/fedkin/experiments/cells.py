"""Finished cells as small JSON files: one file for each method in each setting, with all of its seeds.

A file holds what tables, figures and verdicts need: each client's final accuracies, and the parts of the history that
an item asks for. It is enough to continue the work on another machine without the runs themselves.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.experiments.declare import Cell, Setting
from fedkin.results.files import write_bytes
from fedkin.results.history import History

FOLDER = Path("docs/results/cells")
NO_EFFECT = ("evaluate_every",)  # fields of a setting that change no result


@dataclass(frozen=True)
class Job:
    """One run to do: its results depend on nothing else."""

    method: str
    setting: Setting
    seed: int

    @cached_property
    def folder(self) -> str:
        """One folder for each setting."""
        fields = {k: v for k, v in self.setting.changed().items() if k not in NO_EFFECT}
        digest = hashlib.blake2b(json.dumps(fields, sort_keys=True).encode(), digest_size=4).hexdigest()
        return f"{self.setting.data}-{self.setting.partition}-{digest}"

    @cached_property
    def file(self) -> str:
        name, *options = self.method.split(",")
        label = ",".join([name, *sorted(options)])
        slug = "".join(c if c.isalnum() or c in "-=.," else "_" for c in label)
        if len(slug) > 80 or slug != label:
            slug = f"{slug[:80]}-{hashlib.blake2b(label.encode(), digest_size=3).hexdigest()}"
        return slug

    @property
    def name(self) -> str:
        """Name of the folder of its run."""
        return f"{self.folder}/{self.file}/seed-{self.seed}"


def job(cell: Cell, scale: str, seed: int) -> Job | None:
    """The run of a cell; None if the cell is not run at this scale."""
    setting = cell.at(scale)
    return None if setting is None else Job(cell.method.format(epochs=setting.epochs), setting, seed)


class Cells:
    """The stored results in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[Path, dict[str, Any]] = {}

    def path(self, job: Job) -> Path:
        return self.folder / job.folder / f"{job.file}.json"

    def get(self, job: Job, keep: Iterable[str] = ()) -> dict[str, Any] | None:
        """The result of a run, if it is stored with everything in `keep`."""
        path = self.path(job)
        if path not in self._read:
            self._read[path] = json.loads(path.read_text())["runs"] if path.exists() else {}
        found: dict[str, Any] | None = self._read[path].get(str(job.seed))
        if found is None or not _complete(found, job, keep):
            return None
        return found

    @property
    def failures(self) -> dict[str, str]:
        """Names of the runs that failed when they were last tried, with the reason."""
        path = self.folder / "failures.json"
        found: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def note(self, job: Job, failure: str) -> None:
        """Remember that a run failed; an empty text forgets it."""
        found = self.failures
        if failure == found.get(job.name, ""):
            return
        found.pop(job.name, None)
        if failure:
            found[job.name] = failure
        write_bytes(self.folder / "failures.json", (json.dumps(found, indent=1, sort_keys=True) + "\n").encode())

    def put(self, job: Job, result: Mapping[str, Any]) -> None:
        path = self.path(job)
        runs = json.loads(path.read_text())["runs"] if path.exists() else {}
        runs[str(job.seed)] = dict(result)
        fields = {k: v for k, v in job.setting.changed().items() if k not in NO_EFFECT}
        head = f'"method":{_dense(job.method)},\n"setting":{_dense(fields)}'
        lines = ",\n".join(f'"{seed}":{_dense(runs[seed])}' for seed in sorted(runs, key=int))
        write_bytes(path, f'{{{head},\n"runs":{{\n{lines}\n}}}}\n'.encode())
        self._read[path] = runs


def _complete(result: Mapping[str, Any], job: Job, keep: Iterable[str]) -> bool:
    kept = result.get("kept", {})
    if not set(keep) <= kept.keys():
        return False
    return not {"curve", "time"} & set(keep) or kept["curve"]["every"] == job.setting.evaluate_every


def _dense(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), default=dict)


def extract(folder: Path, setting: Setting, keep: Iterable[str], seconds: float) -> dict[str, Any]:
    """What to keep of a finished run."""
    history = History.load(folder)
    summary = json.loads((folder / "summary.json").read_text())
    last, clients = summary["rounds"], summary["clients"]
    out: dict[str, Any] = {"seconds": float(f"{seconds:.3g}")}
    for metric in ("personal", "received", "validation"):
        values = history.values(metric, round=last)
        if values:
            out[metric] = [short(values.get(c)) for c in range(clients)]
    out["tests"] = [r.value for r in history.records if r.round == 0 and r.metric == "test_examples"]
    out["bytes"] = [summary["bytes_down"], summary["bytes_up"]]
    out["flops"] = summary["flops"]
    out["kld"] = short(summary.get("mean_kld"))
    wanted = set(keep) | ({"curve"} if setting.evaluate_every else set())
    out["kept"] = {name: _part(name, history, setting, clients) for name in sorted(wanted)}
    if "lost_rounds" in summary and (summary["lost_rounds"] or summary.get("unmeasured")):
        out["troubles"] = {k: summary[k] for k in ("lost_rounds", "unmeasured")}
    return out


def _part(name: str, history: History, setting: Setting, clients: int) -> Any:
    if name in ("curve", "time"):
        rounds = history.rounds("personal")
        if name == "curve":
            return {"every": setting.evaluate_every, "rounds": rounds, **_curves(history, rounds)}
        return _time(history, rounds)
    if name == "labels":
        found = {r.client: r.value for r in history.select("labels")}
        return [found[c] for c in range(clients)]
    values = [(r.round, r.value) for r in history.select(name) if r.client is None]
    if name == "mixing":
        last = values[-1][1] if values else None
        return _rounded(next(iter(last.values())) if isinstance(last, dict) else last)
    return [[r, _rounded(v)] for r, v in values]


def _curves(history: History, rounds: list[int]) -> dict[str, list[float | None]]:
    out: dict[str, list[float | None]] = {}
    for metric in ("personal", "personal_loss", "received"):
        by_round: dict[int, list[float]] = {r: [] for r in rounds}
        for record in history.select(metric, scope="all"):
            if record.value is not None:
                by_round[record.round].append(record.value)
        if any(by_round.values()):
            out[metric] = [short(np.mean(v)) if v else None for v in by_round.values()]
            if metric != "received":
                out[f"{metric}_std"] = [short(np.std(v)) if v else None for v in by_round.values()]
    return out


def _time(history: History, rounds: list[int]) -> dict[str, list[float | None]]:
    """Simulated seconds, and rounds in which any client sent something, until the end of each measured round."""
    last = max(rounds)
    out: dict[str, list[float | None]] = {}
    for name in ("communication_seconds", "compute_seconds"):
        each = np.zeros(last + 1)
        for record in history.select(name):
            if record.round <= last:
                each[record.round] += record.value
        out[name] = [short(each.cumsum()[r]) for r in rounds]
    sent = {record.round for record in history.select("bytes_up") if record.value}
    out["sent"] = [float(sum(1 for s in sent if s <= r)) for r in rounds]
    return out


def short(value: Any) -> float | None:
    """Round to five significant digits; None for anything that is not a finite number."""
    return None if value is None or not isfinite(value) else float(f"{value:.5g}")


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(v) for v in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
