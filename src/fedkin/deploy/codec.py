"""What travels: arrays as raw bytes with their dtype and shape, everything else as typed fields. No pickle.

Both sides check what they receive, because neither has a reason to trust the other's version or machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from math import isfinite, prod
from typing import Any, NamedTuple, cast, get_type_hints

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedkin.protocol import Message
from fedkin.task import TASKS, Classification, Task

VERSION = 3
RAW = "fedkin.raw"  # little-endian, row after row
DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name) for name in ("float32", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
}
SCORED = ("personal", "validation", "received")
# Limits of what the other side may send. No honest site comes near them; a run's own are lower (`run.max_examples`).
MOST_EXAMPLES = 10**9
MOST_CLASSES = 10**4
MOST_NUMBERS = 10**8  # in one example
MOST_FLOPS = 1e24
MOST_SECONDS = 1e8
MOST_ROUNDS = 10**7
MOST_TEXT = 2000  # characters of an error or of notes
LARGEST_SCORE = 1e30
DESCRIBED = re.compile(r"model_[a-z][a-z0-9_]{0,39}")  # what a method reports on a personal model (`describe_personal`)
MOST_DESCRIBED = 20
MOST_STATISTICS = 10**6  # characters


class Malformed(ValueError):
    """A message that is not valid."""


class Request(NamedTuple):
    """A task as it goes to a site."""

    run: str
    client: str
    """The client's own name."""
    number: int
    """The server's number for this client: seeds are made from it."""
    round: int
    function: str
    """A client function of the method; "" if the client is only evaluated."""
    state: str
    """Name of the private state to start from; "" before there is any."""
    new_state: str
    keep: str
    """Names of all states that may still be needed, separated by spaces."""
    measure: bool
    models: bool
    """Keep the personal model on the site's disk."""
    classes: int
    data: str
    """The built-in data set that all sites use, or "own"."""
    preprocessing: str = ""
    """The preprocessing that the sites agreed on, as JSON; "" if each prepares its table by itself."""
    outputs: int = 0
    """Outputs of the network; 0: one for each class."""


class Text(NamedTuple):
    """A text that goes between server and site: statistics of a table, or the preprocessing made from them."""

    text: str = ""


class Answer(NamedTuple):
    client: str
    has_state: bool
    flops: float
    seconds: float
    error: str
    model: str
    notes: str
    """One on each line."""
    released: int = 0
    """Number of noisy releases of the site's data (`--privacy`)."""
    one_class: bool = False
    """Does the personal model predict the same class for every test example?"""


class SiteInfo(NamedTuple):
    """What a site says about itself: how much data it has, never the data."""

    client: str
    data: str
    shape: str
    columns: str
    """Digest of the columns' names in order; "" if they have none."""
    classes: int
    train: int
    validation: int
    test: int
    error: str = ""
    """Why this site cannot take part."""
    task: str = "classification"
    """The kind of its targets: classification, regression or multilabel."""
    outputs: int = 0
    """Targets of a regression or labels of a multi-label task; 0 in a classification."""
    fedkin: str = ""
    """The version of fedkin that is installed there."""


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
            f"The other side uses a different version of the protocol than {VERSION}: install the same fedkin."
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
    """`message` is this client's own part."""
    own = cast(tuple[Tensor, ...], message.own)
    return RecordDict({"fields": _fields(request), "arrays": _arrays({"shared": message.shared, "own": own})})


def decode_request(record: RecordDict) -> tuple[Request, Message]:
    parts = _parts(record, ("shared", "own"))
    request: Request = _read(Request, record)
    _within("classes", request.classes, 0 if request.outputs else 1, MOST_CLASSES)
    _within("outputs", request.outputs, 0, MOST_CLASSES)
    _within("round", request.round, 1, MOST_ROUNDS)
    return request, Message(parts["shared"], parts["own"])


def encode_answer(answer: Answer, body: Iterable[Tensor], scores: Mapping[str, float]) -> RecordDict:
    marks = ConfigRecord({name: float(value) for name, value in scores.items()})
    return RecordDict({"fields": _fields(answer), "arrays": _arrays({"body": body}), "scores": marks})


def decode_answer(record: RecordDict, task: Task | None = None) -> tuple[Answer, tuple[Tensor, ...], dict[str, float]]:
    answer: Answer = _read(Answer, record)
    _within("flops", answer.flops, 0, MOST_FLOPS)
    _within("seconds", answer.seconds, 0, MOST_SECONDS)
    _within("released", answer.released, 0, MOST_ROUNDS)
    _within("length of its texts", max(len(answer.error), len(answer.notes)), 0, MOST_TEXT)
    body = _parts(record, ("body",))["body"]
    for array in body:
        if array.is_floating_point() and not bool(torch.isfinite(array).all()):
            raise Malformed("The reply holds NaN or infinity.")
    marks = record.get("scores")
    if not isinstance(marks, ConfigRecord):
        raise Malformed("The reply has no scores.")
    ranges = _score_ranges(task or Classification())
    scores: dict[str, float] = {}
    described = [name for name in marks if name not in ranges and DESCRIBED.fullmatch(name)]
    ranges |= dict.fromkeys(described[:MOST_DESCRIBED], (-LARGEST_SCORE, LARGEST_SCORE))
    for name, value in marks.items():
        if name not in ranges or type(value) is not float:
            raise Malformed(f"The reply has the score {name}; known are numbers named {', '.join(ranges)}.")
        if isfinite(value):  # else it is not defined here, like the AUC of one class
            _within(f"score {name}", value, *ranges[name])
            scores[name] = value
    return answer, body, scores


