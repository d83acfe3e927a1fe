"""What travels: arrays as raw bytes with their dtype and shape, everything else as typed fields. No pickle.

Both sides check what they receive, because neither has a reason to trust the other's version or machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, NamedTuple, cast, get_type_hints

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedkin.protocol import Message

VERSION = 1
RAW = "fedkin.raw"  # little-endian, row after row
DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name) for name in ("float32", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
}
SCORES = ("personal", "personal_loss", "validation", "validation_loss", "received", "received_loss")


class Malformed(ValueError):
    """A message that is not what it should be."""


class Request(NamedTuple):
    """A task as it goes to a site."""

    run: str
    client: str
    """The client's own name."""
    number: int
    """What the server calls it: seeds are made of it."""
    round: int
    function: str
    """A client function of the method; "" where the client is only measured."""
    state: str
    """Name of the private state to start from; "" before there is any."""
    new_state: str
    keep: str
    """Names of all states that may still be asked for, with blanks between."""
    measure: bool
    models: bool
    """Keep the personal model on the site's disk."""
    classes: int
    data: str
    """The built-in data set that all sites use, or "own"."""


class Answer(NamedTuple):
    client: str
    has_state: bool
    flops: float
    seconds: float
    error: str
    model: str
    notes: str
    """One on each line."""


class SiteInfo(NamedTuple):
    """What a site says of itself: how much data it has, never which."""

    client: str
    data: str
    shape: str
    columns: str
    """Digest of the columns' names, "" where they have none: in another order they would be another thing."""
    classes: int
    train: int
    validation: int
    test: int
    error: str = ""
    """Why this site cannot take part."""


# ---- arrays
def pack(tensor: Tensor) -> Array:
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise Malformed(f"An array of {name} cannot be sent; allowed: {', '.join(DTYPES)}.")
    data = tensor.detach().cpu().contiguous().numpy().tobytes()
    return Array(dtype=name, shape=tuple(tensor.shape), stype=RAW, data=data)


def unpack(array: Array) -> Tensor:
    if array.stype != RAW:
        raise Malformed(f"An array came as '{array.stype}'; expected '{RAW}'.")
    if array.dtype not in DTYPES:
        raise Malformed(f"An array came with dtype '{array.dtype}'; allowed: {', '.join(DTYPES)}.")
    dtype, shape = DTYPES[array.dtype], tuple(array.shape)
    if not all(type(size) is int and size >= 0 for size in shape):
        raise Malformed(f"An array came with the shape {shape}; sizes are whole numbers from 0.")
    expected = prod(shape) * dtype.itemsize
    if len(array.data) != expected:
        raise Malformed(f"An array of {array.dtype}{list(shape)} needs {expected} bytes; {len(array.data)} came.")
    if not expected:
        return torch.empty(shape, dtype=dtype)
    if dtype is torch.bool and array.data.strip(b"\x00\x01"):
        raise Malformed("An array of bool holds other bytes than 0 and 1.")
    return torch.frombuffer(bytearray(array.data), dtype=dtype).reshape(shape)


def _arrays(parts: Mapping[str, Iterable[Tensor]]) -> ArrayRecord:
    return ArrayRecord({f"{kind}.{i}": pack(a) for kind, list_ in parts.items() for i, a in enumerate(list_)})


def _parts(record: RecordDict, kinds: tuple[str, ...]) -> dict[str, tuple[Tensor, ...]]:
    found = record.get("arrays")
    if not isinstance(found, ArrayRecord):
        raise Malformed("The message has no arrays.")
    out = {}
    left = set(found)
    for kind in kinds:
        count = sum(name.startswith(f"{kind}.") for name in found)
        names = [f"{kind}.{i}" for i in range(count)]
        if not set(names) <= left:
            raise Malformed(f"Arrays of '{kind}' are not numbered from 0: {', '.join(sorted(found))}.")
        out[kind] = tuple(unpack(found[name]) for name in names)
        left -= set(names)
    if left:
        raise Malformed(f"Unknown arrays: {', '.join(sorted(left))}; expected kinds: {', '.join(kinds)}.")
    return out


# ---- fields
def _fields(value: NamedTuple) -> ConfigRecord:
    return ConfigRecord({"version": VERSION, **value._asdict()})


def _read(kind: Any, record: RecordDict) -> Any:
    found = record.get("fields")
    if not isinstance(found, ConfigRecord):
        raise Malformed(f"The message has no fields of a {kind.__name__}.")
    fields = dict(found)
    if fields.pop("version", None) != VERSION:
        raise Malformed(
            f"The other side speaks another version of the protocol than {VERSION}: install the same fedkin."
        )
    expected = get_type_hints(kind)
    if fields.keys() != expected.keys():
        raise Malformed(f"{kind.__name__} has the fields {', '.join(expected)}; {', '.join(fields)} came.")
    for name, value in fields.items():
        if type(value) is not expected[name]:
            raise Malformed(f"{kind.__name__}.{name} is a {type(value).__name__}; expected {expected[name].__name__}.")
    return kind(**fields)


# ---- the four messages
def encode_request(request: Request, message: Message) -> RecordDict:
    """`message` is this client's own row."""
    own = cast(tuple[Tensor, ...], message.own)
    return RecordDict({"fields": _fields(request), "arrays": _arrays({"shared": message.shared, "own": own})})


def decode_request(record: RecordDict) -> tuple[Request, Message]:
    parts = _parts(record, ("shared", "own"))
    return _read(Request, record), Message(parts["shared"], parts["own"])


def encode_answer(answer: Answer, body: Iterable[Tensor], scores: Mapping[str, float]) -> RecordDict:
    marks = ConfigRecord({name: float(value) for name, value in scores.items()})
    return RecordDict({"fields": _fields(answer), "arrays": _arrays({"body": body}), "scores": marks})


def decode_answer(record: RecordDict) -> tuple[Answer, tuple[Tensor, ...], dict[str, float]]:
    answer: Answer = _read(Answer, record)
    body = _parts(record, ("body",))["body"]
    for array in body:
        if array.is_floating_point() and not bool(torch.isfinite(array).all()):
            raise Malformed("The reply holds NaN or infinity.")
    marks = record.get("scores")
    if not isinstance(marks, ConfigRecord):
        raise Malformed("The reply has no scores.")
    scores: dict[str, float] = {}
    for name, value in marks.items():
        if name not in SCORES or type(value) is not float:
            raise Malformed(f"The reply has the score {name}={value!r}; known are numbers named {', '.join(SCORES)}.")
        scores[name] = value
    return answer, body, scores


def encode_card(info: SiteInfo) -> RecordDict:
    return RecordDict({"fields": _fields(info)})


def decode_card(record: RecordDict) -> SiteInfo:
    info: SiteInfo = _read(SiteInfo, record)
    return info
