"""`fedkin tune METHOD --budget 20`: search the settings of a method with Optuna, and choose on validation examples."""

from __future__ import annotations

import hashlib
import json
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from fedkin.bounds import Bound
from fedkin.cli import config as configs
from fedkin.cli import settings
from fedkin.cli.flags import Part, UserError
from fedkin.cli.sweep import Trial, command_again, in_label, parse_search, table_of, write_tables
from fedkin.engine import signals

ABOUT = """\
Search the number fields of a method and the learning rate with Optuna, and choose the best by the mean over clients of
the headline metric of the personal models on validation examples, after the last round. Test examples play no part in
the choice; the test result of the chosen settings is printed at the end, with the command to run them. The first trial
has the settings as given, so the choice is never worse than these on validation.

With --out, a stopped search is resumed, and a larger --budget continues a finished one.

fedkin tune fedprox --budget 20 --data heart --metrics auc --out runs/tuned"""

FACTOR = 10.0  # a number without an upper bound is searched from its default / 10 to its default × 10
SHOWN = 5


@dataclass(frozen=True)
class TuneFlags:
    budget: int = 20
    """Number of settings to try."""
    fields: tuple[str, ...] = ()
    """Fields to search; by default lr and all number fields of the method whose default is not 0."""
    seeds: int = 1
    """Number of runs of each trial. The choice is by their mean."""


@dataclass(frozen=True)
class Range:
    """The values of one field: numbers from low to high, or choices."""

    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False
    choices: tuple[Any, ...] = ()

    def ask(self, trial: Any, name: str) -> Any:
        if self.choices:
            return trial.suggest_categorical(name, list(self.choices))
        if self.whole:
            return trial.suggest_int(name, int(self.low), int(self.high))
        return float(f"{trial.suggest_float(name, self.low, self.high, log=self.log):.4g}")


def command(words: list[str]) -> int:
    label, config, flags = parse_search(words, Part("tune", TuneFlags(), "search"), ABOUT)
    for flag, value in (("budget", flags.tune.budget), ("seeds", flags.tune.seeds)):
        if value < 1:
            raise UserError(f"--{flag} {value} must be at least 1.")
    method = _method(label, config)
    space = search_space(method, flags.training, flags.tune.fields)
    with signals.stoppable():
        trials = _kept(label, method, space, flags)
    best = trials[0]
    again = command_again(label, best, words, {"budget", "fields"})
    if flags.output.json:
        listed = [_listed(trial) for trial in trials]
        print(json.dumps({"best": asdict(best), "command": again, "trials": listed}, indent=2))
        return 0
    _show(label, trials)
    print(f"To run it: {again}")
    print(f"In a comparison: fedkin compare local {in_label(label, best, words)} …")
    if flags.output.out is not None:
        print(f"All trials are in tune.json, .csv and .tex in {flags.output.out}.")
    return 0


def search_space(method: Any, training: Any, names: tuple[str, ...]) -> dict[str, Range]:
    """The range of each field to search, from its annotation and its default."""
    from fedkin.registry import hint

    hints = {
        **typing.get_type_hints(type(training), include_extras=True),
        **typing.get_type_hints(type(method), include_extras=True),
    }
    values = {**asdict(training), **{f.name: getattr(method, f.name) for f in fields(method)}}
    own = [f.name for f in fields(method)]
    given = [name.replace("-", "_") for name in names]
    for name in given:
        if name not in values:
            raise UserError(f"--fields has no field '{name}'.{hint(name, values)} Known: {', '.join(values)}.")
    found = {}
    for name in given or ["lr", *own]:
        made = _range(hints[name], values[name], chosen=bool(given))
        if made is not None:
            found[name] = made
        elif given:
            raise UserError(f"--fields {name}: it is not a number, a choice or a switch, so it cannot be searched.")
    return found


