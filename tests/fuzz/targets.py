"""What is fuzzed. A target makes a case from a drawn value and says whether it worked or was refused."""

from __future__ import annotations

import functools
import io
import json
import random
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
from hypothesis import strategies as st

from fedkin.cli.flags import Part
from fedkin.methods import METHODS
from fedkin.registry import construct, field_types
from tests.fuzz import values as odd
from tests.fuzz.harness import REFUSED, WORKED, command, outcome, watched

SMALL = {
    "data": "digits", "clients": "3", "samples-per-client": "20", "rounds": "1", "engine": "serial", "batch-size": "10",
}  # fmt: skip
WORK = {"rounds", "epochs", "seeds", "clients", "data.samples", "batch-size", "data.features", "workers"}


def flags(given: dict[str, str]) -> list[str]:
    return [word for name, value in given.items() for word in (f"--{name}", value)]


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as made:
        yield Path(made)


# ---- the command line
def _all_flags() -> dict[str, Any]:
    """Flags of run, with their types."""
    from fedkin.cli import settings
    from fedkin.cli.config import Config

    parts: list[Part] = settings.parts(["--data", "synthetic", "--partition", "dirichlet"], Config())
    kinds = {part.flag(name): kind for part in parts for name, kind in field_types(type(part.default)).items()}
    return {k: v for k, v in kinds.items() if k not in ("wandb", "mlflow", "tensorboard", "ray-address", "data-dir")}


FLAGS = _all_flags()


def _value(flag: str) -> st.SearchStrategy[str]:
    """Mostly numbers for a flag that takes a number; no large ones where they only mean more work."""
    if flag in WORK:
        return st.one_of(odd.count, st.integers(1, 12).map(str))
    if FLAGS[flag] in (int, float, int | None):
        return st.one_of(odd.odd_number, st.floats(0, 2, width=32).map(str), odd.odd, odd.huge)
    return st.one_of(odd.odd, odd.huge)


def run_flags(drawn: tuple[str, list[tuple[str, str]]]) -> str:
    """`fedkin run` and `compare` with odd values of any flag."""
    name, given = drawn
    with folder() as root:
        chosen = {**SMALL, **dict(given)}
        if chosen["engine"] in ("pool", "ray"):
            chosen["engine"] = "serial"
        return outcome([name, "fedavg", *flags(chosen), "--quiet"], root)


run_flags_values = st.tuples(
    st.sampled_from(("run", "run", "compare")),
    st.lists(
        st.sampled_from(sorted(FLAGS)).flatmap(lambda name: st.tuples(st.just(name), _value(name))),
        min_size=1,
        max_size=2,
    ),
)

# fmt: off
COMMANDS = ("run", "compare", "sweep", "report", "figures", "list", "cite", "predict", "join", "export", "new",
            "completion", "watch", "deploy", "bench", "reproduce", "verify", "fly", "")
WORDS = ("fedavg", "method", "init", "keys", "DIR", "--help", "--out", "--client", "--data", "--port", "--format",
         "--grid", "--config", "--json", "--seeds", "--name", "-h", "--quiet", "--wide")
# fmt: on


def words(drawn: tuple[str, list[str]]) -> str:
    """Any command with any words. What would do real work is kept from doing it by a flag that nobody knows."""
    name, rest = drawn
    if name in ("run", "compare", "sweep", "bench", "reproduce", "verify", "deploy"):
        rest = [*rest, "--nonsense"]
    with folder() as root:
        served = _served_once()
        try:
            return outcome([name, *rest], root)
        finally:
            served()


words_values = st.tuples(
    st.sampled_from(COMMANDS), st.lists(st.one_of(st.sampled_from(WORDS), odd.odd, odd.huge), max_size=4)
)


def _served_once() -> Callable[[], None]:
    """`watch` ends at once instead of serving forever. Returns how to undo that."""
    from http.server import ThreadingHTTPServer

    before = ThreadingHTTPServer.serve_forever
    ThreadingHTTPServer.serve_forever = lambda self, poll_interval=0.5: None  # type: ignore[method-assign]

    def undo() -> None:
        ThreadingHTTPServer.serve_forever = before  # type: ignore[method-assign]

    return undo


