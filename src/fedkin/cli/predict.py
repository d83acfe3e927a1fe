"""`fedkin predict DIR`: a client's model on new examples."""

from __future__ import annotations

import csv
import sys
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
    out: Path | None = None
    """Write the predictions to this .csv file; by default they are printed."""


def command(words: list[str]) -> int:
    about = "Use a client's model of a finished run on new examples. Prints one line for each example, in order."
    flags, names = parsing.parse_one(words, PredictFlags(), "fedkin predict DIR", about)
    run = opened(names, "predict")
    if flags.data is None or not flags.client:
        raise UserError(f"predict needs --client NAME (one of {', '.join(run.clients[:8])}) and --data FILE.")
    x = examples(flags.data)
    found = run.predict(flags.client, x)
    header, columns = ["prediction"], [found.tolist()]
    if run.task.has_classes:
        chances = run.predict_proba(flags.client, x)
        classes = run.config["inputs"]["class_names"] or [str(i) for i in range(chances.shape[1])]
        header += [f"probability of {name}" for name in classes]
        columns += [[f"{p:.6g}" for p in column] for column in chances.T.tolist()]
    if flags.out is None:
        _write(sys.stdout, header, columns)
        return 0
    if flags.out.resolve() == flags.data.resolve():
        raise UserError(f"--out {flags.out} is the file with the examples: name another one.")
    with open(flags.out, "w", newline="") as file:
        _write(file, header, columns)
    print(f"{len(found)} predictions of {flags.client}'s model are in {flags.out}.")
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


def _write(file: TextIO, header: list[str], columns: list[list[Any]]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(zip(*columns))
