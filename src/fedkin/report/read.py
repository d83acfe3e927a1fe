"""Find run folders and read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedkin.report.gathered import Gathered
from fedkin.results.files import read_json
from fedkin.results.history import History

MOST_ANSWERS = 20  # clients whose answers are listed one by one


class NoRun(FileNotFoundError):
    """There is no run to show, at least not yet."""


@dataclass(frozen=True)
class Run:
    folder: Path
    config: dict[str, Any]
    gathered: Gathered

    @property
    def seed(self) -> int:
        return int(self.config["options"]["seed"])


def folders(paths: Sequence[str | Path]) -> list[Path]:
    """Find the run folders at or below these paths, in the order in which the page shows them."""
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.is_dir():
            raise FileNotFoundError(f"{path} is not a folder. Give the --out folder of a run or of a comparison.")
        inside = [path] if _is_run(path) else [c.parent for c in path.rglob("config.json") if _is_run(c.parent)]
        inside.sort(key=lambda f: ((f / "config.json").stat().st_mtime_ns, str(f)))
        if (path / "comparison.json").exists():
            with understood([path]):
                named = [line["method"] for line in read_json(path / "comparison.json").get("methods", [])]
                rank = {name: i for i, name in enumerate(named)}
                inside.sort(key=lambda f: rank.get(read_json(f / "config.json").get("label"), len(rank)))
        found += [f for f in inside if f not in found]
    if not found:
        given = ", ".join(map(str, paths))
        raise NoRun(f"No run in {given}: a run folder has a config.json and a history.jsonl with at least one record.")
    return found


def _is_run(folder: Path) -> bool:
    history = folder / "history.jsonl"
    return (folder / "config.json").exists() and history.exists() and history.stat().st_size > 0


def config(folder: Path) -> dict[str, Any]:
    """A run's config.json, with the types of its main parts checked."""
    found = read_json(folder / "config.json", constant=str)  # the page's JSON cannot hold infinity as a number
    for part in ("label", "options", "federation"):
        if part not in found:
            raise ValueError(f"{folder / 'config.json'} has no '{part}': this is not the folder of a fedkin run.")
    if not all(isinstance(found.get(part, {}), dict) for part in ("options", "federation", "method", "training")):
        raise ValueError(f"{folder / 'config.json'} is damaged: restore it from a copy.")
    return found


def load(folder: Path) -> Run:
    """Read a whole run."""
    run = Run(folder, config(folder), Gathered())
    for record in History.load(folder, limit=0):
        run.gathered.take(record)
    return run


def label(folder: Path) -> str:
    return str(config(folder)["label"])


@contextmanager
def understood(paths: Sequence[str | Path]) -> Iterator[None]:
    """Turn errors that unexpected content of a run's files causes in this block into one that names the folders."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise ValueError(
            f"{', '.join(map(str, paths))}: config.json or history.jsonl has content that fedkin did not write "
            f"({type(error).__name__}: {error}). Restore it from a copy, or leave this run out."
        ) from error


def answers(paths: Sequence[str | Path]) -> list[dict[str, Any]]:
    """What a comparison found for each of its clients; empty for other folders."""
    files = [Path(path) / "comparison.json" for path in paths]
    found: list[dict[str, Any]] = (
        read_json(files[0]).get("clients", []) if len(files) == 1 and files[0].exists() else []
    )
    return found if len(found) <= MOST_ANSWERS else []