@functools.cache
def _fields() -> list[tuple[str, str, bool]]:
    """Method, field, and whether it counts something: a large count is no mistake, but the case would take long."""
    return [
        (name, field, kind is int)
        for name, entry in METHODS.items()
        for field, kind in field_types(type(construct(entry.load(), name, entry.preset))).items()
    ]


def method_fields(drawn: tuple[tuple[str, str, bool], str]) -> str:
    """Odd values of a method's field."""
    (name, field, _), value = drawn
    with folder() as root:
        return outcome(["compare", f"{name},{field}={value}", *flags(SMALL), "--quiet"], root)


method_fields_values = st.deferred(lambda: st.sampled_from(_fields())).flatmap(
    lambda field: st.tuples(st.just(field), odd.count if field[2] else odd.odd)
)


# ---- config files
TOML = """
rounds = 1
lr = 0.1
engine = "serial"
samples-per-client = 20
clients = 3
[method]
name = "fedprox"
mu = 0.5
[data]
name = "digits"
[partition]
name = "dirichlet"
alpha = 0.2
[training]
batch_size = 10
[model]
name = "mlp"
"""


def toml(seed: int) -> str:
    """A damaged .toml."""
    with folder() as root:
        (root / "own.toml").write_bytes(odd.damaged(TOML.encode(), seed))
        return outcome(["run", "--config", "own.toml", "--quiet", *flags({**SMALL, "data": "digits"})], root)


@functools.cache
def finished() -> Path:
    """A finished run, and in the same folder the run stopped after four of its rounds."""
    root = Path(tempfile.mkdtemp(prefix="fuzz-run-"))
    for name, rounds in (("run", 6), ("stopped", 4)):
        command([*RUN, "--rounds", str(rounds), "--out", str(root / name)], root)
    for name in ("summary.json", "checksums.json"):
        (root / "stopped" / name).unlink()
    return root


RUN = ["run", "ditto", *flags({**SMALL, "evaluate-every": "3", "checkpoint-every": "2"}), "--quiet"]
seeds = st.integers(0, 2**32)


def run_config(seed: int) -> str:
    """A config.json of an earlier run, altered."""
    tree = odd.altered(json.loads((finished() / "run/config.json").read_text()), seed)
    with folder() as root:
        (root / "config.json").write_text(odd.to_json(tree))
        small = {k: v for k, v in SMALL.items() if k not in ("data", "clients")}
        return outcome(["run", "--config", "config.json", *flags(small), "--quiet"], root)


# ---- data files
def _csv(rng: random.Random) -> bytes:
    rows = [f"{rng.random():.3f},{rng.choice('abc')},{rng.randrange(3)}" for _ in range(12)]
    return "\n".join(["height,kind,y", *rows, ""]).encode()


def _npz(rng: random.Random) -> bytes:
    made = np.random.default_rng(rng.randrange(2**32))
    out = io.BytesIO()
    save = np.savez_compressed if rng.random() < 0.5 else np.savez
    save(out, x=made.normal(size=(12, 4)).astype("float32"), y=np.arange(12) % 3)
    return out.getvalue()


