"""Checkpoints: a run that was stopped, even by SIGKILL, goes on with the same bits.

`checkpoint/manifest.json` is written last and replaced atomically. It names the server's state, each client's state
file, and how much of history.jsonl was written by then; whatever is not named in it does not count.
"""

from __future__ import annotations

import json
import platform
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.protocol import State
from fedkin.results.folder import is_own
from fedkin.results.store import load_state, save_state, write_json

VERSION = 1


class Checkpoint:
    def __init__(self, folder: Path, manifest: dict[str, Any] | None) -> None:
        self.folder = folder
        self._place = folder / "checkpoint"
        self._manifest = manifest
        self._clients: dict[int, str] = {}
        if manifest is not None:
            self._clients = {int(k): v for k, v in manifest["clients"].items()}
        self._saved = set(self._clients.values())

    @classmethod
    def open(cls, folder: Path, config: dict[str, Any], free: set[str]) -> Checkpoint:
        """The state of affairs in a folder; refuses one that holds another run."""
        old = folder / "config.json"
        if not old.exists():  # nothing there yet, or killed before the run began
            return cls(folder, None)
        differences = _differences(json.loads(old.read_text()), json.loads(json.dumps(config, default=float)), free)
        if differences:
            raise ValueError(
                f"{folder} holds another run; it differs in:\n  " + "\n  ".join(differences) + "\n"
                "Name another --out, or use --fresh to start over there."
            )
        manifest = folder / "checkpoint" / "manifest.json"
        return cls(folder, json.loads(manifest.read_text()) if manifest.exists() else None)

    def start(self, config: dict[str, Any]) -> None:
        write_json(self.folder / "config.json", config)
        (self.folder / "summary.json").unlink(missing_ok=True)  # of the same run with fewer rounds
        if self._manifest is None:
            (self.folder / "timing.jsonl").unlink(missing_ok=True)
        self._sweep_up()

    def load(self) -> tuple[State | None, int, int]:
        """Server state, rounds done, and the length of the history by then."""
        if self._manifest is None:
            return None, 0, 0
        state = load_state(self._place / self._manifest["server"])
        return state, self._manifest["round"], self._manifest["history"]

    @property
    def done(self) -> int:
        """Rounds behind the last checkpoint."""
        return int(self._manifest["round"]) if self._manifest else 0

    def finished(self, rounds: int) -> bool:
        return (
            self._manifest is not None and self._manifest["round"] == rounds and (self.folder / "summary.json").exists()
        )

    def save(self, round: int, state: State, history: int) -> None:
        server = f"server-{round:06d}.safetensors"
        save_state(self._place / server, state, durable=True)
        manifest = {
            "version": VERSION,
            "round": round,
            "server": server,
            "clients": {str(k): v for k, v in sorted(self._clients.items())},
            "history": history,
        }
        write_json(self._place / "manifest.json", manifest, durable=True)
        self._manifest = manifest
        self._saved = set(self._clients.values())
        self._sweep_up()

    # ---- private states of simulated clients: a file a client, a new one for each change
    def client(self, client: int) -> Path | None:
        name = self._clients.get(client)
        return self._place / name if name else None

    def kept(self, client: int) -> set[str]:
        """Names of the states a client may still be asked to start from: the present one and the checkpoint's."""
        saved = self._manifest["clients"].get(str(client)) if self._manifest else None
        return {name for name in (self._clients.get(client), saved) if name}

    def next(self, client: int, round: int, exchange: int) -> Path:
        return self._place / f"client-{client:06d}-{round:06d}-{exchange}.safetensors"

    def commit(self, client: int, path: Path) -> None:
        old = self._clients.get(client)
        self._clients[client] = path.name
        if old and old != path.name and old not in self._saved:
            (self._place / old).unlink(missing_ok=True)

    def _sweep_up(self) -> None:
        """Remove what no checkpoint names."""
        named = self._saved | ({self._manifest["server"], "manifest.json"} if self._manifest else set())
        if self._place.is_dir():
            for path in self._place.iterdir():
                if path.name not in named and is_own(f"checkpoint/{path.name}"):
                    path.unlink(missing_ok=True)


def _differences(old: dict[str, Any], new: dict[str, Any], free: set[str]) -> list[str]:
    out = []
    for part in sorted((old.keys() | new.keys()) - {"environment", "label"}):
        a, b = old.get(part), new.get(part)
        if not (isinstance(a, dict) and isinstance(b, dict)):
            if a != b:
                out.append(f"{part}: {a} there, {b} now")
            continue
        for key in sorted(a.keys() | b.keys()):
            if a.get(key) != b.get(key) and not (part == "options" and key in free):
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
        "command": shlex.join(sys.argv),
    }
