"""Flags, made from dataclass fields, and what is built from them."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console

    from fedkin.data.federation import Federation
    from fedkin.engine.trackers import Tracker


class UserError(Exception):
    """Something the user can put right: shown without a stack trace."""


@dataclass(frozen=True)
class Setting:
    """Data, clients and output."""

    data: str = "digits"
    """Data set (see `fedkin list datasets`), or a folder with one .csv, .tsv, .parquet or .npz for each client."""
    data_dir: str | None = None
    """Folder of data files; also the variable FEDKIN_DATA."""
    label: str = "y"
    """Own data: column of the labels."""
    ignore: tuple[str, ...] = ()
    """Own data: columns to leave out."""
    categorical: tuple[str, ...] = ()
    """Own data: columns of numbers that stand for categories; columns of text always do."""
    missing: tuple[str, ...] = ()
    """Own data: cells that mean "not known", in all columns (unknown) or in one (chol=0), beside empty ones, ?, NA and
    NaN."""
    decimal: Literal["auto", ".", ","] = "auto"
    """Own data: the decimal mark, where the files do not tell."""
    ordered: bool = False
    """Own data: the rows of each file are in time order; test on the latest."""
    fit: Literal["each", "sites"] = "each"
    """Tables: scale numbers by each client's own mean and variance, or by those of all sites together."""
    partition: str | None = None
    """How examples are spread over clients (see `fedkin list partitions`); by default the data's own clients where it
    names them, else dirichlet."""
    clients: int | None = None
    """Number of clients; by default those that the data names, else 20."""
    samples_per_client: int | None = None
    """Most examples of a client."""
    test: float = 0.2
    """Fraction of each client's examples used for testing."""
    validation: float = 0.1
    """Fraction of each client's examples used for validation."""
    pool: Literal["all", "train"] = "all"
    """Spread all official examples, or only the official training part."""
    model: str = "auto"
    """Network (see `fedkin list models`), or your own as file.py:function; auto: the usual one for the data."""
    head: str | None = None
    """Name of the network's last layer, where it is not the last linear one."""
    out: Path | None = None
    """Folder for everything of this run; a stopped run goes on there."""
    fresh: bool = False
    """Start over in that folder."""
    json: bool = False
    """Print the summary as JSON and nothing else."""
    quiet: bool = False
    """No progress bar."""
    tensorboard: Path | None = None
    """Write metrics for TensorBoard to this folder."""
    mlflow: str | None = None
    """Log to this MLflow experiment."""
    wandb: str | None = None
    """Log to this Weights & Biases project."""


def given(words: list[str], flag: str, default: str) -> str:
    """The value of a flag that decides which other flags there are."""
    for i, word in enumerate(words):
        if word == f"--{flag}" and i + 1 < len(words):
            return words[i + 1]
        if word.startswith(f"--{flag}="):
            return word.split("=", 1)[1]
    return default


def _options_of(target: Any, name: str) -> type | None:
    """A dataclass of the keyword options of a function or dataclass, for flags."""
    if dataclasses.is_dataclass(target):
        own = [(f.name, f.type, field(default=f.default)) for f in fields(target) if f.init]
    else:
        parameters = inspect.signature(target, eval_str=True).parameters.values()
        own = [
            (p.name, p.annotation, field(default=p.default))
            for p in parameters
            if p.kind is p.KEYWORD_ONLY and p.default is not p.empty
        ]
    if not own:
        return None
    resolved = [(n, _evaluated(t, target), f) for n, t, f in own]
    return dataclasses.make_dataclass(f"{name.capitalize()}Options", resolved, frozen=True)


def _evaluated(annotation: Any, target: Any) -> Any:
    if isinstance(annotation, str):
        module = sys.modules[target.__module__]
        return eval(annotation, vars(module), {})
    return annotation


def parse(words: list[str], parts: dict[str, Any], prefixed: dict[str, Any], prog: str, about: str) -> Any:
    """Parse words into an object with one attribute for each part; only `prefixed` ones keep their name in flags."""
    import tyro

    made: list[tuple[str, Any, Any]] = []
    for name, (kind, default) in parts.items():
        made.append((name, Annotated[kind, tyro.conf.arg(name="")], field(default=default)))
    for name, kind in prefixed.items():
        made.append((f"{name}_options", Annotated[kind, tyro.conf.arg(name=name)], field(default_factory=kind)))
    whole = dataclasses.make_dataclass("Flags", made, frozen=True)
    whole.__doc__ = about
    return tyro.cli(whole, args=words, prog=prog, config=(tyro.conf.FlagCreatePairsOff,))


