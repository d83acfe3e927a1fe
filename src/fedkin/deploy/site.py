"""One site with its own data and disk. What the server asks for is checked here before anything is done.

The client's private states are in `STATE/RUN/CLIENT/`, a file for each change, named by round and exchange. The server
says from which one to start; a task that is asked for again starts from the same one and writes the same next one, so
that no round is ever applied twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from flwr.app import RecordDict
from torch import Tensor

import fedkin
from fedkin.data import DATASETS, Arrays, from_file
from fedkin.data.federation import Federation, federate, site_statistics
from fedkin.data.preprocess import Fit, Preprocessing
from fedkin.deploy.codec import MOST_TEXT, Answer, Malformed, Request, SiteInfo, decode_request, encode_answer
from fedkin.deploy.plan import NAME, Plan, read
from fedkin.deploy.secure import Secure, exchange_of
from fedkin.deploy.secure import decode as decode_secure
from fedkin.deploy.secure import encode as encode_secure
from fedkin.deploy.secure_site import SecureSite
from fedkin.engine.costs import nbytes
from fedkin.engine.device import names as device_names
from fedkin.engine.device import open_device
from fedkin.engine.runner import ClientRunner, Evaluation, Outcome, RunSpec, Task, Work
from fedkin.models.build import maker, resolve
from fedkin.protocol import Message, is_client_function
from fedkin.registry import qualified
from fedkin.results.files import write_bytes, write_json
from fedkin.results.run import inputs_of
from fedkin.robust.privacy import Privacy

RUN = re.compile(r"[0-9a-f]{16}")
PACKAGE = Path(fedkin.__file__).parent
LOG = "requests.jsonl"
SHARES = ("", "each", "sites")  # each shares more than the one before
STATE = re.compile(r"client-\d{6,}-\d{6,}-\d+\.safetensors")


@dataclass(frozen=True)
class SiteConfig:
    """The site's own file (`--node-config north.toml`): it never leaves the site."""

    name: str
    """The client's name, which must never change."""
    data: str
    """A file of examples (.csv, .tsv or .parquet with named columns, .npz with `x` and `y`), or a built-in data set to
    try things with."""
    state: str
    """Folder for private states and personal models."""
    label: str = "y"
    """Column or array of the labels."""
    ignore: str = ""
    """Columns to leave out, separated by commas."""
    categorical: str = ""
    """Columns of numbers that stand for categories, separated by commas; columns of text always do."""
    missing: str = ""
    """Cells that mean "not known", separated by commas, besides empty ones, ?, NA and NaN."""
    decimal: str = "auto"
    """The decimal mark, if the file does not make it clear."""
    ordered: bool = False
    """Rows are in time order, and the latest ones are used for testing. Otherwise the split is random."""
    test: float = 0.2
    """Fraction of the examples used for testing."""
    validation: float = 0.1
    """Fraction of the examples used for validation."""
    threads: int = 1
    """PyTorch's threads. With 1, results are bit for bit those of a simulation."""
    device: str = "cpu"
    """Where the site computes: cpu, cuda, cuda:0, mps, or auto. Of several devices the first is used."""
    data_dir: str = ""
    """Built-in data: folder of its files."""
    partition: str = "dirichlet"
    """Built-in data: how it is spread over `clients`, of which this is number `part`."""
    clients: int = 1
    part: int = 0
    seed: int = 0
    share: str = ""
    """What this site shares of its table, so that all sites prepare theirs in the same way. each: names of columns,
    levels of categories, classes. sites: also means and variances. Empty: nothing."""
    allow: str = ""
    """Methods and models other than fedkin's own that this site may run, as module:name separated by commas."""
    functions: str = ""
    """Client functions that this site may run, separated by commas; empty: all of the method."""
    max_requests: int = 0
    """Maximum number of requests answered in one run; 0: no limit."""
    max_rounds: int = 0
    """The last round that is answered; 0: no limit."""
    max_bytes: int = 0
    """Maximum number of bytes of a reply; 0: no limit."""
    privacy: str = ""
    """Differential privacy of what leaves this site, such as client:clip=1,noise=1.1; empty: what the run says."""
    secure: bool = False
    """Replies leave this site under secure aggregation only: a run without it is refused."""

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> SiteConfig:
        known = {f.name: f for f in fields(cls)}
        types = {"str": str, "int": int, "float": float, "bool": bool}
        for name, value in given.items():
            if name not in known:
                raise ValueError(f"The site's file has '{name}'; known are {', '.join(known)}.")
            kind = types[str(known[name].type)]
            if not (type(value) is kind or (kind is float and type(value) is int)):
                raise ValueError(f"The site's file has {name}={value!r}; a {kind.__name__} is expected.")
        for name in ("name", "data", "state"):
            if name not in given:
                raise ValueError(f"The site's file must set {name}: start the supernode with --node-config FILE.toml.")
        config = cls(**given)
        for name in ("max_requests", "max_rounds", "max_bytes"):
            if getattr(config, name) < 0:
                raise ValueError(f"{name}={getattr(config, name)} must be at least 0 (0: no limit).")
        Privacy.read(config.privacy)
        if config.share not in SHARES:
            raise ValueError(f"share='{config.share}' must be each, sites, or empty.")
        if not NAME.fullmatch(config.name):
            raise ValueError(f"name='{config.name}': a name is made of letters, digits, '.', '_' and '-'.")
        for name in ("state", *(["data"] if config.data not in DATASETS else [])):
            if not Path(getattr(config, name)).is_absolute():
                raise ValueError(f"{name}='{getattr(config, name)}' must be an absolute path.")
        if config.data in DATASETS and not 0 <= config.part < config.clients:
            raise ValueError(f"part={config.part} must lie in 0..{config.clients - 1} (clients={config.clients}).")
        return config

    @property
    def kind(self) -> str:
        return self.data if self.data in DATASETS else "own"

    def arrays(self) -> Arrays:
        """The site's own file."""
        several: dict[str, Any] = {
            name: [part.strip() for part in getattr(self, name).split(",") if part.strip()]
            for name in ("ignore", "categorical", "missing")
        }
        decimal: Any = self.decimal
        return from_file(self.data, name=self.name, label=self.label, decimal=decimal, ordered=self.ordered, **several)

    def load(self, preprocessing: str = "") -> Federation:
        """A federation of this one client, with the preprocessing that all sites agreed on."""
        shares: dict[str, Any] = {"test": self.test, "validation": self.validation, "seed": self.seed}
        if self.kind == "own":
            arrays = self.arrays()
            agreed = Preprocessing.from_json(json.loads(preprocessing)) if preprocessing else None
            if agreed is not None:
                agreed = replace(agreed, reading=arrays.reading)  # this site's own file
            return federate(arrays, partition="by_group", preprocessing=agreed, **shares)
        spread: dict[str, Any] = {
            "partition": self.partition,
            "clients": self.clients,
            "data_dir": self.data_dir or None,
        }
        whole = federate(self.data, **spread, **shares)
        turns = whole.partition.turns
        mine = replace(
            whole.partition,
            indices=(whole.partition.indices[self.part],),
            groups=None,
            edges=None,
            turns=None if turns is None else turns[[self.part]],
        )
        return replace(whole, partition=mine, splits=(whole.splits[self.part],))


