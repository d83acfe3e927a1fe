"""Checkpoints: a run that was stopped, even by SIGKILL, resumes with the same bits.

`checkpoint/manifest.json` is written last and replaced atomically. It names the server's state, each client's state
file, and how much of history.jsonl was written by then, with a digest of each. Files that it does not name are ignored.
`previous.json` is the manifest before it: it is used if any part of the newest checkpoint is damaged.
"""

from __future__ import annotations

import json
import platform
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.engine.options import Options
from fedkin.protocol import State, Training
from fedkin.results import checksums
from fedkin.results.files import StorageError, digest, digest_of, read_json, sync, write_durably, write_json
from fedkin.results.folder import is_own, own_files
from fedkin.results.store import load_state, save_state

VERSION = 2
Manifest = dict[str, Any]


class Damaged(ValueError):
    """No checkpoint of a run can be used."""


class Checkpoint:
    def __init__(self, folder: Path, manifest: Manifest | None, previous: Manifest | None = None) -> None:
        self.folder = folder
        self.notes: list[str] = []
        """What the user should know about how this checkpoint was found."""
        self._checkpoint = folder / "checkpoint"
        self._manifest, self._previous = manifest, previous
        self._clients: dict[int, str] = {int(k): v for k, v in manifest["clients"].items()} if manifest else {}
        self._digests: dict[str, str] = dict(manifest.get("digests", {})) if manifest else {}
        self._synced = set(self._clients.values())
        self._named = self._names()

    @classmethod
    def open(cls, folder: Path, config: dict[str, Any], free: set[str]) -> Checkpoint:
        """Open the checkpoint in a folder. Raise if the folder belongs to another run, or nothing in it can be used."""
        path = folder / "config.json"
        manifests = [folder / "checkpoint" / name for name in ("manifest.json", "previous.json")]
        if not path.exists():
            if any(manifest.exists() for manifest in manifests):
                raise Damaged(f"{folder} has lost its config.json: restore it, or use --fresh to start over there.")
            return cls(folder, None)  # the folder is new, or the run was killed before it began
        try:
            old = read_json(path)
        except (OSError, ValueError) as error:
            raise Damaged(f"{str(error).rstrip('.')}, or use --fresh to start over there.") from error
        if differences := _differences(old, json.loads(json.dumps(config, default=float)), free):
            raise ValueError(
                f"{folder} holds another run; it differs in:\n  " + "\n  ".join(differences) + "\n"
                "Name another --out, or use --fresh to start over there."
            )
        if not any(manifest.exists() for manifest in manifests):
            return cls(folder, None)
        return cls._newest(folder, manifests)

    @classmethod
    def _newest(cls, folder: Path, manifests: list[Path]) -> Checkpoint:
        """The newest checkpoint whose files are all present and unchanged."""
        problems = []
        for number, path in enumerate(manifests):
            try:
                manifest = _verified(folder, path)
            except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                problems.append(f"{path.name}: {error}")
                continue
            previous = None
            if number == 0:
                try:
                    previous = _read(manifests[1])
                except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
                    previous = None  # it is not needed
            made = cls(folder, manifest, previous)
            if problems:
                made.notes.append(
                    f"the newest checkpoint is damaged ({'; '.join(problems)}); the run resumes from the one before, "
                    f"after round {made.done}"
                )
            return made
        raise Damaged(
            f"No checkpoint in {folder} can be used ({'; '.join(problems)}). Nothing was changed: restore the folder, "
            "or use --fresh to start over there."
        )

    def start(self, config: dict[str, Any]) -> None:
        """Prepare the folder before the first remaining round."""
        (self.folder / checksums.NAME).unlink(missing_ok=True)  # written by the same run with fewer rounds
        (self.folder / "summary.json").unlink(missing_ok=True)
        write_json(self.folder / "config.json", config, durable=True)
        if self._manifest is None:
            (self.folder / "timing.jsonl").unlink(missing_ok=True)
        self.remove_unfinished()
        self._remove_unused()

    def remove_unfinished(self) -> None:
        """Remove unfinished files of this process, or of a worker that has ended."""
        for path in own_files(self.folder, "run"):
            if path.name.startswith("."):
                path.unlink(missing_ok=True)

    def load(self) -> tuple[State | None, int, int]:
        """Server state, rounds done, and the length of the history by then."""
        if self._manifest is None:
            return None, 0, 0
        state = load_state(self._checkpoint / self._manifest["server"])
        return state, self._manifest["round"], self._manifest["history"]

    @property
    def done(self) -> int:
        """Rounds done at the last checkpoint."""
        return int(self._manifest["round"]) if self._manifest else 0

    def finished(self, rounds: int) -> bool:
        """Is the run complete, with all its files? Raise if one was changed since."""
        last = checksums.NAME if self._manifest and self._manifest["version"] > 1 else "summary.json"
        return self.done == rounds and (self.folder / last).exists() and checksums.verify(self.folder)

    def save(self, round: int, state: State, history: int, history_digest: str) -> None:
        """Write a checkpoint. The history must already be on the disk."""
        server = f"server-{round:06d}.safetensors"
        digests = {server: save_state(self._checkpoint / server, state, write_durably), "history.jsonl": history_digest}
        for name in self._clients.values():
            if name not in self._synced and (self._checkpoint / name).exists():  # real sites keep theirs
                sync(self._checkpoint / name)
            if name in self._digests:
                digests[name] = self._digests[name]
        sync(self._checkpoint)
        manifest = {
            "version": VERSION,
            "round": round,
            "server": server,
            "clients": {str(k): v for k, v in sorted(self._clients.items())},
            "history": history,
            "digests": digests,
        }
        if self._manifest is not None:
            write_json(self._checkpoint / "previous.json", _signed(self._manifest), durable=True)
        write_json(self._checkpoint / "manifest.json", _signed(manifest), durable=True)
        self._previous, self._manifest = self._manifest, manifest
        self._synced = set(self._clients.values())
        self._digests = dict(digests)
        self._named = self._names()
        self._remove_unused()

    # ---- private states of simulated clients: a file for each change
    def client(self, client: int) -> Path | None:
        name = self._clients.get(client)
        return self._checkpoint / name if name else None

    def kept(self, client: int) -> set[str]:
        """Names of the states from which a client may still have to start: the current one and those of checkpoints."""
        saved = [m["clients"].get(str(client)) for m in (self._manifest, self._previous) if m]
        return {name for name in (self._clients.get(client), *saved) if name}

    def next(self, client: int, round: int, exchange: int) -> Path:
        return self._checkpoint / f"client-{client:06d}-{round:06d}-{exchange}.safetensors"

    def commit(self, client: int, path: Path, digest: str = "") -> None:
        """Make this the client's state."""
        old = self._clients.get(client)
        self._clients[client] = path.name
        self._synced.discard(path.name)
        if digest:
            self._digests[path.name] = digest
        if old and old != path.name and old not in self._named:
            (self._checkpoint / old).unlink(missing_ok=True)
            self._digests.pop(old, None)

    def _names(self) -> set[str]:
        """The files of both checkpoints."""
        names = {"manifest.json", "previous.json"}
        for manifest in (self._manifest, self._previous):
            if manifest:
                names |= {manifest["server"], *manifest["clients"].values()}
        return names

    def _remove_unused(self) -> None:
        """Remove files that no checkpoint names."""
        named = self._named | set(self._clients.values())
        if self._checkpoint.is_dir():
            for path in self._checkpoint.iterdir():
                if path.name not in named and is_own(f"checkpoint/{path.name}"):
                    path.unlink(missing_ok=True)


