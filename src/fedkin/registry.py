"""Registries name their entries without importing them, so that `fedkin list` does not wait for torch.

Also here: conversion of values that arrive as text (`mu=0.1`), and hints for unknown names.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import importlib.util
import json
import sys
import traceback
import types
import typing
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

# Flags of `fedkin run` itself. A method's field with the same name could not be set.
RUN_FLAGS = (
    "data",
    "data_dir",
    "label",
    "ignore",
    "categorical",
    "missing",
    "decimal",
    "ordered",
    "fit",
    "partition",
    "clients",
    "samples_per_client",
    "test",
    "validation",
    "pool",
    "model",
    "head",
    "task",
    "metrics",
    "headline",
    "class_weights",
    "config",
    "name",
    "out",
    "fresh",
    "json",
    "quiet",
    "tensorboard",
    "mlflow",
    "wandb",
)

MANY = 20  # names; an error does not list more
OWN_MODULE = "fedkin_own_"  # prefix of the modules made from users' files

# Old names of flags, fields, values and arguments, with their new names.
RENAMED = {
    "centre": "center",
    "centred": "centered",
    "gat_optimiser": "gat_optimizer",
    "neighbours": "neighbors",
    "normalise": "normalize",
    "optimiser": "optimizer",
    "pull": "regularizer_gradient",
}


@dataclass(frozen=True)
class Entry:
    target: str
    """`module:name` of the class or function."""
    summary: str
    preset: Mapping[str, Any] = field(default_factory=dict)
    """Field values that make it a named variant."""

    def load(self) -> Any:
        module, name = self.target.split(":")
        return getattr(importlib.import_module(module), name)


def lookup(registry: Mapping[str, Entry], name: str, kind: str) -> Entry:
    if name in registry:
        return registry[name]
    rest = (
        f"Known: {', '.join(registry)}."
        if len(registry) <= MANY
        else f"`fedkin list {kind.replace(' ', '')}s` shows all."
    )
    raise ValueError(f"There is no {kind} '{name}'.{hint(name, registry)} {rest}")


def hint(name: str, known: Iterable[str], prefix: str = "") -> str:
    """What was probably meant, as a sentence that follows another; empty if nothing is near."""
    names = list(known)
    renamed = RENAMED.get(name.replace("-", "_"))
    for other in names:
        if other.replace("-", "_") == renamed:
            return f" It is now called {prefix}{other}."
    near = [prefix + other for other in difflib.get_close_matches(name, names, n=3)]
    return f" Did you mean {' or '.join(filter(None, (', '.join(near[:-1]), near[-1])))}?" if near else ""


def plug_ins(group: str, known: Iterable[str]) -> dict[str, Entry]:
    """What installed packages add to a registry: entry points `name = "module:Class"` of this group."""
    taken, found = set(known), {}
    for point in importlib.metadata.entry_points(group=group):
        source = point.dist.name if point.dist is not None else "a package without a name"
        if point.name in taken:
            warnings.warn(f"{source} has a plug-in '{point.name}', but that name is taken: ignored.", stacklevel=2)
            continue
        taken.add(point.name)
        found[point.name] = Entry(point.value.replace(" ", ""), f"plug-in from {source}")
    return found


def load_path(target: str) -> Any:
    """Load `file.py:Name` or `package.module:Name`."""
    where, _, name = target.rpartition(":")
    if where.endswith(".py"):
        path = Path(where)
        if not path.exists():
            raise ValueError(f"There is no file {path} (from '{target}'; expected path/to/file.py:Name).")
        # A separate module name, because the user's file may be called torch.py or data.py.
        spec = importlib.util.spec_from_file_location(f"{OWN_MODULE}{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look up their own module
        spec.loader.exec_module(module)
    else:
        try:
            module = importlib.import_module(where)
        except ModuleNotFoundError as error:
            raise ValueError(f"'{target}' cannot be loaded: {error}. Expected file.py:Name or module:Name.") from None
    if not hasattr(module, name):
        public = [n for n in dir(module) if n[0] != "_"]
        made = [n for n in public if getattr(getattr(module, n), "__module__", None) == module.__name__]
        names = made or public  # what the module makes itself, and not what it imports
        raise ValueError(f"{where} has no '{name}'.{hint(name, names)} It has {', '.join(names)}.")
    return getattr(module, name)


def qualified(thing: Any) -> str:
    """`module:name` of a class or function, or `path/to/file.py:name` of one from a user's file: for `load_path`."""
    module, name = thing.__module__, thing.__qualname__
    if module.startswith(OWN_MODULE):
        return f"{Path(sys.modules[module].__file__ or '').resolve()}:{name}"
    return f"{module}:{name}"