def statistics(config: SiteConfig, how: str) -> str:
    """Statistics of this site's table, if its own file allows sharing them."""
    if how not in SHARES[1:] or SHARES.index(how) > SHARES.index(config.share):
        raise Malformed(f"this site shares '{config.share}'; the run asks for '{how}' (`share` in the site's file).")
    own = site_statistics(
        config.arrays(), fit=cast(Fit, how), seed=config.seed, test=config.test, validation=config.validation
    )
    return json.dumps(own)


def introduce(config: SiteConfig, preprocessing: str = "") -> SiteInfo:
    mine = config.load(preprocessing)
    (split,) = mine.splits
    return SiteInfo(
        client=config.name,
        data=config.kind,
        shape=" ".join(map(str, mine.shape)),
        columns=blake2b("\n".join(mine.schema).encode(), digest_size=8).hexdigest() if mine.schema else "",
        classes=mine.classes,
        train=len(split.train),
        validation=len(split.validation),
        test=len(split.test),
    )


def answer(config: SiteConfig, run_config: Mapping[str, Any], record: RecordDict) -> RecordDict:
    """Answer a request: check it, perform it, and log it, whether it succeeds or not."""
    request: Request | None = None
    sent, scores = Message(), dict[str, float]()
    body: tuple[Tensor, ...] = ()
    secure: Secure | None = None
    with _private_files():
        try:
            permit(config, run_config)
            request, sent = decode_request(record)
            _within_limits(config, request)
            plan, asked = read(run_config), decode_secure(record)
            _check(config, plan, request)
            if request.function and (plan.secure or config.secure) != (asked is not None):
                raise Malformed("this site's replies leave it under secure aggregation only (run.secure=true).")
            if asked is None:
                made, outcome = perform(config, plan, request, sent)
                body, scores = outcome.body, outcome.scores
            else:
                made, body, scores, secure = _sum(config, plan, request, sent, asked)
            if config.max_bytes and nbytes(body) > config.max_bytes:
                raise Malformed(f"the reply has {nbytes(body)} bytes; this site sends at most {config.max_bytes}.")
        except Exception as error:
            made, body, scores, secure = refused(config, error), (), {}, None
        _log(config, request, nbytes((*sent.shared, *sent.own)), nbytes(body), made.error)
    answered = encode_answer(made, body, scores)
    if secure is not None:
        answered["secure"] = encode_secure(secure)
    return answered