def common(words: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parts of the flags that every run has, and those that depend on the data, partition and model named."""
    from fedkin.data import DATASETS, default_partition
    from fedkin.data.partition import PARTITIONS
    from fedkin.engine.options import Options
    from fedkin.models import MODELS
    from fedkin.protocol import Training

    parts = {"setting": (Setting, Setting()), "training": (Training, Training()), "options": (Options, Options())}
    data = given(words, "data", "digits")
    partition = given(words, "partition", default_partition(data))
    model = given(words, "model", "auto")
    prefixed: dict[str, Any] = {}
    if data in DATASETS and (kind := _options_of(DATASETS[data].load(), "data")):
        prefixed["data"] = kind
    if partition in PARTITIONS and (kind := _options_of(PARTITIONS[partition], "partition")):
        prefixed["partition"] = kind
    if model == "auto":
        from fedkin.data import DEFAULT_MODEL

        model = DEFAULT_MODEL.get(data, "mlp")
    if model in MODELS and (kind := _options_of(MODELS[model].load(), "model")):
        prefixed["model"] = kind
    return parts, prefixed


def chosen(flags: Any, name: str) -> dict[str, Any]:
    options = getattr(flags, f"{name}_options", None)
    return {} if options is None else dataclasses.asdict(options)


def federation(flags: Any, seed: int) -> Federation:
    from fedkin.data import DATASETS, from_folder
    from fedkin.data.federation import federate

    setting: Setting = flags.setting
    data: Any = setting.data
    reading = {n: getattr(setting, n) for n in ("label", "ignore", "categorical", "missing", "decimal", "ordered")}
    given = [name for name, value in reading.items() if value != getattr(Setting, name)]
    if setting.data not in DATASETS and Path(setting.data).is_dir():
        data = from_folder(setting.data, **reading)
    elif given:
        raise UserError(f"--{given[0]} is for a folder of your own; --data {setting.data} is none.")
    return federate(
        data,
        partition=setting.partition,
        clients=setting.clients,
        seed=seed,
        test=setting.test,
        validation=setting.validation,
        pool=setting.pool,
        samples_per_client=setting.samples_per_client,
        data_dir=setting.data_dir,
        data_options=chosen(flags, "data"),
        fit=setting.fit,
        **chosen(flags, "partition"),
    )


def trackers(setting: Setting, label: str, console: Console) -> list[Tracker]:
    from fedkin.engine.progress import Terminal
    from fedkin.engine.trackers import MLflow, TensorBoard, WandB

    out: list[Tracker] = []
    if not setting.quiet:
        out.append(Terminal(label, console))
    if setting.tensorboard is not None:
        out.append(TensorBoard(setting.tensorboard / label.replace(", ", "-").replace(" ", "-")))
    if setting.mlflow is not None:
        out.append(MLflow(setting.mlflow))
    if setting.wandb is not None:
        out.append(WandB(setting.wandb))
    return out


def ray_cluster(wanted: bool, address: str = "", workers: int = 0) -> contextlib.AbstractContextManager[None]:
    """One Ray cluster for several runs: its start takes seconds."""
    if not wanted:
        return contextlib.nullcontext()
    from fedkin.engine.ray import cluster

    return cluster(address, workers)


def split_words(words: list[str]) -> tuple[list[str], list[str]]:
    """Leading names, and the flags after them."""
    at = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    return words[:at], words[at:]


def parse_one(words: list[str], kind: Any, prog: str, about: str) -> Any:
    """Parse words into one dataclass."""
    return parse(words, {"own": (kind, kind())}, {}, prog, about).own


def folders(words: list[str], kind: Any, command: str, about: str) -> tuple[list[str], Any]:
    """Folders, and the flags after them."""
    named, rest = split_words(words)
    if not named and not {"-h", "--help"} & set(rest):
        raise UserError(f"{command} needs a folder: the --out of a run or of a comparison.")
    return named, parse_one(rest, kind, f"fedkin {command} DIR", about)
