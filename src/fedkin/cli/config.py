"""`--config FILE`: settings from a .toml file, or from the config.json of an earlier run.

In a .toml file keys are flags, and tables may group them. The tables [method], [data], [partition] and [model] hold a
name and the options that go with it:

    rounds = 50
    lr = 0.1

    [method]
    name = "fedprox"
    mu = 0.5

    [partition]
    name = "dirichlet"
    alpha = 0.2
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedkin.cli import flags as parsing
from fedkin.cli.flags import UserError

NAMED = ("data", "partition", "model")
TASK = {"task": "kind", "metrics": "metrics", "headline": "headline", "class-weights": "class_weights"}
GROUPS = ("training", "run", "output")


@dataclass(frozen=True)
class Config:
    """What a config file says."""

    methods: tuple[str, ...] = ()
    """Methods, with their fields: `fedprox,mu=0.5`."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Field values of a single method, for those that do not fit into a label."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Values by flag."""


def read(words: Sequence[str]) -> Config:
    """The file that --config names; without one, nothing is set."""
    given = parsing.given(words, "config")
    if given is None:
        return Config()
    path = Path(given)
    try:
        text = path.read_text()
        content = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise UserError(f"--config {path} cannot be read: {error.strerror}.") from None
    except RecursionError:
        raise UserError(f"--config {path} is nested too deeply.") from None
    except ValueError as error:
        raise UserError(
            f"--config {path} is not valid {'TOML' if path.suffix == '.toml' else 'JSON'}: {error}"
        ) from None
    if not isinstance(content, dict):
        raise UserError(f"--config {path} must hold settings by name.")
    if path.suffix != ".toml" and not {"federation", "options", "method"} <= content.keys():
        raise UserError(f"--config {path} is not the config.json of a run. A file of your own must be a .toml.")
    if path.suffix == ".toml":
        config = _from_toml(content)
    else:
        try:
            config = _from_run(content, words)
        except (AttributeError, TypeError, KeyError) as error:
            raise UserError(
                f"--config {path} is damaged, or not the config.json of a run ({type(error).__name__}: {error}). "
                "Restore it, or write your settings into a .toml."
            ) from None
    return _without_stale_options(config, words)


def with_training(label: str, config: Config) -> tuple[str, Config]:
    """Move settings of the training from a label, such as the rate in `ditto,lr=0.1`, to the values of the flags."""
    from fedkin.methods import split_training

    plain, own = split_training(label)
    return plain, Config(config.methods, config.fields, {**config.values, **{_dashed(k): v for k, v in own.items()}})


def _from_toml(content: dict[str, Any]) -> Config:
    values: dict[str, Any] = {}
    methods: tuple[str, ...] = ()
    fields: dict[str, Any] = {}
    for key, value in content.items():
        if key == "methods":
            methods = tuple(str(m) for m in value) if isinstance(value, list) else (str(value),)
        elif key == "method":
            table = value if isinstance(value, dict) else {"name": value}
            methods, fields = (str(table.get("name", "")),), {k: v for k, v in table.items() if k != "name"}
            if not methods[0]:
                raise UserError("The table [method] needs a name.")
        elif key in NAMED and isinstance(value, dict):
            values |= {key if k == "name" else f"{key}.{_dashed(k)}": v for k, v in value.items()}
        elif key in GROUPS and isinstance(value, dict):
            values |= {_dashed(k): v for k, v in value.items()}
        elif isinstance(value, dict) and key not in ("arrive", "leave"):
            tables = ", ".join(f"[{name}]" for name in ("method", *NAMED, *GROUPS))
            raise UserError(f"The config file has a table [{key}]. Known tables: {tables}.")
        else:
            values[_dashed(key)] = value
    return Config(methods, fields, values)


def _from_run(content: dict[str, Any], words: Sequence[str]) -> Config:
    """From config.json. Arrays in memory and the user's own models are not in it: their flags must be given again."""
    from fedkin.models import MODELS

    name = method_name(content)
    fields = {k: v for k, v in content["method"].items() if k != "class"}
    values = _data_values(content["federation"], words)
    model = dict(content.get("model", {}))
    if model.get("name") in MODELS:
        values |= {"model": model["name"], "head": model.get("head")}
        values |= {f"model.{_dashed(k)}": v for k, v in model.get("options", {}).items()}
    elif parsing.given(words, "model") is None:
        raise UserError(f"The earlier run had a model of its own, {model.get('name')}: add --model file.py:function.")
    task = content.get("task", {})
    values |= {name: task.get(key) for name, key in TASK.items() if task.get(key)}
    for part in ("training", "options"):
        values |= {_dashed(k): v for k, v in content.get(part, {}).items()}
    values = {k: v for k, v in values.items() if v is not None}
    return Config((name,) if name else (), fields, values)


def _data_values(federation: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    flags = ("data", "partition", "clients", "test", "validation", "pool", "samples_per_client", "fit")
    values = {_dashed(flag): federation[flag] for flag in flags if flag in federation}
    values |= {f"partition.{_dashed(k)}": v for k, v in (federation.get("partition_options") or {}).items()}
    options = dict(federation.get("data_options") or {})
    if values.get("data") != "own":
        return values | {f"data.{_dashed(k)}": v for k, v in options.items()}
    if parsing.given(words, "data") is not None:  # other data has its own clients
        return {k: v for k, v in values.items() if k.split(".")[0] not in ("data", "partition", "clients")}
    if "folder" not in options:
        raise UserError("The earlier run had data in memory, which config.json does not hold: add --data FOLDER.")
    reading = ("label", "ignore", "categorical", "missing", "decimal", "ordered")
    if isinstance(options.get("label"), str):
        options["label"] = [options["label"]]
    return values | {"data": options["folder"]} | {k: v for k, v in options.items() if k in reading}


def method_name(content: Mapping[str, Any]) -> str:
    """The registered name of a run's method, whatever its label; file.py:Class for the user's own; else empty."""
    from fedkin.methods import METHODS

    base = str(content.get("label", "")).split(",")[0]
    kind = str(content.get("method", {}).get("class", "")).rpartition(":")[2]
    names = [name for name, entry in METHODS.items() if entry.target.endswith(f":{kind}")]
    return base if base in names or ":" in base else next(iter(names), "")


def _without_stale_options(config: Config, words: Sequence[str]) -> Config:
    """Drop the options of a data set, partition or model that a flag replaces by another one."""
    values = dict(config.values)
    for part in NAMED:
        other = parsing.given(words, part)
        if other is not None and other != values.get(part):
            values = {k: v for k, v in values.items() if not k.startswith(f"{part}.")}
    return Config(config.methods, config.fields, values)


def _dashed(key: str) -> str:
    return key.replace("_", "-")
