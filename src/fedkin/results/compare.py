"""`compare`: several methods on the same federations, over seeds, with each client's gain over training alone."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.data.federation import Federation
from fedkin.engine.loop import run
from fedkin.engine.options import Options, settled
from fedkin.engine.signals import interruptible, stoppable
from fedkin.engine.trackers import Tracker
from fedkin.methods import method as by_name
from fedkin.methods import split_training
from fedkin.protocol import Method, Training
from fedkin.registry import parse_label
from fedkin.results.comparison import Comparison, Line
from fedkin.results.files import relabel, write_bytes, write_json
from fedkin.results.folder import Folder, check, check_label, inside, remove_run
from fedkin.results.sites import REFERENCE, Collected, Draws, answers, gain_of
from fedkin.task import Task, task_of


def compare(
    methods: Sequence[str],
    federations: Callable[[int], Federation] | Federation,
    *,
    seeds: int = 1,
    first_seed: int = 0,
    out: str | Path | None = None,
    fresh: bool = False,
    names: Mapping[str, str] | None = None,
    setting: str = "",
    tracker: Callable[[str], Sequence[Tracker]] = lambda label: (),
    **settings: Any,
) -> Comparison:
    """Run every method with every seed. `federations(seed)` makes the data of a seed; methods are names, with options
    after commas: `fedprox,mu=1`, or `fedprox,mu=1,lr=0.1` where a method trains with its own settings. `names` are
    their labels in tables and figures. With `out`, each run has its folder and finished ones are not run again, unless
    `fresh` removes them first."""
    parsed = _methods(methods)
    trainings = {label: _training(label, settings) for label in methods}
    shown = {label: (names or {}).get(label, label) for label in methods}
    summaries: dict[str, list[dict[str, Any]]] = {label: [] for label in methods}
    collected = {label: Collected() for label in methods}
    seen: list[Federation] = []
    wall: dict[str, float] = dict.fromkeys(methods, 0.0)
    with contextlib.ExitStack() as stack:
        stack.enter_context(stoppable())
        if out is not None:
            stack.enter_context(Folder(out, "comparison"))
            if fresh:
                start_over(out, methods)
        for seed in range(first_seed, first_seed + seeds):
            with interruptible():
                federation = federations if isinstance(federations, Federation) else federations(seed)
            seen.append(federation)
            for method in parsed.values():  # one that cannot learn this is refused before any other has run
                task_of(settings.get("task"), federation, method)
            for label, method in parsed.items():
                folder = None if out is None else inside(out, check_label(label), f"seed-{seed}")
                begin = time.perf_counter()
                result = run(
                    method,
                    federation,
                    seed=seed,
                    label=shown[label],
                    out=folder,
                    trackers=tracker(f"{shown[label]}, seed {seed}"),
                    **{**settings, **trainings[label]},
                )
                if folder is not None:
                    relabel(folder, shown[label])
                wall[label] += time.perf_counter() - begin
                summaries[label].append(result.summary)
                collected[label].add(result, federation)
        with interruptible():
            comparison = _compared(shown, collected, summaries, wall, seen, result.task, setting)
        if out is not None:
            write_json(Path(out) / "comparison.json", comparison.to_json())
            for name, content in _tables(comparison).items():
                if content:
                    write_bytes(Path(out) / name, content.encode())
                else:  # of an earlier comparison in this folder
                    (Path(out) / name).unlink(missing_ok=True)
    return comparison


def _tables(comparison: Comparison) -> dict[str, str]:
    """Both tables as files: the methods, and each method at each client, if all seeds have the same clients."""
    from fedkin.results import sites_tables

    return {
        "comparison.md": comparison.markdown(),
        "comparison.csv": comparison.csv(),
        "comparison.tex": comparison.latex(),
        "clients.csv": sites_tables.csv(comparison) if comparison.sites else "",
        "clients.tex": sites_tables.latex(comparison) if comparison.sites else "",
    }


def _compared(
    shown: Mapping[str, str],
    collected: Mapping[str, Collected],
    summaries: Mapping[str, Sequence[Mapping[str, Any]]],
    wall: Mapping[str, float],
    federations: Sequence[Federation],
    task: Task,
    setting: str,
) -> Comparison:
    """The comparison from the results of the runs; methods by their labels in tables."""
    named = {shown[label]: found for label, found in collected.items()}
    same = _same_clients(federations)
    alone = _alone(collected)
    reference = shown.get(alone, alone)
    draws = Draws(named if same else {}, len(federations[0]), task, reference)
    lines = [
        _line(shown[label], summaries[label], found, collected.get(alone), draws, wall[label], same=same)
        for label, found in collected.items()
    ]
    first = federations[0]
    rates = [fed.majority_rate(c) for fed in federations for c in range(len(fed))] if first.classes else []
    return Comparison(
        tuple(lines),
        setting,
        **next(iter(summaries.values()))[0]["headline"],
        sites=answers(named, federations, task, draws) if same else (),
        named=first.names != tuple(f"client {i}" for i in range(len(first))),
        majority_rate=float(np.mean(rates)) if rates else None,
        reference=reference,
        no_interval=draws.no_interval(first.names) if same else "the seeds have different clients",
    )


def _same_clients(federations: Sequence[Federation]) -> bool:
    """Do all seeds have the same clients with the same examples? A random partition draws new ones for each seed."""
    first = federations[0]
    return all(fed is first or fed.description.get("partition") == "by_group" for fed in federations)


def start_over(out: str | Path, methods: Sequence[str]) -> None:
    """Remove the runs of these methods from the folder of a comparison: all seeds, and nothing that is not theirs."""
    found = []
    for label in methods:
        folder = inside(out, check_label(label))
        if folder.is_dir():
            names = [path.name for path in folder.iterdir() if re.fullmatch(r"seed-\d+", path.name)]
            found += [inside(out, folder.name, name) for name in sorted(names)]
    for path in found:
        check(path, "run")
    for path in found:
        remove_run(path)


def _methods(labels: Sequence[str]) -> dict[str, Method]:
    """The named methods, by label. Every name is checked before anything runs."""
    if not labels:
        raise ValueError("compare needs at least one method.")
    folders: dict[str, str] = {}
    for label in labels:
        if label in folders.values():
            raise ValueError(f"{label} is named twice: give each method once.")
        other = folders.setdefault(check_label(label), label)
        if other != label:
            raise ValueError(
                f"'{other}' and '{label}' would share the folder {check_label(label)}: compare them separately."
            )
    return {label: by_name(split_training(label)[0]) for label in labels}


def _training(label: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `run` that hold for this method only. A wrong value is refused before anything runs."""
    own = split_training(label)[1]
    settled(Options(), settings.get("training") or Training(), own)
    return own


