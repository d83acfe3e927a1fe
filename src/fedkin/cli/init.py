"""`fedkin init FOLDER`: look at tables of your own, and write down once how they are read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedkin.cli import flags as parsing
from fedkin.cli.flags import UserError

if TYPE_CHECKING:
    from fedkin.data import Arrays


@dataclass(frozen=True)
class InitFlags:
    label: tuple[str, ...] = ("y",)
    """Name of the column with the labels; several names with --task multilabel or regression."""
    ignore: tuple[str, ...] = ()
    """Names of columns to leave out."""
    categorical: tuple[str, ...] = ()
    """Names of number columns that stand for categories. Text columns always do."""
    missing: tuple[str, ...] = ()
    """Further cells that mean "not known", in all columns (unknown) or in one (chol=0)."""
    decimal: Literal["auto", ".", ","] = "auto"
    """The decimal mark, if the files do not make it clear."""
    ordered: bool = False
    """Examples are in time order, and the latest ones are used for testing."""
    task: Literal["classification", "regression", "multilabel"] = "classification"
    """What is predicted."""
    metrics: tuple[str, ...] = ()
    """Metrics to compute; results are judged by the first one. By default the task's first metric."""
    out: Path | None = None
    """The file to write; by default FOLDER.toml in the current folder."""
    fresh: bool = False
    """Replace the file if it exists."""


def command(words: list[str]) -> int:
    about = (
        "Look at a folder with one table for each client, and write a file that says how the tables are read. Other "
        "commands take it with --config. Shown are counts and names of columns, never the value of a cell."
    )
    flags, folders = parsing.parse_one(words, InitFlags(), "fedkin init FOLDER", about)
    if len(folders) != 1:
        raise UserError(f"init takes one folder of tables; given: {' '.join(folders) or 'none'}.")
    folder = Path(folders[0])
    out = flags.out or Path(f"{folder.resolve().name}.toml")
    if out.suffix != ".toml":
        raise UserError(f"--out {out} must end in .toml: that is what --config reads.")
    if out.exists() and not flags.fresh:
        raise UserError(
            f"{out} exists: change it with an editor, or name another file with --out, or add --fresh to replace it."
        )
    from fedkin.data import from_folder
    from fedkin.task import task

    made = task(flags.task, metrics=tuple(name for word in flags.metrics for name in word.split(",") if name))
    reading = {name: getattr(flags, name) for name in ("label", "ignore", "categorical", "missing")}
    arrays = from_folder(folder, **reading, decimal=flags.decimal, ordered=flags.ordered, task=flags.task)
    _show(arrays, folder)
    advice = _advice(arrays)
    try:
        out.write_text(_toml(folder, flags, made.metrics, advice))
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror}. Name another file with --out.") from None
    for text in advice:
        print(f"Look at it: {text}")
    print(
        f"{out} says how these tables are read. Next: fedkin compare local fedavg-ft kin --config {out} --out results"
    )
    return 0


def _show(arrays: Arrays, folder: Path) -> None:
    from rich.table import Table

    from fedkin.cli.terminal import console
    from fedkin.data import overview

    print(f"{folder}: {len(arrays.names)} clients, {len(arrays.y)} examples, to learn a {arrays.task}.")
    for header, rows in (overview.clients(arrays), *([overview.columns(arrays)] if arrays.columns else [])):
        table = Table(*header)
        for row in rows:
            table.add_row(*row)
        console(120).print(table)


def _advice(arrays: Arrays) -> list[str]:
    from fedkin.data import overview

    if not arrays.columns:
        return []
    out = []
    if names := overview.like_categories(arrays):
        out.append(
            f"few different numbers in {', '.join(names)}. If they stand for categories, name them under categorical."
        )
    if names := overview.zeros_apart(arrays):
        given = " ".join(f"{name}=0" for name in names)
        out.append(f"0 is far from all other cells of {', '.join(names)}. If it means not known, name it under "
                   f"missing: {given}.")  # fmt: skip
    return out


def _toml(folder: Path, flags: InitFlags, metrics: Sequence[str], advice: Sequence[str]) -> str:
    """The flags of a run, as `--config` reads them."""
    values: dict[str, Any] = {
        "data": str(folder),
        **{name: list(getattr(flags, name)) for name in ("label", "ignore", "categorical", "missing")},
        "decimal": flags.decimal,
        "ordered": flags.ordered,
        "task": flags.task,
        "metrics": list(metrics),
    }
    lines = [f"# How the tables in {folder} are read: fedkin compare local fedavg-ft --config THIS_FILE"]
    lines += [f"# Look at it: {text}" for text in advice]
    return "\n".join([*lines, *(f"{key} = {json.dumps(value)}" for key, value in values.items())]) + "\n"
