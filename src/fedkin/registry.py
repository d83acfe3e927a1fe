"""How a registry names what it holds: without importing it, so that `fedkin list` does not wait for torch."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Flags of `fedkin run` that belong to no method: a method's field of the same name could not be set.
RUN_FLAGS = (
    "data",
    "data_dir",
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
    near = difflib.get_close_matches(name, registry, n=3)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    raise ValueError(f"There is no {kind} '{name}'.{hint} Known: {', '.join(registry)}.")


def load_path(target: str) -> Any:
    """`file.py:Name` or `package.module:Name`: something of the user's own."""
    where, _, name = target.rpartition(":")
    if where.endswith(".py"):
        path = Path(where)
        if not path.exists():
            raise ValueError(f"There is no file {path} (from '{target}'; expected path/to/file.py:Name).")
        # A name of its own: the user's file may be called torch.py or data.py.
        spec = importlib.util.spec_from_file_location(f"fedkin_own_{path.stem}", path)
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