def _alone(labels: Iterable[str]) -> str:
    """The label of training alone: `local`, else the first with settings of its own, such as `local,lr=0.1`."""
    found = [label for label in labels if parse_label(label)[0] == REFERENCE]
    return next((label for label in found if label == REFERENCE), found[0] if found else REFERENCE)


def _line(
    label: str,
    summaries: Sequence[Mapping[str, Any]],
    found: Collected,
    reference: Collected | None,
    draws: Draws,
    wall: float,
    *,
    same: bool,
) -> Line:
    personal = [s["personal"]["mean"] for s in summaries]
    received = [s["received"]["mean"] for s in summaries if "received" in s]
    gain = gaining = losing = p = None
    low, high = None, None
    if reference is not None and reference is not found:
        clients = sorted({client for seed in found.test for client in seed})
        # client 0 of another seed is another client, unless the data names its clients
        seeds = [(found, reference)] if same else list(zip(found.by_seed(), reference.by_seed()))
        each = [gain_of(one, other, client, draws.sign) for one, other in seeds for client in clients]
        difference = np.array([value for value in each if value is not None])
        if len(difference):
            gain = float(difference.mean())
            gaining, losing = int((difference > 0).sum()), int((difference < 0).sum())
            p = paired_test(difference)
        low, high = draws.mean_gain(label, len(clients)) or (None, None)
    validation = [value for seed in found.validation for value in seed.values() if value is not None]
    return Line(
        method=label,
        seeds=len(summaries),
        personal=float(np.mean(personal)),
        personal_std=float(np.std(personal, ddof=1)) if len(personal) > 1 else None,
        received=float(np.mean(received)) if received else None,
        client_std=float(np.mean([s["personal"]["std"] for s in summaries])),
        worst_decile=float(np.mean([s["personal"]["worst_decile"] for s in summaries])),
        gain=gain,
        gaining=gaining,
        losing=losing,
        p_value=p,
        bytes_per_round=float(np.mean([(s["bytes_down"] + s["bytes_up"]) / s["rounds"] for s in summaries])),
        simulated_seconds=float(np.mean([s["simulated_seconds"]["total"] for s in summaries])),
        wall_seconds=wall,
        unmeasured=sum(s.get("unmeasured", 0) for s in summaries),
        validation=float(np.mean(validation)) if validation else None,
        gain_low=low,
        gain_high=high,
        one_class=tuple(dict.fromkeys(name for s in summaries for name in s.get("one_class", ()))),
        constant=sum(len(s.get("one_class", ())) for s in summaries),
    )


def paired_test(difference: np.ndarray[Any, Any]) -> float:
    """Two-sided Wilcoxon signed-rank test that the median gain is zero."""
    from scipy.stats import wilcoxon

    if not np.any(difference):
        return 1.0
    return float(wilcoxon(difference).pvalue)
