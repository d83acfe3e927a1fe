"""`SiteConfig`: a site's own settings, and its examples read by them. Neither leaves the site."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from fedkin.data import DATASETS, Arrays, from_file
from fedkin.data.federation import Federation, federate
from fedkin.data.preprocess import Preprocessing
from fedkin.deploy.plan import NAME
from fedkin.robust.privacy import Privacy
from fedkin.task import TASKS

SHARES = ("", "each", "sites")  # each shares more than the one before


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
    """Column or array of the labels; columns separated by commas if the task has several targets."""
    task: str = "classification"
    """What the labels are: classes (classification), numbers (regression), or whether each of several labels is there
    (multilabel). The run's task must be the same."""
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
        if config.task not in TASKS:
            raise ValueError(f"task='{config.task}' must be one of {', '.join(TASKS)}.")
        if not NAME.fullmatch(config.name):
            raise ValueError(f"name='{config.name}': a name is made of letters, digits, '.', '_' and '-'.")
        for name in ("state", *(["data"] if config.data not in DATASETS else [])):
            if not Path(getattr(config, name)).is_absolute():
                raise ValueError(f"{name}='{getattr(config, name)}' must be an absolute path.")
        if config.data in DATASETS and not 0 <= config.part < config.clients:
            raise ValueError(f"part={config.part} must lie in 0..{config.clients - 1} (clients={config.clients}).")
        if config.data in DATASETS and config.task != "classification":
            raise ValueError(f"task='{config.task}' needs the site's own file; {config.data} has classes.")
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
        label: Any = self.label
        if self.task != "classification":
            label = [part.strip() for part in self.label.split(",") if part.strip()]
        how: Any = {"decimal": self.decimal, "task": self.task}
        return from_file(self.data, name=self.name, label=label, ordered=self.ordered, **how, **several)

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