def _sum(
    config: SiteConfig, plan: Plan, request: Request, sent: Message, asked: Secure
) -> tuple[Answer, tuple[Tensor, ...], dict[str, float], Secure | None]:
    """One stage of a secure sum. Only the stage `masked` does the work, and what leaves the site then is masked."""
    place = Path(config.state) / request.run / config.name
    part = SecureSite(place, config.name, request.round, exchange_of(request.new_state), asked)
    made = Answer(config.name, False, 0.0, 0.0, "", "", "")
    if asked.stage == "keys":
        return made, (), {}, part.keys()
    if asked.stage == "shares":
        return made, (), {}, part.shares()
    if asked.stage == "open":
        return made, (), {}, part.open()
    part.accept()
    made, outcome = perform(config, plan, request, sent)
    if made.error:
        return made, (), {}, None
    weight = len(config.load(request.preprocessing).splits[0].train) if plan.method.averages == "size" else 1
    secure, body = part.masked(outcome.body, weight)
    return made, body, outcome.scores, secure


def permit(config: SiteConfig, run_config: Mapping[str, Any]) -> None:
    """Raise if the run would import code that this site's own file does not allow."""
    allowed = _listed(config.allow)
    for key in ("method.name", "model.name"):
        name = str(run_config.get(key, "")).split(",")[0].strip()
        if (":" in name or name.endswith(".py")) and name not in allowed:
            raise Malformed(f"{key}='{name}' is not fedkin's own: this site's file must name it under `allow`.")


def _within_limits(config: SiteConfig, request: Request) -> None:
    functions = _listed(config.functions)
    if request.function and functions and request.function not in functions:
        raise Malformed(f"this site runs {', '.join(functions)}; '{request.function}' is not among them.")
    if config.max_rounds and request.round > config.max_rounds:
        raise Malformed(f"this site answers {config.max_rounds} rounds; this is round {request.round}.")
    if config.max_requests and _answered(config, request.run) >= config.max_requests:
        raise Malformed(f"this site has already answered {config.max_requests} requests of this run, its limit.")


