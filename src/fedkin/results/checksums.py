"""Checksums of a finished run, so that a reader can tell if a file was changed."""

from __future__ import annotations

import json
from pathlib import Path

from fedkin.results.files import digest, digest_of, sync, write_json
from fedkin.results.folder import is_own

NAME = "checksums.json"


class Altered(ValueError):
    """A file of a finished run was changed after it was written."""


def write(folder: Path) -> None:
    """Write the digests of a finished run's results. This is the last file that a run writes."""
    names = ["config.json", "history.jsonl", "summary.json"]
    if (folder / "models").is_dir():
        names += sorted(name for p in (folder / "models").iterdir() if is_own(name := f"models/{p.name}"))
    for name in names:
        sync(folder / name)
    files = {name: digest_of(folder / name) for name in names}
    write_json(folder / NAME, {"files": files, "digest": _signature(files)}, durable=True)


def renew(folder: Path, name: str) -> None:
    """Update the digest of a file that fedkin itself changed later, for example for a new label."""
    path = folder / NAME
    if path.exists():
        files = {**json.loads(path.read_bytes())["files"], name: digest_of(folder / name)}
        write_json(path, {"files": files, "digest": _signature(files)}, durable=True)


def verify(folder: Path, *names: str) -> bool:
    """Do these files of a finished run exist (all of them if no names are given)? Raise if one was changed.

    For a run that is not finished, or older than checksums, the answer is always True.
    """
    path = folder / NAME
    if not path.exists():
        return True
    try:
        noted = json.loads(path.read_bytes())
        files: dict[str, str] = noted["files"]
        if noted["digest"] != _signature(files):
            raise ValueError("it was changed after it was written")
        known = [name for name in names or files if name in files]
        there = [name for name in known if (folder / name).exists()]
        wrong = [name for name in there if digest_of(folder / name) != files[name]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        known, there, wrong = [], [], [NAME]
    if wrong and path.exists():  # otherwise the run is just being continued with more rounds
        raise Altered(
            f"{folder}: {', '.join(wrong)} changed after the run had finished. Restore the folder from a copy, or run "
            "it again with --fresh."
        )
    return known == there


def _signature(files: dict[str, str]) -> str:
    return digest(json.dumps(files, sort_keys=True).encode())