def _range(hint: Any, default: Any, *, chosen: bool) -> Range | None:
    """The range to search, or None. Choices and switches change what a method is: they are searched only if named."""
    bound = Bound()
    if typing.get_origin(hint) is typing.Annotated:
        hint, *more = typing.get_args(hint)
        bound = next((m for m in more if isinstance(m, Bound)), bound)
    if hint is bool or typing.get_origin(hint) is Literal:
        choices = (False, True) if hint is bool else typing.get_args(hint)
        return Range(choices=choices) if chosen else None
    if hint not in (int, float) or (not chosen and not default) or default in (float("inf"),):
        return None  # 0 often stands for "off" or "as the run says"
    least = bound.least if bound.least is not None else bound.above
    most = bound.most if bound.most is not None else bound.below
    inside = bound.below is not None and most is not None
    if hint is int:
        low, high = max(int(least or 0), default // 2), 2 * default if default else 4
        return Range(low, min(high, int(most)) if most is not None else high, whole=True)
    if most is not None and least is not None:
        width = most - least
        return Range(least + 0.02 * width if bound.above is not None else least, most - 0.02 * width * inside)
    if default <= 0:
        return Range(least if least is not None else -1.0, 1.0)
    return Range(default / FACTOR, default * FACTOR, log=True)


def _method(label: str, config: configs.Config) -> Any:
    from fedkin.methods import method
    from fedkin.registry import parse_label

    name, own = parse_label(label)
    if config.methods and parse_label(config.methods[0])[0] == name:
        own = {**config.fields, **own}
    return method(name, **own)


def _kept(label: str, method: Any, space: Mapping[str, Range], flags: Any) -> list[Trial]:
    """All trials, best first; with --out, in a folder that fedkin owns. A signal ends a run, never the writing of the
    journal between two."""
    out = flags.output.out
    if out is None:
        return _search(label, method, space, flags, None)
    from fedkin.results.files import write_json
    from fedkin.results.folder import Folder

    with Folder(out, "tune") as folder:
        if flags.output.fresh:
            folder.clear()
        trials = _search(label, method, space, flags, str(out / "tune.journal"))
        listed = [_listed(trial) for trial in trials]
        write_json(out / "tune.json", {"method": label, "chosen by": "validation", "trials": listed})
        write_tables(out / "tune", trials)
    return trials


def _search(label: str, method: Any, space: Mapping[str, Range], flags: Any, journal: str | None) -> list[Trial]:
    optuna = _optuna()
    from optuna.trial import TrialState

    storage = None
    if journal is not None:
        backend = optuna.storages.journal.JournalFileBackend(journal)
        storage = optuna.storages.JournalStorage(backend)
    setting = _digest({"method": label, "space": {k: asdict(r) for k, r in space.items()}, **_fixed(flags)})
    probe = _objective(label, method, flags)
    direction = "maximize" if probe.higher_is_better else "minimize"
    study = optuna.create_study(storage=storage, study_name=setting, load_if_exists=True, direction=direction)
    for stopped in [t for t in study.trials if t.state in (TrialState.RUNNING, TrialState.WAITING)]:
        if stopped.state is TrialState.RUNNING:
            study.tell(stopped.number, state=TrialState.FAIL)
            study.enqueue_trial(stopped.params)
    if not study.trials:
        now = {**asdict(flags.training), **{f.name: getattr(method, f.name) for f in fields(method)}}
        study.enqueue_trial({name: now[name] for name in space})
    while (done := sum(t.state.is_finished() for t in study.trials) - _repeated(study)) < flags.tune.budget:
        study.sampler = optuna.samplers.TPESampler(seed=flags.options.seed + done)  # the same after a stop
        trial = study.ask()
        values = {name: made.ask(trial, name) for name, made in space.items()}
        try:
            score, test = probe(values, f"{done + 1}/{flags.tune.budget}")
        except (ValueError, RuntimeError) as error:  # incompatible settings, or a learning rate that diverges
            trial.set_user_attr("why", str(error)[:200])
            study.tell(trial, state=TrialState.PRUNED)
            continue
        trial.set_user_attr("values", values)
        trial.set_user_attr("test", test)
        study.tell(trial, score)
    finished = [t for t in study.trials if t.state is TrialState.COMPLETE]
    if not finished:
        why = next((t.user_attrs["why"] for t in study.trials if "why" in t.user_attrs), "no trial ended")
        raise UserError(f"No trial could be measured: {why}")
    finished.sort(key=lambda t: -t.value if probe.higher_is_better else t.value)
    return [probe.trial(t.user_attrs["values"], t.value, t.user_attrs["test"]) for t in finished]


def _repeated(study: Any) -> int:
    """Number of trials that were stopped and run again. They do not count toward the budget."""
    from optuna.trial import TrialState

    return sum(t.state is TrialState.FAIL for t in study.trials)


class _objective:
    """Run a method with some values, and return its mean validation and test scores."""

    def __init__(self, label: str, method: Any, flags: Any) -> None:
        from fedkin.task import task_of

        self.label, self.method, self.flags = label, method, flags
        self.seeds = range(flags.options.seed, flags.options.seed + flags.tune.seeds)
        with signals.interruptible():
            self.federations = {seed: settings.federation(flags, seed) for seed in self.seeds}
        self.task = task_of(settings.task(flags), self.federations[flags.options.seed], method)
        self.higher_is_better = self.task.higher_is_better

    def __call__(self, values: Mapping[str, Any], number: str) -> tuple[float, float]:
        import numpy as np
        from rich.console import Console

        from fedkin.engine.loop import run
        from fedkin.results.folder import inside

        flags, own = self.flags, self._split(values)
        method, training = replace(self.method, **own[0]), replace(flags.training, **own[1])
        shown = ",".join([self.label, *(f"{k}={v}" for k, v in values.items())])
        scores = []
        for seed, federation in self.federations.items():
            out = flags.output.out
            result = run(
                method,
                federation,
                model=flags.model.model,
                model_options=settings.chosen(flags, "model"),
                head=flags.model.head,
                task=settings.task(flags),
                training=training,
                out=None if out is None else inside(out, f"trial-{_digest(values)}", f"seed-{seed}"),
                label=shown,
                trackers=settings.trackers(flags.output, f"{number} {shown}", Console(stderr=True)),
                options=replace(flags.options, seed=seed),
            )
            held = [
                v for v in result.history.values("validation", round=flags.options.rounds).values() if v is not None
            ]
            if not held:
                raise UserError("No client has validation examples: raise --validation or the number of examples.")
            scores.append((float(np.mean(held)), float(result.summary["personal"]["mean"])))
        validation, test = np.mean(scores, axis=0).tolist()
        return validation, test

    def _split(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Values of the method's fields, and of the training's."""
        own = {f.name for f in fields(self.method)}
        return {k: v for k, v in values.items() if k in own}, {k: v for k, v in values.items() if k not in own}

    def trial(self, values: Mapping[str, Any], validation: float, test: float) -> Trial:
        metric = self.task.known[self.task.headline]
        return Trial(*self._split(values), validation, test, self.task.headline, metric.higher, metric.percent)


def _fixed(flags: Any) -> dict[str, Any]:
    """Settings that must be the same to resume a stopped search."""
    return {
        "data": asdict(flags.data), "options": {**asdict(flags.options), "workers": 0}, "seeds": flags.tune.seeds,
        "task": asdict(flags.task), "model": asdict(flags.model), "training": asdict(flags.training),
        "more": [settings.chosen(flags, name) for name in ("data", "partition", "model")],
    }  # fmt: skip


def _digest(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True, default=str).encode(), digest_size=6).hexdigest()


def _listed(trial: Trial) -> dict[str, Any]:
    """A trial without its test score, so that nobody chooses by it."""
    return {"fields": trial.fields, "training": trial.training, "validation": trial.validation}


def _show(label: str, trials: list[Trial]) -> None:
    from fedkin.cli.terminal import console
    from fedkin.report.tables import score, terminal

    best = trials[0]
    table = terminal(f"Best of {len(trials)} trials of {label}, by {best.metric}", *table_of(trials[:SHOWN]))
    table.rows[0].style = "bold"
    console().print(table)
    unit = " %" if best.percent else ""
    chosen = ", ".join(f"{k}={v}" for k, v in best.values.items())
    print(f"Best on validation: {chosen}. Its test {best.metric}: {score(best.test, in_percent=best.percent)}{unit}.")


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise UserError(
            "tune needs Optuna: pip install 'fedkin[tune]'. Without it: fedkin sweep METHOD --grid …"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