def perform(config: SiteConfig, plan: Plan, request: Request, message: Message) -> tuple[Answer, Outcome]:
    """Perform a request if it is permitted."""
    _check(config, plan, request)
    torch.set_num_threads(config.threads)
    folder = Path(config.state) / request.run / config.name
    notes = []
    before = folder / request.state if request.state else None
    if before is not None and not before.exists():
        if any(_round(path.name) >= request.round for path in _states(folder)):
            raise Malformed(f"round {request.round} is over: its private state is gone, and later ones exist.")
        notes.append(f"started from scratch: its private state {request.state} is no longer on its disk")
        before = None
    _remove_unused(folder, {request.state, request.new_state, *request.keep.split()}, request.round)
    mine = config.load(request.preprocessing)
    arrays = replace(mine.arrays, classes=request.classes)
    # whatever the server's number for this client, the examples are its own
    count = request.number + 1
    turns = None if mine.partition.turns is None else np.repeat(mine.partition.turns, count)
    known = replace(mine, arrays=arrays, splits=mine.splits * count, partition=replace(mine.partition, turns=turns))
    make = maker(resolve(plan.model, request.data), known.shape, known.classes, plan.options.seed, plan.model_options)
    privacy = _privacy(config, plan)
    if config.privacy and config.privacy != plan.options.privacy:
        notes.append(f"this site's own privacy holds: {config.privacy}")
    spec = RunSpec(
        plan.method, known, lambda: make(0), plan.head, plan.training, plan.options.seed, plan.task, privacy=privacy
    )
    work: Work
    if request.function:
        new_state = folder / request.new_state if request.new_state else None
        work = Task(request.round, 0, request.number, request.function, before, new_state, request.measure)
    else:
        new_state = None
        work = Evaluation(request.round - 1, 0, request.number, before, folder if request.models else None)
    device = open_device(device_names(config.device)[0])
    outcome = ClientRunner(spec, config.threads, device).perform(work, message)
    if outcome.trace:
        print(outcome.trace)  # in the site's own log; the server is told less
    if outcome.unmeasured:
        notes.append(f"could not be measured: {outcome.unmeasured}")
    if outcome.has_state and new_state is not None:
        _settle(new_state)
    if outcome.model:
        os.replace(folder / outcome.model, folder / "personal.safetensors")
        _settle(folder / "personal.safetensors")
        about = {"client": config.name, "run": request.run, "method": plan.label, "after_round": request.round - 1}
        write_json(folder / "personal.json", {**about, **outcome.scores})
        _keep_loadable(config, folder, plan, known, request, outcome.model)
    made = Answer(
        client=config.name,
        has_state=outcome.has_state,
        flops=float(outcome.flops),
        seconds=float(outcome.seconds),
        error=_without_values(outcome.error, outcome.trace)[:MOST_TEXT],
        model=outcome.model,
        notes="\n".join(notes)[:MOST_TEXT],
        released=outcome.released,
        one_class=outcome.one_class,
    )
    return made, outcome


def _keep_loadable(config: SiteConfig, folder: Path, plan: Plan, mine: Federation, request: Request, file: str) -> None:
    """Make the folder one that `fedkin predict` and `fedkin.load` read: this site's own model, without the server's
    state."""
    one = replace(mine, splits=mine.splits[:1])
    source = resolve(plan.model, request.data)
    settings: dict[str, Any] = asdict(plan.method) if is_dataclass(plan.method) else {}
    about = {
        "label": plan.label,
        "method": {"class": qualified(type(plan.method)), **settings},
        "sees_test": plan.method.sees_test,
        "task": plan.task.to_config(),
        "inputs": {**inputs_of(one), "clients": [config.name]},
        "federation": one.description,
        "model": {"name": source if isinstance(source, str) else qualified(source), "options": plan.model_options,
                  "head": plan.head},
        "training": asdict(plan.training),
        "options": asdict(plan.options),
        "joined": {"run": request.run, "after_round": request.round - 1},
    }  # fmt: skip
    (folder / "models").mkdir(exist_ok=True)
    shutil.copyfile(folder / "personal.safetensors", folder / "models" / file)
    write_json(folder / "models" / "index.json", {config.name: file})
    write_json(folder / "config.json", about)
    for path in (folder / "models").glob("*.safetensors"):
        if path.name != file:
            path.unlink()  # of an earlier evaluation


