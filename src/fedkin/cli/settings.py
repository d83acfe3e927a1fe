"""Flags shared by run, compare and sweep, and what is made from them: clients, trackers, a Ray cluster."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedkin.cli import flags as parsing
from fedkin.cli.config import Config
from fedkin.cli.flags import Part, UserError

if TYPE_CHECKING:
    from rich.console import Console

    from fedkin.data.federation import Federation
    from fedkin.engine.trackers import Tracker


@dataclass(frozen=True)
class DataFlags:
    data: str = "digits"
    """Data set (see `fedkin list datasets`), or a folder with one .csv, .tsv, .parquet or .npz file for each client."""
    data_dir: str | None = None
    """Folder in which the data sets' files are or will be kept; by default what the variable FEDKIN_DATA names, else
    fedkin in the user's cache."""
    label: tuple[str, ...] = ("y",)
    """Own data: name of the column with the labels; several names with --task multilabel or regression."""
    ignore: tuple[str, ...] = ()
    """Own data: names of columns to leave out."""
    categorical: tuple[str, ...] = ()
    """Own data: names of number columns that stand for categories. Text columns always do."""
    missing: tuple[str, ...] = ()
    """Own data: further cells that mean "not known", in all columns (unknown) or in one (chol=0), besides empty cells,
    ?, NA and NaN."""
    decimal: Literal["auto", ".", ","] = "auto"
    """Own data: the decimal mark, if the files do not make it clear."""
    ordered: bool = False
    """Own data: examples are in time order, and the latest ones are used for testing."""
    fit: Literal["each", "sites"] = "each"
    """Tables: scale numbers by each client's own mean and variance, or by those of all sites together."""
    partition: str | None = None
    """How examples are spread over clients (see `fedkin list partitions`); by default the data's own clients if it
    names them, else dirichlet."""
    clients: int | None = None
    """Number of clients; by default those that the data names, else 20."""
    samples_per_client: int | None = None
    """Maximum number of examples per client."""
    test: float = 0.2
    """Fraction of each client's examples used for testing."""
    validation: float = 0.1
    """Fraction of each client's examples used for validation."""
    pool: Literal["all", "train"] = "all"
    """Use all examples of the data set, or only its official training part."""


@dataclass(frozen=True)
class ModelFlags:
    model: str = "auto"
    """Network (see `fedkin list models`), or your own as file.py:function; auto picks the usual one for the data."""
    head: str | None = None
    """Name of the network's head; by default its last linear layer."""


@dataclass(frozen=True)
class TaskFlags:
    task: str | None = None
    """classification, regression, multilabel, or your own as file.py:Class; by default inferred from the data."""
    metrics: tuple[str, ...] = ()
    """Metrics to compute. Classification: accuracy, balanced_accuracy, f1, auc, log_loss, calibration_error.
    Regression: rmse, mae, r2. Multilabel: accuracy, f1, auc."""
    headline: str | None = None
    """The metric that results are judged by; by default the first of --metrics."""
    class_weights: tuple[float, ...] = ()
    """Weight of each class in the training loss; by default all equal."""


@dataclass(frozen=True)
class ConfigFlags:
    config: Path | None = None
    """Read settings from this file: a .toml, or the config.json of an earlier run. Flags override the file."""


@dataclass(frozen=True)
class OutputFlags:
    out: Path | None = None
    """Folder for the results. If it holds the same run, unfinished, that run is resumed."""
    fresh: bool = False
    """Start over in that folder."""
    json: bool = False
    """Print the summary as JSON and nothing else."""
    quiet: bool = False
    """Show no progress bar."""
    tensorboard: Path | None = None
    """Write metrics for TensorBoard to this folder."""
    mlflow: str | None = None
    """Log metrics to this MLflow experiment."""
    wandb: str | None = None
    """Log metrics to this Weights & Biases project."""


READING = ("label", "ignore", "categorical", "missing", "decimal", "ordered")  # how a folder is read

# Help for options of data sets, partitions and models whose own code does not document them.
ABOUT = {
    "alpha": "Concentration of the Dirichlet distribution; smaller makes clients less alike.",
    "classes": "Number of classes.",
    "depth": "Number of layers: 8, 14, 18 or 20.",
    "features": "Number of features.",
    "groups": "Number of hidden groups.",
    "minimum": "Minimum number of examples per client.",
    "primary_high": "Largest fraction of a client's primary class.",
    "primary_low": "Smallest fraction of a client's primary class.",
    "samples": "Number of examples.",
    "secondary_high": "Largest fraction of a client's secondary class.",
    "secondary_low": "Smallest fraction of a client's secondary class.",
    "seed": "Seed of the data.",
    "separation": "Distance between the classes' means.",
    "shared": "Fraction of a class's mean that all groups have in common; 1 makes the groups alike.",
    "width": "Multiplies the width of the layers.",
}


