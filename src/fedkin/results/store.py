"""States on disk: safetensors for arrays, JSON for the rest, no pickle."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedkin.maths.table import ClientTable
from fedkin.protocol import State
from fedkin.results.files import StorageError, Write, write_bytes

_ARRAY, _TABLE = "\u0000array", "\u0000table"
_BLOCK = 1 << 26  # bytes of a table's rows that are read at a time
_TYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.complex64: "C64",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16",
}  # fmt: skip


def save_state(path: Path, state: State, write: Write = write_bytes) -> str:
    """Write a state. Return the digest of the file."""
    arrays: dict[str, Tensor | ClientTable] = {}
    tree = json.dumps(_pack(state, arrays, ""))
    found = hashlib.blake2b(digest_size=16)

    def parts() -> Iterator[bytes | memoryview]:
        for part in _safetensors(arrays, tree):
            found.update(part)
            yield part

    write(path, parts())
    return found.hexdigest()


def _safetensors(arrays: dict[str, Tensor | ClientTable], tree: str) -> Iterator[bytes | memoryview]:
    """The parts of a safetensors file: the length of the header, the header, each array. Of a table the rows that were
    written are stored, a block at a time."""
    header: dict[str, Any] = {"__metadata__": {"state": tree}}
    end = 0
    order = sorted(arrays, key=lambda name: -_element(arrays[name]).element_size())  # so that all are aligned
    for name in order:
        value = arrays[name]
        shape = list(value.shape) if isinstance(value, Tensor) else [len(value.written), value.shape[1]]
        start, end = end, end + prod(shape) * _element(value).element_size()
        header[name] = {"dtype": _TYPES[_element(value).dtype], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text))
    yield text
    for name in order:
        value = arrays[name]
        for block in [value] if isinstance(value, Tensor) else (rows for _, rows in value.blocks(value.written)):
            yield block.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _element(value: Tensor | ClientTable) -> Tensor:
    return value if isinstance(value, Tensor) else value.default


def load_state(path: Path) -> State:
    try:
        with safe_open(path, framework="pt") as f:
            tree = json.loads(f.metadata()["state"])
            # Copies: in the file, arrays may be unaligned, which changes BLAS rounding.
            state = _unpack(tree, f)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise StorageError(f"Cannot read the state in {path}: {error}") from error
    if not isinstance(state, dict):
        raise StorageError(f"Cannot read the state in {path}: it holds a {type(state).__name__}")
    return state


def _pack(value: Any, arrays: dict[str, Tensor | ClientTable], name: str) -> Any:
    if isinstance(value, ClientTable):
        parts = {"size": len(value), "default": value.default, "ids": value.written}
        tree = _pack(parts, arrays, name)
        name = f"{len(arrays)}{name}/rows"
        arrays[name] = value
        return {_TABLE: {**tree, "rows": name}}
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


def _unpack(tree: Any, file: Any) -> Any:
    if isinstance(tree, dict):
        if _ARRAY in tree:
            return file.get_tensor(tree[_ARRAY]).clone()
        if _TABLE in tree:
            return _unpack_table(tree[_TABLE], file)
        return {k: _unpack(v, file) for k, v in tree.items()}
    if isinstance(tree, list):
        return [_unpack(v, file) for v in tree]
    return tree


def _unpack_table(tree: Any, file: Any) -> ClientTable:
    default, ids = (_unpack(tree[name], file) for name in ("default", "ids"))
    table, rows = ClientTable(default, tree["size"]), file.get_slice(tree["rows"])
    step = max(1, _BLOCK // max(1, default.nbytes))
    for start in range(0, len(ids), step):
        table = table.with_rows(ids[start : start + step], rows[start : start + step])
    return table


def equal(a: Any, b: Any) -> bool:
    """Are two states equal to the bit?"""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        if not (isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype == b.dtype and a.shape == b.shape):
            return False
        # compared as bytes: NaN equals NaN, and 0.0 does not equal -0.0
        return torch.equal(*(t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (a, b)))
    if isinstance(a, ClientTable) and isinstance(b, ClientTable):
        same = equal([a.shape, a.written, a.default], [b.shape, b.written, b.default])
        return same and all(equal(rows, b[ids]) for ids, rows in a.blocks(a.written))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b))
    if isinstance(a, dict | list | tuple) or isinstance(b, dict | list | tuple):
        return False
    return json.dumps(a) == json.dumps(b)  # as they are stored: True does not equal 1, NaN equals NaN
