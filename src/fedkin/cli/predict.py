"""`fedkin predict DIR`: a client's model on new examples."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from fedkin.cli import flags as parsing
from fedkin.cli.flags import UserError

if TYPE_CHECKING:
    from fedkin.results.run import Run


@dataclass(frozen=True)
class PredictFlags:
    client: str = ""
    """Name of the client whose model is used."""
    data: Path | None = None
    """New examples: a table with the columns of the run, in any order (.csv, .tsv, .parquet), or .npy, .npz."""
    keep: tuple[str, ...] = ()
    """Columns of the table to write beside the predictions, such as a patient's number; also ones that the run
    ignored."""
    out: Path | None = None
    """Write the predictions to this .csv file; by default they are printed."""


def command(words: list[str]) -> int:
    about = "Use a client's model of a finished run on new examples. Prints one line for each example, in order."
    flags, names = parsing.parse_one(words, PredictFlags(), "fedkin predict DIR", about)
    run = opened(names, "predict")
    if flags.data is None or not flags.client:
        raise UserError(f"predict needs --client NAME (one of {', '.join(run.clients[:8])}) and --data FILE.")
    if flags.out is not None and flags.out.resolve() == flags.data.resolve():
        raise UserError(f"--out {flags.out} is the file with the examples: name another one.")
    if flags.out is not None:
        _check_replaced(flags.out)
    found = run.predictions(flags.client, examples(flags.data), keep=flags.keep)
    if flags.out is None:
        _write(sys.stdout, found, flags.keep)
        return 0
    with open(flags.out, "w", newline="") as file:
        _write(file, found, flags.keep)
    count = len(next(iter(found.values())))
    print(f"{count} predictions of {flags.client}'s model are in {flags.out}.")
    return 0


def opened(names: list[str], command: str) -> Run:
    from fedkin.results.run import load

    if len(names) != 1:
        raise UserError(f"{command} needs one folder: the --out of a finished run.")
    return load(names[0])


def examples(path: Path) -> Any:
    """A table's path, which the run reads by its column names, or an array."""
    import numpy as np

    if not path.is_file():
        raise UserError(f"There is no file {path}.")
    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False)
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as stored:
            if "x" not in stored:
                raise UserError(f"{path} has no array 'x'.")
            return stored["x"]
    return path


def _check_replaced(path: Path) -> None:
    """Raise if this is a file that does not look like predictions of ours: it would be lost."""
    if path.is_dir():
        raise UserError(f"--out {path} is a folder: name a .csv file.")
    if path.is_file():
        with open(path, "rb") as file:
            if (header := file.readline()) and b"prediction" not in header:
                raise UserError(f"--out {path} is there, and fedkin did not write it. Name another file.")


def _write(file: TextIO, table: Mapping[str, Sequence[Any]], kept: Sequence[str]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(zip(*(column if name in kept else map(_shown, column) for name, column in table.items())))


def _shown(value: Any) -> Any:
    return f"{value:.7g}" if isinstance(value, float) else value
