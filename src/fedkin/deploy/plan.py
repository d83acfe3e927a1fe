"""The settings of a deployed run, from `[tool.flwr.app.config]` of its app: the same at the server and at every
site."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from fedkin.engine.options import Options, settled
from fedkin.protocol import Method, Training
from fedkin.task import TASKS, Regression, Task
from fedkin.task import task as make_task

RUN = (
    "rounds", "participation", "seed", "evaluate_every", "time_limit", "checkpoint_every", "save_models", "defend",
    "privacy",
)  # fmt: skip
LIMITS = {"max_examples": 10**7, "max_classes": 1000}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
TIME_LIMIT = 600.0


@dataclass(frozen=True)
class Plan:
    method: Method
    label: str
    model: str
    model_options: dict[str, Any]
    head: str | None
    training: Training
    options: Options
    clients: tuple[str, ...]
    """Names of all clients, sorted: a client's number is its index here, whatever order they were written in."""
    out: str
    """The server's folder for this run."""
    wait: float
    """Seconds to wait for all clients before the first round."""
    bind_keys: bool
    """A name belongs to the node key that it first came with. Only for sites that have keys of their own."""
    task: Task
    fit: str
    """How all sites prepare their tables in the same way: each (they share columns, levels and classes) or sites (also
    means and variances); empty: they share nothing, and must agree beforehand."""
    max_examples: int
    """A site that claims more training examples is refused: they are its weight in averages."""
    max_classes: int
    """A site that claims more classes is refused."""
    secure: bool
    """Secure aggregation: the server learns the mean of the replies, and no reply by itself."""


def read(config: Mapping[str, Any]) -> Plan:
    from fedkin.methods import method

    tables: dict[str, dict[str, Any]] = {"method": {}, "model": {}, "training": {}, "task": {}, "run": {}}
    for key, value in config.items():
        table, _, name = key.partition(".")
        if table not in tables or not name:
            raise ValueError(f"The app's config has '{key}'; its tables are {', '.join(tables)}.")
        tables[table][name] = value
    of_run = tables["run"]
    label = str(_taken(tables["method"], "name", "method.name", "the method, such as fedcedar"))
    default = method(label)
    known: dict[str, Any] = _defaults(default) if is_dataclass(default) else {}
    if unknown := [name for name in tables["method"] if name not in known]:
        has = ", ".join(known) or "no fields"
        raise ValueError(
            f"The app's config has method.{', method.'.join(unknown)}; {label} has {has}. For another method, replace "
            "the table [tool.flwr.app.config.method] and run.out in app/pyproject.toml, or make another app, for the "
            f"same sites: fedkin deploy init OTHER_FOLDER --method {label} …"
        )
    made = method(label, **_typed(tables["method"], known, "method"))
    model = str(tables["model"].pop("name", "auto"))
    head = str(tables["model"].pop("head", "")) or None
    training = Training(**_typed(tables["training"], _defaults(Training()), "training"))
    names = str(_taken(of_run, "clients", "run.clients", "the clients' names, separated by spaces")).split()
    for name in names:
        if not NAME.fullmatch(name):
            raise ValueError(f"run.clients has '{name}': a name is made of letters, digits, '.', '_' and '-'.")
    if len(set(names)) < len(names) or not names:
        raise ValueError(f"run.clients='{' '.join(names)}' must name each client once.")
    out = str(_taken(of_run, "out", "run.out", "the server's folder for this run"))
    if not Path(out).is_absolute():
        raise ValueError(f"run.out='{out}' must be an absolute path: Flower chooses where the server's process runs.")
    usual = {"wait": 300.0, "bind_keys": False, "fit": "", "secure": False, **LIMITS}
    own = {**usual, **_typed({k: of_run.pop(k) for k in usual if k in of_run}, usual, "run")}
    if own["fit"] not in ("", "each", "sites"):
        raise ValueError(f"run.fit='{own['fit']}' must be each, sites, or empty: no statistics are shared.")
    for name in LIMITS:
        if own[name] < 1:
            raise ValueError(f"run.{name}={own[name]} must be at least 1.")
    given = _typed(of_run, {k: v for k, v in _defaults(Options()).items() if k in RUN}, "run")
    options, training = settled(Options(), training, {"time_limit": TIME_LIMIT, "checkpoint_every": 1, **given})
    if own["secure"]:
        from fedkin.deploy.secure import FEWEST, refuse

        refuse(made)
        if options.defend:
            raise ValueError(
                f"run.defend='{options.defend}' judges single replies, which run.secure hides: choose one."
            )
        if len(names) < FEWEST:
            raise ValueError(f"run.secure=true needs at least {FEWEST} clients; run.clients names {len(names)}.")
    if not options.time_limit:
        raise ValueError("run.time_limit=0 would wait forever for a site that is gone: give seconds.")
    task = _task(tables["task"])
    if made.needs_classes and not task.has_classes:
        raise ValueError(f"{label} needs classes; it cannot learn a {task.kind}.")
    return Plan(
        method=made,
        label=label,
        model=model,
        model_options=tables["model"],
        head=head,
        training=training.settled(options.rounds),
        options=options,
        clients=tuple(sorted(names)),
        out=out,
        wait=own["wait"],
        bind_keys=own["bind_keys"],
        task=task,
        fit=own["fit"],
        max_examples=own["max_examples"],
        max_classes=own["max_classes"],
        secure=own["secure"],
    )


def _task(table: dict[str, Any]) -> Task:
    """Lists are written with spaces: Flower's tables cannot hold them."""
    given = _typed(table, {"kind": "", "metrics": "", "headline": "", "center": "", "scale": ""}, "task")
    kind = given.get("kind", "") or "classification"
    settings: dict[str, Any] = {
        "metrics": tuple(given.get("metrics", "").split()),
        "headline": given.get("headline", ""),
    }
    for name in ("center", "scale"):
        if not (text := given.get(name, "").split()):
            continue
        if kind != Regression.kind:
            raise ValueError(f"task.{name}='{given[name]}' is for a regression; task.kind is {kind}.")
        try:
            settings[name] = tuple(map(float, text))
        except ValueError:
            raise ValueError(f"task.{name}='{given[name]}' must be one number for each target.") from None
    return make_task(kind, **settings)


def kind_of(made: Task) -> str:
    """The kind of targets that a task needs. One's own task needs classes, or numbers of any kind: then it is ""."""
    return made.kind if type(made) in TASKS.values() else "classification" if made.has_classes else ""


def _defaults(value: Any) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in fields(value)}


def _taken(table: dict[str, Any], name: str, key: str, what: str) -> Any:
    if name not in table:
        raise ValueError(f"The app's config must have {key}: {what}.")
    return table.pop(name)


def _typed(given: Mapping[str, Any], known: Mapping[str, Any], table: str) -> dict[str, Any]:
    """Convert values to the types of the defaults; TOML's 1 may stand for 1.0."""
    out = {}
    for name, value in given.items():
        if name not in known:
            raise ValueError(f"The app's config has {table}.{name}; known are {', '.join(known)}.")
        kind = type(known[name])
        if kind is float and type(value) is int:
            value = float(value)
        if kind in (bool, int, float, str):
            if type(value) is not kind:
                raise ValueError(f"{table}.{name}={value!r} must be a {kind.__name__}, as {known[name]!r} is.")
        elif isinstance(value, str):  # Flower's TOML tables cannot hold lists: "(0, 0, 1)"
            value = ast.literal_eval(value)
        out[name] = value
    return out
