"""How a registry names what it holds: without importing it, so that `fedkin list` does not wait for torch."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

# Flags of `fedkin run` that belong to no method: a method's field of the same name could not be set.
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
    "out",
    "fresh",
    "json",
    "quiet",
    "tensorboard",
    "mlflow",
    "wandb",
)

OWN_MODULE = "fedkin_own_"  # prefix of the modules made from users' files


@dataclass(frozen=True)
class Entry:
    target: str
    """`module:name` of what is meant."""
    summary: str
    preset: Mapping[str, Any] = field(default_factory=dict)
    """Field values that make it a named variant."""

    def load(self) -> Any:
        module, name = self.target.split(":")
        return getattr(importlib.import_module(module), name)


def lookup(registry: Mapping[str, Entry], name: str, kind: str) -> Entry:
    if name in registry:
        return registry[name]
    raise ValueError(f"There is no {kind} '{name}'.{hint(name, registry)} Known: {', '.join(registry)}.")


def hint(name: str, known: Iterable[str]) -> str:
    """` Did you mean …?` where a known name is near, else nothing."""
    near = difflib.get_close_matches(name, list(known), n=3)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def construct(kind: Any, name: str, values: Mapping[str, Any]) -> Any:
    """Make a dataclass from field values; an unknown field is an error that names the known ones."""
    if is_dataclass(kind):
        known = [f.name for f in fields(kind) if f.init]
        for key in values:
            if key not in known:
                has = f"has {', '.join(known)}" if known else "has no fields"
                raise ValueError(f"{name} has no field '{key}'.{hint(key, known)} It {has}.")
    return kind(**values)


def load_path(target: str) -> Any:
    """`file.py:Name` or `package.module:Name`: something of the user's own."""
    where, _, name = target.rpartition(":")
    if where.endswith(".py"):
        path = Path(where)
        if not path.exists():
            raise ValueError(f"There is no file {path} (from '{target}'; expected path/to/file.py:Name).")
        # A name of its own: the user's file may be called torch.py or data.py.
        spec = importlib.util.spec_from_file_location(f"{OWN_MODULE}{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look up their own module
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(where)
    if not hasattr(module, name):
        raise ValueError(f"{where} has no '{name}'; it has {', '.join(n for n in dir(module) if n[0] != '_')}.")
    return getattr(module, name)


def qualified(thing: Any) -> str:
    """`module:name` of a class or function, or `path/to/file.py:name` of one from a user's file: for `load_path`."""
    module, name = thing.__module__, thing.__qualname__
    if module.startswith(OWN_MODULE):
        return f"{Path(sys.modules[module].__file__ or '').resolve()}:{name}"
    return f"{module}:{name}"
