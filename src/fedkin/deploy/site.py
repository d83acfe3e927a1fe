"""One site: its own data, its own disk. What the server asks for is checked here before anything is done.

The client's private states lie in `STATE/RUN/CLIENT/`, a file for each change, named by round and exchange. The server
says from which one to start; a task that is asked for again starts from the same one and writes the same next one, so
that no round is ever applied twice.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedkin.data import DATASETS, Arrays, from_file
from fedkin.data.federation import Federation, federate
from fedkin.deploy.codec import Answer, Malformed, Request, SiteInfo
from fedkin.deploy.plan import NAME, Plan
from fedkin.engine.runner import ClientRunner, Evaluation, Outcome, RunSpec, Task, Work
from fedkin.models.build import maker, resolve
from fedkin.protocol import Message, is_client_function
from fedkin.results.store import write_json

RUN = re.compile(r"[0-9a-f]{16}")
STATE = re.compile(r"client-\d{6,}-\d{6,}-\d+\.safetensors")


@dataclass(frozen=True)
class SiteConfig:
    """The site's own file (`--node-config north.toml`): it never leaves the site."""

    name: str
    """The client's name, for ever."""
    data: str
    """A file of examples (.csv, .tsv or .parquet with named columns, .npz with `x` and `y`), or a built-in data set to
    try things with."""
    state: str
    """Folder for private states and personal models."""
    label: str = "y"
    """Column or array of the labels."""
    ignore: str = ""
    """Columns to leave out, with commas between."""
    categorical: str = ""
    """Columns of numbers that stand for categories, with commas between; columns of text always do."""
    missing: str = ""
    """Cells that mean "not known", with commas between, beside empty ones, ?, NA and NaN."""
    decimal: str = "auto"
    """The decimal mark, where the file does not tell."""
    ordered: bool = False
    """The rows are in time order: the latest are tested on. Otherwise the split is random."""
    test: float = 0.2
    """Fraction of the examples used for testing."""
    validation: float = 0.1
    """Fraction of the examples used for validation."""
    threads: int = 1
    """Of PyTorch. With 1, results are the same to the bit as in a simulation."""
    data_dir: str = ""
    """Built-in data: folder of its files."""
    partition: str = "dirichlet"
    """Built-in data: how it is spread over `clients`, of which this is number `part`."""
    clients: int = 1
    part: int = 0
    seed: int = 0

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
                raise ValueError(
                    f"The site's file must say its {name}: start the supernode with --node-config FILE.toml."
                )
        config = cls(**given)
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

    def load(self) -> Federation:
        """A federation of this one client."""
        shares: dict[str, Any] = {"test": self.test, "validation": self.validation, "seed": self.seed}
        if self.kind == "own":
            return federate(self.arrays(), partition="by_group", **shares)
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


def introduce(config: SiteConfig) -> SiteInfo:
    mine = config.load()
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


def perform(config: SiteConfig, plan: Plan, request: Request, message: Message) -> tuple[Answer, Outcome]:
    """Do what the server asks for, if it may be asked for."""
    _check(config, plan, request)
    torch.set_num_threads(config.threads)
    place = Path(config.state) / request.run / config.name
    notes = []
    before = place / request.state if request.state else None
    if before is not None and not before.exists():
        notes.append(f"started anew: its private state {request.state} is not on its disk any more")
        before = None
    _sweep_up(place, {request.state, request.new_state, *request.keep.split()})
    mine = config.load()
    arrays = replace(mine.arrays, classes=request.classes)
    # whatever number the server calls this client by, the rows are its own
    count = request.number + 1
    turns = None if mine.partition.turns is None else np.repeat(mine.partition.turns, count)
    known = replace(mine, arrays=arrays, splits=mine.splits * count, partition=replace(mine.partition, turns=turns))
    make = maker(resolve(plan.model, request.data), known.shape, known.classes, plan.options.seed, plan.model_options)
    spec = RunSpec(plan.method, known, lambda: make(0), plan.head, plan.training, plan.options.seed)
    work: Work
    if request.function:
        new_state = place / request.new_state if request.new_state else None
        work = Task(request.round, 0, request.number, request.function, before, new_state, request.measure)
    else:
        new_state = None
        work = Evaluation(request.round - 1, 0, request.number, before, place if request.models else None)
    outcome = ClientRunner(spec, config.threads).perform(work, message)
    if outcome.unmeasured:
        notes.append(f"could not be measured: {outcome.unmeasured}")
    if outcome.has_state and new_state is not None:
        _settle(new_state)
    if outcome.model:
        os.replace(place / outcome.model, place / "personal.safetensors")
        _settle(place / "personal.safetensors")
        about = {"client": config.name, "run": request.run, "method": plan.label, "after_round": request.round - 1}
        write_json(place / "personal.json", {**about, **outcome.scores})
    answer = Answer(
        client=config.name,
        has_state=outcome.has_state,
        flops=float(outcome.flops),
        seconds=float(outcome.seconds),
        error=outcome.error,
        model=outcome.model,
        notes="\n".join(notes),
    )
    return answer, outcome


def refused(config: SiteConfig, error: Exception) -> Answer:
    return Answer(config.name, False, 0.0, 0.0, f"{config.name} refused: {type(error).__name__}: {error}", "", "")


def _check(config: SiteConfig, plan: Plan, request: Request) -> None:
    if request.client != config.name:
        raise Malformed(f"this is '{config.name}'; the message is for '{request.client}'.")
    if request.function and not is_client_function(plan.method, request.function):
        raise Malformed(f"'{request.function}' is no client function of {plan.label}: nothing else can be called here.")
    if not RUN.fullmatch(request.run):
        raise Malformed(f"'{request.run}' is no name of a run.")
    for name in (request.state, request.new_state, *request.keep.split()):
        if name and not STATE.fullmatch(name):
            raise Malformed(f"'{name}' is no name of a state.")
    if request.number < 0 or request.round < 1:
        raise Malformed(f"client number {request.number} and round {request.round} must be at least 0 and 1.")


def _sweep_up(place: Path, keep: set[str]) -> None:
    """Remove states that nobody will ask for again."""
    if place.is_dir():
        for path in place.iterdir():
            if STATE.fullmatch(path.name) and path.name not in keep:
                path.unlink(missing_ok=True)


def _settle(path: Path) -> None:
    """To the disk itself, before the server hears of it."""
    with open(path, "rb") as f:
        os.fsync(f.fileno())
