"""States on disk: safetensors for arrays, JSON for the rest. No pickle; each file appears whole or not at all."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from fedkin.protocol import State

_ARRAY = "\u0000array"


def write_bytes(path: Path, content: bytes, *, durable: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{secrets.token_hex(8)}")  # not mkstemp, whose files nobody else may read
    try:
        with open(temporary, "wb") as f:
            f.write(content)
            if durable:
                f.flush()
                os.fsync(f.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any, *, durable: bool = False) -> None:
    write_bytes(path, (json.dumps(value, indent=2, default=float) + "\n").encode(), durable=durable)


def relabel(folder: Path, label: str) -> None:
    """Give a run another label in tables and figures. A finished run is not run again for that."""
    for name, key in (("config.json", "label"), ("summary.json", "method")):
        content = json.loads((folder / name).read_text())
        if content[key] != label:
            write_json(folder / name, {**content, key: label})


def save_state(path: Path, state: State, *, durable: bool = False) -> None:
    arrays: dict[str, Tensor] = {}
    tree = json.dumps(_pack(state, arrays, ""))
    # A clone, because safetensors refuses arrays that share memory.
    content = save({k: v.detach().contiguous().clone() for k, v in arrays.items()}, metadata={"state": tree})
    write_bytes(path, content, durable=durable)


def load_state(path: Path) -> State:
    with safe_open(path, framework="pt") as f:
        tree = json.loads(f.metadata()["state"])
        # Copies: in the file arrays lie at odd addresses, from where products of matrices round otherwise.
        state = _unpack(tree, {name: f.get_tensor(name).clone() for name in f.keys()})  # noqa: SIM118
    assert isinstance(state, dict)
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
    """The same to the bit."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        if not (isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype == b.dtype and a.shape == b.shape):
            return False
        # as bytes: NaN is the same as NaN, and 0.0 is not -0.0
        return torch.equal(*(t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (a, b)))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b))
    if isinstance(a, dict | list | tuple) or isinstance(b, dict | list | tuple):
        return False
    return json.dumps(a) == json.dumps(b)  # as they are stored: True is not 1, NaN is NaN