def _hostile_npz(rng: random.Random) -> bytes:
    """Arrays that lie about their size, hold objects, or are zip bombs."""
    kind = rng.randrange(6)
    out = io.BytesIO()
    x: Any = np.zeros((12, 4), "float32")
    y: Any = np.arange(12) % 3
    if kind == 0:
        x = np.array([{"a": 1}] * 12, dtype=object)
    elif kind == 1:
        y = rng.choice((np.full(12, 10**8), np.full(12, 2**62), np.full(12, np.nan), np.full(12, "é"), np.zeros(0)))
    elif kind == 2:
        x = rng.choice((np.zeros((12, 0)), np.zeros((0, 4)), np.zeros(12), np.float64(3), np.full((12, 4), np.inf),
                        np.full((12, 4), 1e300), np.zeros((12, 4), "M8[s]"), np.zeros((12, 4), complex)))  # fmt: skip
    np.savez(out, x=x, y=y)
    if kind < 3:
        return out.getvalue()
    shape = rng.choice(((10**12, 4), (10**6, 10**6), (2**63, 2), (-1, 4), (12, 4)))
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (64 - (10 + len(header)) % 64 - 1) + b"\n"
    body = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
    body += bytes(rng.choice((0, 192, 20_000_000)))
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as bundle, np.load(io.BytesIO(out.getvalue())) as stored:
        bundle.writestr("x.npy", body)
        inner = io.BytesIO()
        np.save(inner, stored["y"])
        bundle.writestr(rng.choice(("y.npy", "../y.npy", "/y.npy")), inner.getvalue())
    return bomb.getvalue()


def _parquet(rng: random.Random) -> bytes:
    import pyarrow
    from pyarrow import parquet

    out = io.BytesIO()
    columns = {
        "height": [rng.random() for _ in range(12)],
        "kind": [rng.choice("abc") for _ in range(12)],
        "y": [i % 3 for i in range(12)],
    }
    if rng.random() < 0.3:
        columns["kind"] = rng.choice(([[1]] * 12, [None] * 12, [b"x"] * 12, [float("nan")] * 12, [2**63 - 1] * 12))
    parquet.write_table(pyarrow.table(columns), out, compression=rng.choice(("snappy", "gzip", "none", "zstd")))
    return out.getvalue()


# fmt: off
CSV_LINES = (b"#1,a,2\n", b"1e999,b,1\n", b"nan,a,1\n", b'"1,a,1\n', b"1;a;1\n", b"1,a,1e8\n", b"1,a,-1\n",
             b"1,a,0.5\n", b"1,a,\n", b",,\n", b"\n", b"1,a,1,1\n", b"1,a\n", b"=1+1,a,2\n", b"\xff\xfe,a,1\n",
             b"1," + b"x" * 200_000 + b",1\n", b"height,kind,y\n", b"9" * 400 + b",a,1\n", b"1,a," + b"9" * 30 + b"\n")
# fmt: on
MAKERS: dict[str, Callable[[random.Random], bytes]] = {"csv": _csv, "npz": _npz, "parquet": _parquet, "tsv": _csv}


def own_data(seed: int) -> str:
    """A folder of one's own data, with a file that is damaged or hostile."""
    rng = random.Random(seed)
    kind = rng.choice(list(MAKERS))
    with folder() as root:
        data = root / "data"
        data.mkdir()
        for name in ("north", "south"):
            (data / f"{name}.{kind}").write_bytes(MAKERS[kind](rng))
        victim = data / f"south.{kind}"
        if kind == "npz" and rng.random() < 0.5:
            victim.write_bytes(_hostile_npz(rng))
        elif kind == "csv" and rng.random() < 0.5:
            lines = victim.read_bytes().splitlines(keepends=True)
            lines.insert(rng.randrange(len(lines) + 1), rng.choice(CSV_LINES))
            victim.write_bytes(b"".join(lines))
        else:
            victim.write_bytes(odd.damaged(victim.read_bytes(), seed))
        given = {k: v for k, v in SMALL.items() if k not in ("data", "clients", "samples-per-client")}
        return outcome(["run", "local", "--data", "data", *flags(given), "--quiet"], root)


@functools.cache
def _images() -> dict[str, dict[str, bytes]]:
    """Small files in the formats of MNIST and CIFAR."""
    import gzip

    rng = np.random.default_rng(1)
    mnist: dict[str, bytes] = {}
    for part, count in (("train", 40), ("t10k", 20)):
        x = struct.pack(">4B3I", 0, 0, 8, 3, count, 28, 28) + rng.integers(0, 256, count * 784, np.uint8).tobytes()
        y = struct.pack(">4BI", 0, 0, 8, 1, count) + (np.arange(count) % 10).astype(np.uint8).tobytes()
        mnist[f"mnist/{part}-images-idx3-ubyte.gz"] = gzip.compress(x, mtime=0)
        mnist[f"mnist/{part}-labels-idx1-ubyte"] = y
    cifar = {}
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        records = rng.integers(0, 256, (10, 3073)).astype(np.uint8)
        records[:, 0] = np.arange(10)
        cifar[f"cifar-10-batches-bin/{name}.bin"] = records.tobytes()
    return {"mnist": mnist, "cifar10": cifar}


