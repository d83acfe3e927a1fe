"""`compare`: several methods on the same federations, over seeds, with each client's gain over training alone."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
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
from fedkin.report import tables
from fedkin.results.files import relabel, write_bytes, write_json
from fedkin.results.folder import Folder, check, check_label, inside, remove_run
from fedkin.results.sites import REFERENCE, Collected, Draws, Site, answers, gain_of
from fedkin.task import Task, task_of

# Columns of the table for papers, where they have numbers; the CSV file has all.
PAPER = ("method", "personal", "received", "worst 10 %", "gain over local", "95 % interval", "gain/lose", "bytes/round")


@dataclass(frozen=True)
class Line:
    """One method's outcome: means over seeds, and standard deviations over seeds where there are several."""

    method: str
    seeds: int
    personal: float
    personal_std: float | None
    received: float | None
    client_std: float
    worst_decile: float
    gain: float | None
    """Mean over clients of how much better the personal model is than that of `local`, at the same client and seed."""
    gaining: int | None
    losing: int | None
    p_value: float | None
    """p-value of the Wilcoxon signed-rank test over clients: each client counts once, with its mean gain over seeds."""
    bytes_per_round: float
    simulated_seconds: float
    wall_seconds: float
    unmeasured: int = 0
    """Clients that could not be measured after the last round, over all seeds: the means leave them out."""
    validation: float | None = None
    """The personal models on validation examples: use these to choose, not the test scores."""
    gain_low: float | None = None
    gain_high: float | None = None
    """The 95 % interval of the gain for these clients, over draws of their test examples (and of seeds)."""
    one_class: tuple[str, ...] = ()
    """Clients whose personal model predicts one class for every test example, in at least one seed."""
    constant: int = 0
    """Number of such models, over all seeds."""


@dataclass(frozen=True)
class Comparison:
    """Several methods on the same clients: one line for each, and the answer for each client."""

    lines: tuple[Line, ...]
    setting: str
    metric: str = "accuracy"
    """The task's headline metric, in which all results are given."""
    higher_is_better: bool = True
    percent: bool = True
    sites: tuple[Site, ...] = ()
    """The answer for each client; none if the seeds have different clients."""
    named: bool = False
    """Does the data name its clients?"""
    majority_rate: float | None = None
    """Accuracy of always predicting each client's most frequent class, mean over clients."""
    reference: str = REFERENCE
    """The label of training alone, which gains are measured against."""
    no_interval: str = ""
    """Why the mean gains have no intervals; empty if they have."""

    @property
    def header(self) -> tuple[str, ...]:
        unit = " %" if self.percent else ""
        return (
            "method",
            f"personal{unit}",
            f"received{unit}",
            f"validation{unit}",
            "std",
            "worst 10 %",
            "gain over local",
            "95 % interval",
            "gain/lose",
            "p",
            "bytes/round",
            "simulated",
        )

    @property
    def rows(self) -> list[tuple[str, ...]]:
        out: list[tuple[str, ...]] = []
        for line in self.lines:
            compared = line.gain is not None
            out.append(
                (
                    line.method,
                    tables.with_spread(line.personal, line.personal_std, in_percent=self.percent)
                    + (f" ({line.unmeasured} clients missing)" if line.unmeasured else ""),
                    tables.score(line.received, in_percent=self.percent),
                    tables.score(line.validation, in_percent=self.percent),
                    tables.score(line.client_std, in_percent=self.percent),
                    tables.score(line.worst_decile, in_percent=self.percent),
                    self._signed(line.gain),
                    "–"
                    if line.gain_low is None
                    else f"{self._signed(line.gain_low)} to {self._signed(line.gain_high)}",
                    f"{line.gaining}/{line.losing}" if compared else "–",
                    f"{line.p_value:.2g}" if line.p_value is not None else "–",
                    tables.size(line.bytes_per_round),
                    tables.duration(line.simulated_seconds),
                )
            )
        return out

    def _signed(self, value: float | None) -> str:
        if value is None:
            return "–"
        return f"{100 * value:+.2f}" if self.percent else f"{value:+.3g}"

    @property
    def notes(self) -> list[str]:
        """Notes below the table: the majority rate, and models that predict one class."""
        out = []
        if self.metric == "accuracy" and self.majority_rate is not None:
            rate = tables.percent(self.majority_rate)
            out.append(f"Always predicting a client's most frequent class: {rate} %, mean over clients")
        if undefined := [s.name for s in self.sites if all(cell.test is None for cell in s.cells.values())]:
            out.append(f"The {self.metric} is not defined at {tables.some(undefined)}: the means leave them out")
        if any(line.gain is not None and line.gain_low is None for line in self.lines):
            out.append(f"No interval of the gain: {self.no_interval or 'the models of a client were not kept'}")
        constant = [line for line in self.lines if line.one_class]
        if self.named:
            for line in constant:
                where = tables.some(line.one_class)
                out.append(f"{line.method} predicts one class for every test example of {where}")
        elif constant:
            counts = ", ".join(f"{line.method} {line.constant}" for line in constant)
            out.append(f"Personal models that predict one class for every test example: {counts}")
        return out

    def markdown(self) -> str:
        from fedkin.results import sites_tables

        parts = [self.setting, tables.markdown(self.header, self.rows).rstrip()]
        if self.notes:
            parts.append("\n".join(f"- {note}" for note in self.notes))
        if self.sites:
            parts += [sites_tables.markdown(self).rstrip(), "\n".join(f"- {site.advice}" for site in self.sites)]
        return "\n\n".join(parts) + "\n"

    def csv(self) -> str:
        """One line for each method, in full precision."""
        names = [field.name for field in fields(Line)]
        rows = [{**asdict(line), "one_class": "; ".join(line.one_class)} for line in self.lines]
        return tables.csv(["metric", *names], [[self.metric, *(row[name] for name in names)] for row in rows])

    def latex(self) -> str:
        """A table for booktabs: one line for each method, the best in bold; ± is the standard deviation over seeds."""
        rows = self.rows
        kept = [
            i
            for i, name in enumerate(self.header)
            if name.removesuffix(" %") in PAPER or name in PAPER
            if any(row[i] != "–" for row in rows)
        ]
        sign = 1 if self.higher_is_better else -1
        best = max(sign * line.personal for line in self.lines)
        bold = [(i, 1) for i, line in enumerate(self.lines) if sign * line.personal == best]
        return tables.latex([self.header[i] for i in kept], [[row[i] for i in kept] for row in rows], bold)

    def __repr__(self) -> str:
        sign = 1 if self.higher_is_better else -1
        best = max(self.lines, key=lambda line: sign * line.personal)
        score = tables.score(best.personal, in_percent=self.percent) + ("%" if self.percent else "")
        count = "1 method" if len(self.lines) == 1 else f"{len(self.lines)} methods"
        return f"<Comparison of {count}: best {best.method}, {self.metric} {score}; print it for all>"

    def __str__(self) -> str:
        return self.markdown()

    def _repr_html_(self) -> str:
        """For notebooks."""
        from fedkin.report import notebook

        return notebook.comparison(self)

    def to_json(self) -> dict[str, Any]:
        headline = {"metric": self.metric, "higher_is_better": self.higher_is_better, "percent": self.percent}
        return {
            "setting": self.setting,
            "headline": headline,
            "methods": [asdict(line) for line in self.lines],
            "majority_rate": self.majority_rate,
            "clients": [asdict(site) for site in self.sites],
        }


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
    found = [label for label in labels if parse(label)[0] == REFERENCE]
    return next((label for label in found if label == REFERENCE), found[0] if found else REFERENCE)


parse = parse_label


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