def own_line(error: Exception) -> str:
    """File, line and function of a user's own file in which an error was raised; empty if none was involved."""
    if isinstance(error, SyntaxError):
        return f"{Path(error.filename or '').name}, line {error.lineno}" if error.filename else ""
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if str(frame.f_globals.get("__name__", "")).startswith(OWN_MODULE):
            code = frame.f_code
            inside = "" if code.co_name == "<module>" else f", in {code.co_name}"
            found = f"{Path(code.co_filename).name}, line {line}{inside}"
    return found


# ---- values
def parse_label(label: str) -> tuple[str, dict[str, Any]]:
    """`fedprox,mu=1,sampling=size` → ("fedprox", {"mu": 1, "sampling": "size"})."""
    name, *options = label.split(",")
    values = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals:
            raise ValueError(f"'{option}' in '{label}' must have the form field=value.")
        key = key.strip().replace("-", "_")
        try:
            values[key] = json.loads(value.lower() if value in ("True", "False") else value)
        except (ValueError, RecursionError):
            values[key] = value
    return name.strip(), values


def construct(kind: Any, name: str, values: Mapping[str, Any]) -> Any:
    """Make a dataclass from field values, which may be text. Errors say which fields and values there are."""
    make: Any = kind  # is_dataclass narrows its type to something that cannot be called
    if not is_dataclass(kind):
        return make(**values)
    kinds = field_types(kind)
    made = {}
    for key, value in values.items():
        if key not in kinds:
            has = ", ".join(kinds) or "no fields"
            raise ValueError(f"{name} has no field '{key}'.{hint(key, kinds)} It has {has}.")
        made[key] = convert(kinds[key], value, f"{key} of {name}")
    return make(**made)


def field_types(kind: Any) -> dict[str, Any]:
    """Types of the fields that a dataclass takes."""
    try:
        hints = typing.get_type_hints(kind)
    except NameError:  # a class made inside a function, with annotations that only that function can resolve
        hints = {}
    return {f.name: hints.get(f.name, f.type) for f in fields(kind) if f.init}


def convert(kind: Any, value: Any, name: str) -> Any:
    """A value of this type from text or JSON; a value that is neither is returned as it is. `name` is for messages."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None or (isinstance(value, str) and value.lower() == "none"):
            return None
        return convert(next(a for a in arguments if a is not type(None)), value, name)
    if origin is Literal:
        return _choice(arguments, value, name)
    if origin is tuple and isinstance(value, str | int | float | list):
        parts = value if isinstance(value, list) else [part for part in str(value).split("+") if part]
        return tuple(convert(arguments[0], part, name) for part in parts)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ValueError(f"{name} must be {describe(kind)}; it is {_shown(value)}.")
        key, item = arguments
        return {convert(key, k, name): convert(item, v, name) for k, v in value.items()}
    if value is None or isinstance(value, list | dict):  # from JSON or TOML
        raise ValueError(f"{name} must be {describe(kind)}; it is {_shown(value)}.")
    if not isinstance(value, str | int | float):
        return value
    try:
        return _scalar(kind, value)
    except (ValueError, KeyError):
        raise ValueError(f"{name} must be {describe(kind)}; it is {_shown(value)}.") from None


def _scalar(kind: Any, value: Any) -> Any:
    if kind is bool:
        return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[str(value).lower()]
    if isinstance(value, bool) and kind in (int, float):
        raise ValueError
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if kind is int:
        return int(str(value))
    if kind is float:
        return float(value)
    if kind is Path:
        return Path(str(value))
    return str(value) if kind is str else value


def _choice(choices: tuple[Any, ...], value: Any, name: str) -> Any:
    for choice in choices:
        if str(choice) == str(value):
            return choice
    words = [str(c) for c in choices]
    raise ValueError(f"{name} must be {' or '.join(words)}; it is {_shown(value)}.{hint(str(value), words)}")


def _shown(value: Any) -> str:
    if isinstance(value, list | dict):
        return f"a {'list' if isinstance(value, list) else 'table'}"
    return f"'{value}'" if isinstance(value, str) else json.dumps(value)


def describe(kind: Any) -> str:
    """A type in words, for messages."""
    if typing.get_origin(kind) is dict:
        return "pairs of numbers"
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(kind, "text")
