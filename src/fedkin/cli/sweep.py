"""`fedkin sweep METHOD --grid lr=0.01,0.1 …`: try the settings of a small grid and choose on validation examples."""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedkin.cli import config as configs
from fedkin.cli import flags as parsing
from fedkin.cli import settings
from fedkin.cli.flags import Part, UserError
from fedkin.engine import signals

ABOUT = """\
Run a method with every combination of the values in --grid, and choose the best by the mean over clients of the
headline metric (accuracy, unless --headline says otherwise) of the personal models on validation examples, after the
last round. Test examples play no part in the choice; the test result of the chosen combination is printed at the end,
with the command to run it.

A grid names fields of the method or of the training:

fedkin sweep fedprox --grid mu=0.1,1 --grid lr=0.01,0.05"""


@dataclass(frozen=True)
class SweepFlags:
    grid: tuple[str, ...] = ()
    """Values to try, as field=value,value,…; give it once for each field."""
    seeds: int = 1
    """Number of runs of each combination. The choice is by their mean."""


@dataclass(frozen=True)
class Trial:
    """One combination of the grid."""

    fields: dict[str, Any]
    training: dict[str, Any]
    validation: float
    """Mean over seeds and clients, after the last round."""
    test: float
    """The same on test examples. Shown for the chosen combination only."""
    metric: str = "accuracy"
    higher_is_better: bool = True
    percent: bool = True

    @property
    def values(self) -> dict[str, Any]:
        return {**self.fields, **self.training}

    @property
    def rank(self) -> float:
        """Lower is better."""
        return -self.validation if self.higher_is_better else self.validation


def parse_search(words: list[str], own: Part, about: str) -> tuple[str, configs.Config, Any]:
    """Parse a command that searches settings of one METHOD, and is called like its own flags: `sweep` or `tune`."""
    names, rest = parsing.split_words(words)
    config = configs.read(rest)
    names = names or list(config.methods)
    if len(names) != 1 and not parsing.wants_help(rest):
        raise UserError(f"{own.name} takes one METHOD before the flags; given: {' '.join(names) or 'none'}.")
    label = names[0] if names else ""
    if label:
        label, config = configs.with_training(label, config)
    parts = [own, *settings.parts(rest, config)]
    flags, extra = parsing.parse(rest, parts, f"fedkin {own.name} METHOD", about, config.values)
    if extra:
        raise UserError(f"'{extra[0]}' is not expected here: METHOD comes first, then flags with their values.")
    if not flags.data.validation > 0:
        raise UserError(f"{own.name} chooses on validation examples: give --validation a value above 0.")
    return label, config, flags


def command(words: list[str]) -> int:
    label, config, flags = parse_search(words, Part("sweep", SweepFlags(), "grid"), ABOUT)
    if not flags.sweep.grid:
        raise UserError("sweep needs at least one --grid, such as --grid lr=0.01,0.05")
    if flags.sweep.seeds < 1:
        raise UserError(f"--seeds {flags.sweep.seeds}: at least one seed is needed.")
    plans = _plans(label, config, flags)
    with signals.stoppable():  # a signal ends a run, never the writing of the tables
        trials = sorted(_kept_trials(label, plans, flags), key=lambda trial: trial.rank)
    best = trials[0]
    again = command_again(label, best, words, {"grid"})
    if flags.output.json:
        print(json.dumps({"best": asdict(best), "command": again, "trials": _plain(trials)}, indent=2))
        return 0
    from fedkin.report.tables import score

    _show(label, trials)
    chosen = ", ".join(f"{k}={v}" for k, v in best.values.items())
    unit = " %" if best.percent else ""
    print(f"Best on validation: {chosen}. Its test {best.metric}: {score(best.test, in_percent=best.percent)}{unit}.")
    print(f"To run it: {again}")
    print(f"In a comparison: fedkin compare local {in_label(label, best, words)} …")
    if flags.output.out is not None:
        print(f"All runs and sweep.json, .csv and .tex are in {flags.output.out}.")
    return 0


def grid(given: Sequence[str], method: Any) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """Values to try for fields of the method, and for fields of the training."""
    from fedkin.protocol import Training
    from fedkin.registry import convert, field_types, hint

    kinds = field_types(type(method)), field_types(Training)
    found: tuple[dict[str, list[Any]], dict[str, list[Any]]] = ({}, {})
    for text in given:
        name, equals, values = text.partition("=")
        key = name.strip().lstrip("-").replace("-", "_")
        if not equals or not values:
            raise UserError(f"--grid {text} must have the form field=value,value,…")
        for own, target in zip(kinds, found):
            if key in own:
                tried = [convert(own[key], value, f"{key} in --grid") for value in values.split(",")]
                target[key] = list(dict.fromkeys([*target.get(key, []), *tried]))
                break
        else:
            known = [*kinds[0], *kinds[1]]
            raise UserError(f"--grid has no field '{key}'.{hint(key, known)} Known: {', '.join(known)}.")
    return found


@dataclass(frozen=True)
class Plan:
    """One combination, ready to run."""

    fields: dict[str, Any]
    training: dict[str, Any]
    method: Any
    settings: Any


def _plans(label: str, config: configs.Config, flags: Any) -> list[Plan]:
    """Every combination of the grid. All are made before anything runs, so that a wrong value stops the sweep early."""
    from fedkin.methods import method
    from fedkin.registry import parse_label

    name, fields = parse_label(label)
    if config.methods and parse_label(config.methods[0])[0] == name:
        fields = {**config.fields, **fields}
    of_method, of_training = grid(flags.sweep.grid, method(name, **fields))
    plans = []
    for values in itertools.product(*of_method.values(), *of_training.values()):
        own = dict(zip([*of_method, *of_training], values))
        chosen = {k: own[k] for k in of_method}
        trained = {k: own[k] for k in of_training}
        plans.append(Plan(chosen, trained, method(name, **{**fields, **chosen}), replace(flags.training, **trained)))
    return plans