def images(seed: int) -> str:
    """Files of MNIST or CIFAR, one of them damaged."""
    rng = random.Random(seed)
    data = rng.choice(("mnist", "cifar10"))
    with folder() as root:
        contents = dict(_images()[data])
        name = rng.choice(list(contents))
        contents[name] = odd.damaged(contents[name], seed)
        for path, content in contents.items():
            (root / "files" / path).parent.mkdir(parents=True, exist_ok=True)
            (root / "files" / path).write_bytes(content)
        model = {"model": "mlp", "partition": "iid", "data": data, "data-dir": "files"}
        return outcome(["run", "local", *flags({**SMALL, **model}), "--quiet"], root)


# ---- checkpoints and finished runs
def checkpoints(seed: int) -> str:
    """A stopped run with a damaged file: it goes on to the same bits, or it is refused and left as it is."""
    rng = random.Random(seed)
    with folder() as root:
        run = root / "run"
        shutil.copytree(finished() / "stopped", run)
        files = sorted(p for p in run.rglob("*") if p.is_file() and p.name not in ("timing.jsonl", "report.html"))
        for _ in range(rng.choice((1, 1, 2))):
            victim = rng.choice(files)
            if rng.random() < 0.1:
                victim.unlink(missing_ok=True)
            elif victim.exists():
                victim.write_bytes(odd.damaged(victim.read_bytes(), rng.randrange(2**32)))
        before = _content(run)
        result = outcome([*RUN, "--rounds", "6", "--out", "run"], root)
        if result == REFUSED:
            assert _content(run) == before, "a run that is refused must stay as it is"
        else:
            straight = finished() / "run"
            for name in ("history.jsonl", "summary.json"):
                assert (run / name).read_bytes() == (straight / name).read_bytes(), f"{name} has other content"
        return result


def _content(run: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in run.rglob("*") if p.is_file() and p.name != ".fedkin"}


def damaged_run(seed: int) -> str:
    """A finished run with a damaged file, read by the commands that use it."""
    rng = random.Random(seed)
    with folder() as root:
        run = root / "run"
        shutil.copytree(finished() / "run", run)
        files = sorted(p for p in run.rglob("*") if p.is_file())
        victim = rng.choice(files)
        victim.write_bytes(odd.damaged(victim.read_bytes(), seed))
        if rng.random() < 0.5:
            (run / "checksums.json").unlink()
        np.save(root / "new.npy", np.zeros((2, 1, 8, 8), "float32"))
        what = rng.choice((
            ["predict", "run", "--client", "client 0", "--data", "new.npy"],
            ["report", "run"],
            [*RUN, "--rounds", "6", "--out", "run", "--json"],
        ))  # fmt: skip
        verified = (run / "checksums.json").exists()
        said = command(what, root)
        if verified and not said.code and what[0] != "report":
            assert said.out == _sound_output(tuple(what)), f"damaged {victim}, and another answer"
        return REFUSED if said.code else WORKED


@functools.cache
def _sound_output(words: tuple[str, ...]) -> str:
    """What a command says of the run that is not damaged."""
    with folder() as root:
        shutil.copytree(finished() / "run", root / "run")
        np.save(root / "new.npy", np.zeros((2, 1, 8, 8), "float32"))
        return command(words, root).out