def _score_ranges(task: Task) -> dict[str, tuple[float, float]]:
    """The scores that a site may send, with their ranges."""
    out = {}
    for kind in SCORED:
        for metric in (*task.metrics, "loss"):
            least, most = task.known[metric].range if metric != "loss" else (task.least_loss, LARGEST_SCORE)
            name = kind if metric == task.headline else f"{kind}_{metric}"
            out[name] = (-LARGEST_SCORE if least is None else max(least, -LARGEST_SCORE), min(most, LARGEST_SCORE))
    return out


def _within(what: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise Malformed(f"{what} is {value:g}; it must lie in [{least:g}, {most:g}].")


def encode_text(text: str) -> RecordDict:
    return RecordDict({"fields": _fields(Text(text))})


def decode_text(record: RecordDict) -> str:
    found: Text = _read(Text, record)
    _within("length of the text", len(found.text), 0, MOST_STATISTICS)
    return found.text


def decode_statistics(record: RecordDict) -> dict[str, Any]:
    """Statistics of a site's table: names, levels, counts, means and variances of its columns and targets."""
    try:
        found = json.loads(decode_text(record))
        columns, classes, targets = found["columns"], found["classes"], found["targets"]
        sound = set(found) == {"columns", "classes", "task", "targets"} and found["task"] in TASKS
        sound = sound and all(isinstance(name, str) for name in classes) and len(classes) <= MOST_CLASSES
        sound = sound and 0 < len(columns) <= MOST_NUMBERS and len({c["name"] for c in columns}) == len(columns)
        sound = sound and len(targets) <= MOST_CLASSES and bool(targets) == (found["task"] != "classification")
        sound = sound and all(target.keys() <= {"name", "known", "mean", "variance"} for target in targets)
        for entry in (*columns, *targets):
            numbers = [
                entry.get("known", 0),
                entry.get("missing", 0),
                entry.get("mean", 0.0),
                entry.get("variance", 0.0),
            ]
            sound = sound and all(type(n) in (int, float) and isfinite(n) and abs(n) < LARGEST_SCORE for n in numbers)
            sound = sound and all(0 <= n <= MOST_EXAMPLES for n in numbers[:2]) and numbers[3] >= 0
            sound = sound and isinstance(entry["name"], str)
        for column in columns:
            sound = sound and {"known", "missing"} <= column.keys() and column["kind"] in ("number", "category")
            sound = sound and all(isinstance(level, str) for level in column["levels"])
            sound = sound and column.keys() <= {"name", "kind", "levels", "known", "missing", "mean", "variance"}
    except (ValueError, KeyError, TypeError, AttributeError):
        sound = False
    if not sound:
        raise Malformed("its statistics are not names, levels, counts, finite means and variances of columns.")
    return dict(found)


def encode_info(info: SiteInfo) -> RecordDict:
    return RecordDict({"fields": _fields(info)})


def decode_info(record: RecordDict) -> SiteInfo:
    info: SiteInfo = _read(SiteInfo, record)
    _within("length of its texts", max(len(text) for text in info if isinstance(text, str)), 0, MOST_TEXT)
    if not re.fullmatch(r"[\w.+!-]{0,40}", info.fedkin):
        raise Malformed("fedkin must be a version.")
    if info.error:
        return info
    _within("train", info.train, 1, MOST_EXAMPLES)
    _within("validation", info.validation, 0, MOST_EXAMPLES)
    _within("test", info.test, 0, MOST_EXAMPLES)
    if info.task not in TASKS:
        raise Malformed(f"task must be one of {', '.join(TASKS)}.")
    classified = info.task == "classification"
    _within("classes", info.classes, int(classified), MOST_CLASSES if classified else 0)
    _within("outputs", info.outputs, 1 - classified, 0 if classified else MOST_CLASSES)
    sizes = info.shape.split()
    if not sizes or not all(size.isdecimal() and len(size) < 10 for size in sizes):
        raise Malformed("shape must be whole numbers separated by spaces.")
    _within("size of an example", prod(map(int, sizes)), 1, MOST_NUMBERS)
    return info


def claimed_name(record: RecordDict) -> str:
    """The name in a `SiteInfo` that is otherwise malformed; empty if there is none."""
    found = record.get("fields")
    name = found.get("client") if isinstance(found, ConfigRecord) else None
    return name if isinstance(name, str) else ""


def refusal(record: RecordDict) -> str:
    """Why a site refused; empty if this is not a refusal."""
    found = record.get("fields")
    why = found.get("error") if isinstance(found, ConfigRecord) else None
    return why[:MOST_TEXT] if isinstance(why, str) else ""
