"""States on disk: safetensors for arrays, JSON for the rest, no pickle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedkin.protocol import State
from fedkin.results.files import StorageError, Write, digest, write_bytes

_ARRAY = "\u0000array"


def save_state(path: Path, state: State, write: Write = write_bytes) -> str:
    """Write a state. Return the digest of the file."""
    arrays: dict[str, Tensor] = {}
    tree = json.dumps(_pack(state, arrays, ""))
    # A clone, because safetensors refuses arrays that share memory.
    content = save({k: v.detach().contiguous().clone() for k, v in arrays.items()}, metadata={"state": tree})
    write(path, content)
    return digest(content)


def load_state(path: Path) -> State:
    try:
        with safe_open(path, framework="pt") as f:
            tree = json.loads(f.metadata()["state"])
            # Copies: in the file, arrays may be unaligned, which changes BLAS rounding.
            state = _unpack(tree, {name: f.get_tensor(name).clone() for name in f.keys()})  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise StorageError(f"Cannot read the state in {path}: {error}") from error
    if not isinstance(state, dict):
        raise StorageError(f"Cannot read the state in {path}: it holds a {type(state).__name__}")
    return state


def _pack(value: Any, arrays: dict[str, Tensor], name: str) -> Any:
    if isinstance(value, Tensor):
        name = f"{len(arrays)}{name}"  # a number, because {"a/b": …} and {"a": {"b": …}} would have the same name
        arrays[name] = value
        return {_ARRAY: name}
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"State keys are strings; {name or 'the state'} has the key {key!r}.")
        return {k: _pack(v, arrays, f"{name}/{k}") for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_pack(v, arrays, f"{name}/{i}") for i, v in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"State '{name}' is a {type(value).__name__}; a state holds tensors, numbers, strings, and lists and dicts of "
        "them (turn a numpy array into a tensor with torch.from_numpy)."
    )


def _unpack(tree: Any, arrays: dict[str, Tensor]) -> Any:
    if isinstance(tree, dict):
        if _ARRAY in tree:
            return arrays[tree[_ARRAY]]
        return {k: _unpack(v, arrays) for k, v in tree.items()}
    if isinstance(tree, list):
        return [_unpack(v, arrays) for v in tree]
    return tree


def equal(a: Any, b: Any) -> bool:
    """Are two states equal to the bit?"""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        if not (isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype == b.dtype and a.shape == b.shape):
            return False
        # compared as bytes: NaN equals NaN, and 0.0 does not equal -0.0
        return torch.equal(*(t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (a, b)))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b))
    if isinstance(a, dict | list | tuple) or isinstance(b, dict | list | tuple):
        return False
    return json.dumps(a) == json.dumps(b)  # as they are stored: True does not equal 1, NaN equals NaN