def _signed(manifest: Manifest) -> Manifest:
    body = {k: v for k, v in manifest.items() if k != "digest"}
    return {**body, "digest": digest(json.dumps(body, sort_keys=True).encode())}


def _read(path: Path) -> Manifest:
    """A manifest, checked against its own digest."""
    manifest: Manifest = json.loads(path.read_bytes())
    if not isinstance(manifest["round"], int) or not isinstance(manifest["clients"], dict):
        raise ValueError("it is not a manifest")
    if manifest["version"] not in (1, VERSION):
        raise ValueError(f"it has version {manifest['version']}; this fedkin reads 1 and {VERSION}")
    if manifest["version"] > 1 and _signed(manifest) != manifest:
        raise ValueError("it was changed after it was written")
    return manifest


def _verified(folder: Path, path: Path) -> Manifest:
    """Read a manifest and check that every file it names is unchanged."""
    manifest = _read(path)
    digests: dict[str, str] = manifest.get("digests", {})
    history = folder / "history.jsonl"
    if manifest["version"] == 1 and history.stat().st_size < manifest["history"]:
        raise StorageError(f"history.jsonl is cut short: {manifest['history']} bytes were written")
    for name, expected in digests.items():
        target = history if name == "history.jsonl" else path.parent / name
        if digest_of(target, manifest["history"] if name == "history.jsonl" else None) != expected:
            raise ValueError(f"{name} was changed after it was written")
    load_state(path.parent / manifest["server"])
    return manifest


def _differences(old: dict[str, Any], new: dict[str, Any], free: set[str]) -> list[str]:
    out = []
    # a setting that an older fedkin did not have changes nothing as long as it has its default
    defaults = {"options": asdict(Options()), "training": asdict(Training())}
    parts = (old.keys() | new.keys()) - {"environment", "label"}
    if old.get("environment", {}).get("fedkin") != new["environment"]["fedkin"]:
        parts -= new.keys() - old.keys()  # what an older fedkin did not write down
    for part in sorted(parts):
        a, b = old.get(part), new.get(part)
        if not (isinstance(a, dict) and isinstance(b, dict)):
            if a != b:
                out.append(f"{part}: {a} there, {b} now")
            continue
        for key in sorted(a.keys() | b.keys()):
            added = key not in a and key in b and part in defaults and b[key] == defaults[part].get(key)
            if a.get(key) != b.get(key) and not added and not (part == "options" and key in free):
                out.append(f"{part}.{key}: {a.get(key)} there, {b.get(key)} now")
    return out


def environment() -> dict[str, str]:
    import scipy
    import torch

    import fedkin

    return {
        "fedkin": fedkin.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "machine": f"{platform.system()} {platform.machine()}",
        "command": command(sys.argv),
    }


def command(words: Sequence[str]) -> str:
    """The command of this process. Flower's server gets a secret token in it, which must not be in results that people
    hand on."""
    secret = [i for i, word in enumerate(words) if "token" in word.partition("=")[0] and word.startswith("--")]
    shown = list(words)
    for i in secret:
        name, given, _ = words[i].partition("=")
        if given:
            shown[i] = f"{name}=***"
        elif i + 1 < len(words):
            shown[i + 1] = "***"
    return shlex.join(shown)