def parts(words: Sequence[str], config: Config, *, run: Any = None, output: Any = None) -> list[Part]:
    """The flags of every run, with the options of the named data set, partition and model.

    `run` and `output` are additional flags of a command for these two groups.
    """
    from fedkin.data import DATASETS, DEFAULT_MODEL, default_partition
    from fedkin.data.partition import PARTITIONS
    from fedkin.engine.options import Options
    from fedkin.models import MODELS
    from fedkin.protocol import Training

    def named(flag: str, default: str) -> str:
        return parsing.given(words, flag) or str(config.values.get(flag) or default)

    data = named("data", DataFlags.data)
    partition = named("partition", default_partition(data))
    model = named("model", "auto")
    if model == "auto":
        model = DEFAULT_MODEL.get(data, "mlp")
    targets = {
        "data": DATASETS[data].load() if data in DATASETS else None,
        "partition": PARTITIONS.get(partition),
        "model": MODELS[model].load() if model in MODELS else None,
    }

    def own(name: str, group: str) -> list[Part]:
        options = parsing.options_of(targets[name]) if targets[name] is not None else None
        if options is None:
            return []
        return [Part(f"{name}_options", options, group, name, {**ABOUT, **parsing.docstrings_of(targets[name])})]

    return [
        Part("data", DataFlags(), "data"),
        *own("data", "data"),
        *own("partition", "data"),
        Part("task", TaskFlags(), "task"),
        Part("model", ModelFlags(), "training"),
        *own("model", "training"),
        Part("training", Training(), "training"),
        Part("config", ConfigFlags(), "run"),
        *([Part("own_run", run, "run")] if run is not None else []),
        Part("options", Options(), "run"),
        *([Part("own_output", output, "output")] if output is not None else []),
        Part("output", OutputFlags(), "output"),
    ]


def is_folder(data: str) -> bool:
    from fedkin.data import DATASETS

    return data not in DATASETS and Path(data).is_dir()


def chosen(flags: Any, name: str) -> dict[str, Any]:
    """Options of the data set, partition or model; empty if it has none."""
    options = getattr(flags, f"{name}_options", None)
    return {} if options is None else dataclasses.asdict(options)


def federation(flags: Any, seed: int) -> Federation:
    from fedkin.data import from_folder
    from fedkin.data.federation import federate

    own: DataFlags = flags.data
    if any(sign in own.data for sign in "/\\~") and not Path(own.data).is_dir():
        raise UserError(
            f"There is no folder {own.data}: --data takes a folder with one file for each client, or a name."
        )
    reading: dict[str, Any] = {name: getattr(own, name) for name in READING}
    folder = is_folder(own.data)
    if not folder and (given := [name for name in READING if reading[name] != getattr(DataFlags, name)]):
        from fedkin.data import DATASETS

        kind = "is a built-in data set" if own.data in DATASETS else "is neither a folder nor a built-in data set"
        raise UserError(f"--{given[0]} is for a folder of your own data; --data {own.data} {kind}.")
    if folder and (made := task(flags)) is not None and not made.has_classes:
        reading["task"] = "multilabel" if made.kind == "multilabel" else "regression"
    return federate(
        from_folder(own.data, **reading) if folder else own.data,
        partition=own.partition,
        clients=own.clients,
        seed=seed,
        test=own.test,
        validation=own.validation,
        pool=own.pool,
        samples_per_client=own.samples_per_client,
        data_dir=own.data_dir,
        data_options=chosen(flags, "data"),
        fit=own.fit,
        **chosen(flags, "partition"),
    )


def trackers(output: OutputFlags, label: str, console: Console) -> list[Tracker]:
    from fedkin.engine.progress import Terminal
    from fedkin.engine.trackers import MLflow, TensorBoard, WandB

    out: list[Tracker] = []
    if not output.quiet:
        out.append(Terminal(label, console))
    if output.tensorboard is not None:
        out.append(TensorBoard(output.tensorboard / label.replace(", ", "-").replace(" ", "-")))
    if output.mlflow is not None:
        out.append(MLflow(output.mlflow))
    if output.wandb is not None:
        out.append(WandB(output.wandb))
    return out


def ray_cluster(wanted: bool, address: str = "", workers: int = 0) -> contextlib.AbstractContextManager[None]:
    """One Ray cluster for several runs: starting it takes seconds."""
    if not wanted:
        return contextlib.nullcontext()
    from fedkin.engine.ray import cluster

    return cluster(address, workers)


def task(flags: Any) -> Any:
    """The task that the flags ask for; None: infer it from the data."""
    from fedkin.task import task as by_name

    asked = {k: v for k, v in dataclasses.asdict(flags.task).items() if v and k != "task"}
    if flags.task.task is None and not asked:
        return None
    if "metrics" in asked:  # auc,f1 is auc f1
        asked["metrics"] = tuple(name for word in asked["metrics"] for name in word.split(",") if name)
    return by_name(flags.task.task or "classification", **asked)
