"""Files on disk: safetensors for arrays, JSON for the rest, no pickle. Each file appears whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedkin.protocol import State

_ARRAY = "\u0000array"


class StorageError(OSError):
    """A file of fedkin's own could not be written or read: a full disk, missing permission, a damaged file."""


def write_bytes(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Write a file. With `durable`, it is on the disk itself when this returns."""
    temporary = path.with_name(f".{secrets.token_hex(8)}")  # not mkstemp, whose files nobody else may read
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as f:
            f.write(content)
            if durable:
                f.flush()
                os.fsync(f.fileno())
        os.replace(temporary, path)
        if durable:
            sync(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise StorageError(f"Cannot write {path}: {error.strerror or error}") from error
        raise


def sync(path: Path) -> None:
    """To the disk itself: a file's content, or a folder's list of names."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def digest_of(path: Path, length: int | None = None) -> str:
    """Digest of a file, or of its first `length` bytes. Raises StorageError if it has fewer."""
    found = hashlib.blake2b(digest_size=16)
    left = length
    try:
        with open(path, "rb") as f:
            while chunk := f.read(min(left, 1 << 20) if left is not None else 1 << 20):
                found.update(chunk)
                left = None if left is None else left - len(chunk)
    except OSError as error:
        raise StorageError(f"Cannot read {path}: {error.strerror or error}") from error
    if left:
        raise StorageError(f"{path} has lost its end: {(length or 0) - left} bytes are there, {length} were written")
    return found.hexdigest()


def write_json(path: Path, value: Any, *, durable: bool = False) -> None:
    write_bytes(path, (json.dumps(value, indent=2, default=float) + "\n").encode(), durable=durable)


def read_json(path: Path, constant: Callable[[str], Any] | None = None) -> dict[str, Any]:
    """The object in a JSON file that fedkin wrote. Raises a ValueError that names the file if it is damaged.

    `constant` makes a value from the names NaN, Infinity and -Infinity, which are numbers otherwise.
    """
    try:
        value = json.loads(path.read_bytes(), parse_constant=constant)
    except RecursionError:
        raise ValueError(f"{path} is damaged: it is nested too deeply. Restore it from a copy.") from None
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged: it is not JSON ({type(error).__name__}: {error}). Restore it from a copy."
        ) from None
    if not isinstance(value, dict):
        raise ValueError(
            f"{path} is damaged: it contains a {type(value).__name__}, not an object. Restore it from a copy."
        )
    return value


def relabel(folder: Path, label: str) -> None:
    """Give a run another label in tables and figures. A finished run is not run again for that."""
    from fedkin.results import checksums

    for name, key in (("config.json", "label"), ("summary.json", "method")):
        content = read_json(folder / name)
        if content.get(key) != label:
            checksums.verify(folder, name)
            write_json(folder / name, {**content, key: label})
            checksums.renew(folder, name)


def save_state(path: Path, state: State, *, durable: bool = False) -> str:
    """Write a state; returns the digest of the file."""
    arrays: dict[str, Tensor] = {}
    tree = json.dumps(_pack(state, arrays, ""))
    # A clone, because safetensors refuses arrays that share memory.
    content = save({k: v.detach().contiguous().clone() for k, v in arrays.items()}, metadata={"state": tree})
    write_bytes(path, content, durable=durable)
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
        # as bytes: NaN equals NaN, and 0.0 does not equal -0.0
        return torch.equal(*(t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (a, b)))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b))
    if isinstance(a, dict | list | tuple) or isinstance(b, dict | list | tuple):
        return False
    return json.dumps(a) == json.dumps(b)  # as they are stored: True does not equal 1, NaN equals NaN