def unable(name: str, error: Exception) -> SiteInfo:
    """The `SiteInfo` of a site that cannot take part."""
    why = _without_values(f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error)))
    return SiteInfo(name, "", "", "", 0, 0, 0, 0, why[:MOST_TEXT])


def refused(config: SiteConfig, error: Exception) -> Answer:
    why = _without_values(f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error)))
    return Answer(config.name, False, 0.0, 0.0, f"{config.name} refused: {why}"[:MOST_TEXT], "", "")


def _check(config: SiteConfig, plan: Plan, request: Request) -> None:
    if request.client != config.name:
        raise Malformed(f"this is '{config.name}'; the message is for '{request.client}'.")
    if request.function and not is_client_function(plan.method, request.function):
        raise Malformed(f"'{request.function}' is not a client function of {plan.label}: nothing else is called here.")
    if not RUN.fullmatch(request.run):
        raise Malformed(f"'{request.run}' is not the name of a run.")
    for name in (request.state, request.new_state, *request.keep.split()):
        if name and not STATE.fullmatch(name):
            raise Malformed(f"'{name}' is not the name of a state.")
    if not 0 <= request.number < len(plan.clients) or request.round < 1:
        raise Malformed(
            f"client number {request.number} and round {request.round} must be at least 0 and 1, and the number below "
            f"{len(plan.clients)}."
        )


def _remove_unused(folder: Path, keep: set[str], round: int) -> None:
    """Remove states that are no longer needed. Later ones stay: an old message must not undo what came after."""
    for path in _states(folder):
        if path.name not in keep and _round(path.name) <= round:
            path.unlink(missing_ok=True)


def _states(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if STATE.fullmatch(path.name)] if folder.is_dir() else []


def _round(state: str) -> int:
    """The round that made a private state, from the name of its file."""
    return int(state.split("-")[2])


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _privacy(config: SiteConfig, plan: Plan) -> Privacy | None:
    """The privacy that applies here, with a key that never leaves this site's disk: whoever knows it could subtract the
    noise."""
    text = config.privacy or plan.options.privacy
    if not text:
        return None
    path = Path(config.state) / "noise.key"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        write_bytes(path, secrets.token_bytes(32))
        path.chmod(0o600)
    made = Privacy.read(text, path.read_bytes())
    assert made is not None
    made.refuse(plan.method)
    return made


def _without_values(text: str, trace: str) -> str:
    """The part of an error's text that may leave the site. fedkin's own messages contain no value of an example; others
    might."""
    frames = re.findall(r'File "([^"]+)", line', trace)
    if not text or not frames or Path(frames[-1]).is_relative_to(PACKAGE):
        return text
    kind = re.search(r"(?:^|: )([A-Za-z_.]*(?:Error|Exception|Warning|Interrupt|Iteration))(?::|$)", text)
    where = text[: kind.start(1)] if kind else ""
    return f"{where}{kind[1] if kind else 'an error'}; the details are in the site's own log"


def _log(config: SiteConfig, request: Request | None, received: int, sent: int, error: str) -> None:
    """One line for each request, on the site's own disk."""
    line = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "run": request.run if request else "",
        "round": request.round if request else 0,
        "function": (request.function or "measure") if request else "",
        "bytes_received": received,
        "bytes_sent": sent,
        "error": error,
    }
    path = Path(config.state) / LOG
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as f:
        f.write(json.dumps(line) + "\n")


def _answered(config: SiteConfig, run: str) -> int:
    """How many requests of a run this site has answered."""
    path = Path(config.state) / LOG
    if not path.exists():
        return 0
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return sum(line["run"] == run and not line["error"] for line in lines)


@contextlib.contextmanager
def _private_files() -> Iterator[None]:
    """Inside this block, files are created readable by their owner only."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _settle(path: Path) -> None:
    """Flush a file to the disk before the server learns of it."""
    with open(path, "rb") as f:
        os.fsync(f.fileno())