def report(seed: int) -> str:
    """The report of a run whose config or history somebody wrote by hand. With `watch`, an answer and no exception."""
    rng = random.Random(seed)
    with folder() as root:
        run = root / "run"
        run.mkdir()
        source = finished() / "run"
        config = json.loads((source / "config.json").read_text())
        records = [json.loads(line) for line in (source / "history.jsonl").read_text().splitlines()]
        if rng.random() < 0.4:
            config = odd.altered(config, seed)
        else:
            records = odd.altered(records, seed)
        (run / "config.json").write_text(odd.to_json(config))
        (run / "history.jsonl").write_text("".join(odd.to_json(r) + "\n" for r in records))
        kind = rng.choice(("report", "report", "watch", "figures") if rng.random() < 0.2 else ("report", "watch"))
        if kind == "watch":
            return _watched_page(root)
        return outcome([kind, "run"] + (["--format", "svg"] if kind == "figures" else []), root)


def _watched_page(root: Path) -> str:
    """What the server of `watch` would answer."""
    from fedkin.report.watch import Feed, Handler

    handler = Handler.__new__(Handler)
    handler.feed = Feed([root / "run"], lambda labels: "")
    handler.path = "/data.json"
    handler.headers = {"Host": "localhost"}  # type: ignore[assignment]
    answers: list[int] = []
    handler._answer = lambda code, kind, text: answers.append(code)  # type: ignore[method-assign]
    with watched(root) as seen:
        handler.do_GET()
    assert not seen
    assert answers[0] in (200, 204, 503)
    return WORKED if answers[0] == 200 else REFUSED


# ---- what travels between sites
def filled(kind: Any) -> Any:
    """A named tuple of the codec with something in every field."""
    some = {str: "north", int: 3, float: 0.5, bool: True}
    return kind(**{name: some[hint] for name, hint in get_type_hints(kind).items()})


def codec(seed: int) -> str:
    """A message of a site or of the server with damage in its bytes, its fields or its arrays."""
    import torch
    from flwr.app import RecordDict
    from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
    from flwr.proto.recorddict_pb2 import RecordDict as Proto
    from google.protobuf.message import DecodeError

    from fedkin.deploy import codec as wire
    from fedkin.protocol import Message

    rng = random.Random(seed)
    vector = torch.arange(12, dtype=torch.float32)
    made: list[tuple[RecordDict, Callable[[RecordDict], Any]]] = [
        (wire.encode_request(filled(wire.Request), Message((vector,), (vector,))), wire.decode_request),
        (wire.encode_answer(filled(wire.Answer), (vector,), {"personal": 0.5}),
         wire.decode_answer),
        (wire.encode_info(filled(wire.SiteInfo)), wire.decode_info),
    ]  # fmt: skip
    record, decode = rng.choice(made)
    with folder() as root, watched(root) as seen:
        content = odd.damaged(recorddict_to_proto(record).SerializeToString(), seed)
        try:
            came = recorddict_from_proto(Proto.FromString(content))
        except (DecodeError, ValueError, TypeError, KeyError, AttributeError):
            return REFUSED  # by Flower, before it reaches us
        try:
            decode(came)
        except wire.Malformed:
            return REFUSED
        finally:
            assert not seen
    return WORKED


Target = Callable[[Any], str]
TARGETS: dict[str, tuple[str, Target, Any, float]] = {
    "codec": ("messages between server and sites", codec, seeds, 0.1),
    "toml": ("config files (.toml)", toml, seeds, 0.1),
    "words": ("command line: commands and words", words, words_values, 0.25),
    "fields": ("command line: fields of all methods", method_fields, method_fields_values, 0.12),
    "report": ("report and watch", report, seeds, 0.07),
    "damaged": ("files of a finished run", damaged_run, seeds, 0.04),
    "own": ("own data: .csv, .tsv, .npz, .parquet", own_data, seeds, 0.1),
    "config": ("config.json of a run", run_config, seeds, 0.04),
    "images": ("data sets: idx, CIFAR", images, seeds, 0.04),
    "checkpoints": ("checkpoints of a stopped run", checkpoints, seeds, 0.02),
    "flags": ("command line: flags of run and compare", run_flags, run_flags_values, 0.12),
}
"""By name: what it is, the target, its values, and its share of all cases."""