def _kept_trials(label: str, plans: Sequence[Plan], flags: Any) -> list[Trial]:
    """Run all combinations; with --out, in a folder that fedkin owns."""
    out = flags.output.out
    if out is None:
        return _trials(label, plans, flags)
    from fedkin.results.files import write_json
    from fedkin.results.folder import Folder

    with Folder(out, "sweep"):
        trials = _trials(label, plans, flags)
        listed = [{"folder": f"trial-{i + 1}", **trial} for i, trial in enumerate(_plain(trials))]
        write_json(out / "sweep.json", {"method": label, "chosen by": "validation", "trials": listed})
        write_tables(out / "sweep", sorted(trials, key=lambda trial: trial.rank))
    return trials


def write_tables(stem: Path, trials: Sequence[Trial]) -> None:
    """The trials, best first, as CSV and LaTeX."""
    from fedkin.report import tables
    from fedkin.results.files import write_bytes

    names = list(trials[0].values)
    numbers = [[*t.values.values(), t.validation] for t in trials]
    write_bytes(stem.with_suffix(".csv"), tables.csv([*names, f"validation {trials[0].metric}"], numbers).encode())
    header, rows = table_of(trials)
    write_bytes(stem.with_suffix(".tex"), tables.latex(header, rows, bold=[(0, len(names))]).encode())


def table_of(trials: Sequence[Trial]) -> tuple[list[str], list[list[str]]]:
    """What was tried, and the validation score of each trial."""
    from fedkin.report.tables import score

    rows = [[*map(str, t.values.values()), score(t.validation, in_percent=t.percent)] for t in trials]
    return [*trials[0].values, "validation %" if trials[0].percent else "validation"], rows


def _trials(label: str, plans: Sequence[Plan], flags: Any) -> list[Trial]:
    import numpy as np
    from rich.console import Console

    from fedkin.engine.loop import run
    from fedkin.results.folder import inside

    options, out = flags.options, flags.output.out
    scores: list[list[tuple[float, float]]] = [[] for _ in plans]
    headline: dict[str, Any] = {}
    with settings.ray_cluster(options.engine == "ray", options.ray_address, options.workers):
        for seed in range(options.seed, options.seed + flags.sweep.seeds):
            with signals.interruptible():
                federation = settings.federation(flags, seed)
            for index, plan in enumerate(plans):
                shown = ",".join([label, *(f"{k}={v}" for k, v in {**plan.fields, **plan.training}.items())])
                result = run(
                    plan.method,
                    federation,
                    model=flags.model.model,
                    model_options=settings.chosen(flags, "model"),
                    head=flags.model.head,
                    task=settings.task(flags),
                    training=plan.settings,
                    out=None if out is None else inside(out, f"trial-{index + 1}", f"seed-{seed}"),
                    fresh=flags.output.fresh,
                    label=shown,
                    trackers=settings.trackers(flags.output, f"{index + 1}/{len(plans)} {shown}", Console(stderr=True)),
                    options=replace(options, seed=seed),
                )
                headline = result.summary["headline"]
                scored = result.history.values("validation", round=options.rounds).values()
                validation = [value for value in scored if value is not None]  # None: AUC of a single class
                if not validation:
                    raise UserError("No client has validation examples: raise --validation or the number of examples.")
                scores[index].append((float(np.mean(validation)), result.summary["personal"]["mean"]))
    means = [np.mean(found, axis=0).tolist() for found in scores]
    return [Trial(plan.fields, plan.training, *found, **headline) for plan, found in zip(plans, means)]


def _show(label: str, trials: Sequence[Trial]) -> None:
    from fedkin.cli.terminal import console
    from fedkin.report.tables import terminal

    table = terminal(f"Sweep of {label}, by {trials[0].metric}, best first", *table_of(trials))
    table.rows[0].style = "bold"
    console().print(table)


def _plain(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Trials without their test scores, so that nobody chooses by them."""
    return [{"fields": t.fields, "training": t.training, "validation": t.validation} for t in trials]


def command_again(label: str, best: Trial, words: Sequence[str], own: set[str]) -> str:
    """The command that runs the chosen combination; `own` are flags of the command that found it."""
    name, fields = _as_given(label, words)
    fields = {k: v for k, v in (fields | best.fields).items() if k not in best.training}
    named = ",".join([name, *(f"{k}={v}" for k, v in fields.items())])
    trained = [word for k, v in best.training.items() for word in (f"--{k.replace('_', '-')}", str(v))]
    dropped = {*own, "seeds", "out", "fresh", "json", "quiet", *(k.replace("_", "-") for k in best.training)}
    return shlex.join(["fedkin", "run", named, *_without(parsing.split_words(words)[1], dropped), *trained])


def in_label(label: str, best: Trial, words: Sequence[str]) -> str:
    """The chosen combination as a METHOD of `compare`, in which every method may have its own settings."""
    name, fields = _as_given(label, words)
    return shlex.quote(",".join([name, *(f"{k}={v}" for k, v in (fields | best.fields | best.training).items())]))


def _as_given(label: str, words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The METHOD with all that followed its name, settings of the training too."""
    from fedkin.registry import parse_label

    return parse_label(next(iter(parsing.split_words(words)[0]), label))


def _without(words: Sequence[str], flags: set[str]) -> list[str]:
    """Words without these flags and their values."""
    kept: list[str] = []
    dropping = False
    for word in words:
        if word.startswith("--"):
            dropping = word[2:].split("=")[0].replace("_", "-") in flags
        if not dropping:
            kept.append(word)
    return kept
