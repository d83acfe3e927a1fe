"""What a site keeps on its own disk: private states, its personal model, a key for noise, a line for each request.

The client's private states are in `STATE/RUN/CLIENT/`, a file for each change, named by round and exchange. The server
says from which one to start; a task that is asked for again starts from the same one and writes the same next one, so
that no round is ever applied twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedkin.data.federation import Federation
from fedkin.deploy.codec import Request
from fedkin.deploy.config import SiteConfig
from fedkin.deploy.plan import Plan
from fedkin.models.build import resolve
from fedkin.registry import qualified
from fedkin.results.files import write_bytes, write_json
from fedkin.results.personal import personal_data
from fedkin.results.run import inputs_of
from fedkin.robust.privacy import Privacy

LOG = "requests.jsonl"
STATE = re.compile(r"client-\d{6,}-\d{6,}-\d+\.safetensors")


def remove_unused(folder: Path, keep: set[str], round: int) -> None:
    """Remove states that are no longer needed. Later ones stay: an old message must not undo what came after."""
    for path in states(folder):
        if path.name not in keep and round_of(path.name) <= round:
            path.unlink(missing_ok=True)


def states(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if STATE.fullmatch(path.name)] if folder.is_dir() else []


def round_of(state: str) -> int:
    """The round that made a private state, from the name of its file."""
    return int(state.split("-")[2])


def keep_loadable(config: SiteConfig, folder: Path, plan: Plan, mine: Federation, request: Request, file: str) -> None:
    """Make the folder one that `fedkin predict` and `fedkin.load` read: this site's own model, without the server's
    state."""
    one = replace(mine, splits=mine.splits[:1])
    source = resolve(plan.model, request.data)
    settings: dict[str, Any] = asdict(plan.method) if is_dataclass(plan.method) else {}
    about = {
        "label": plan.label,
        "method": {"class": qualified(type(plan.method)), **settings},
        "sees_test": plan.method.sees_test,
        "task": plan.task.to_config(),
        "inputs": {**inputs_of(one), "clients": [config.name]},
        "federation": one.description,
        "model": {"name": source if isinstance(source, str) else qualified(source), "options": plan.model_options,
                  "head": plan.head},
        "training": asdict(plan.training),
        "options": asdict(plan.options),
        "joined": {"run": request.run, "after_round": request.round - 1},
    }  # fmt: skip
    (folder / "models").mkdir(exist_ok=True)
    shutil.copyfile(folder / "personal.safetensors", folder / "models" / file)
    if not (folder / "config.json").exists() and (text := personal_data(plan.method, folder)):
        print(text)  # in the site's own log, once
    write_json(folder / "models" / "index.json", {config.name: file})
    write_json(folder / "config.json", about)
    for path in (folder / "models").glob("*.safetensors"):
        if path.name != file:
            path.unlink()  # of an earlier evaluation


def privacy_of(config: SiteConfig, plan: Plan) -> Privacy | None:
    """The privacy that applies here, with a key that never leaves this site's disk: whoever knows it could subtract the
    noise."""
    text = config.privacy or plan.options.privacy
    if not text:
        return None
    path = Path(config.state) / "noise.key"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        write_bytes(path, secrets.token_bytes(32))
        path.chmod(0o600)
    made = Privacy.read(text, path.read_bytes())
    assert made is not None
    made.refuse(plan.method)
    return made


def log(config: SiteConfig, request: Request | None, received: int, sent: int, error: str) -> None:
    """One line for each request, on the site's own disk."""
    line = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "run": request.run if request else "",
        "round": request.round if request else 0,
        "function": (request.function or "measure") if request else "",
        "bytes_received": received,
        "bytes_sent": sent,
        "error": error,
    }
    path = Path(config.state) / LOG
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as f:
        f.write(json.dumps(line) + "\n")


def answered(config: SiteConfig, run: str) -> int:
    """How many requests of a run this site has answered."""
    path = Path(config.state) / LOG
    if not path.exists():
        return 0
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return sum(line["run"] == run and not line["error"] for line in lines)


@contextlib.contextmanager
def private_files() -> Iterator[None]:
    """Inside this block, files are created readable by their owner only."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def settle(path: Path) -> None:
    """Flush a file to the disk before the server learns of it."""
    with open(path, "rb") as f:
        os.fsync(f.fileno())
