"""`evaluate_all`: score every client with what the server would send it now. This does not change the run."""

from __future__ import annotations

import json
from pathlib import Path

from torch import Tensor

from fedkin.engine.round import RunContext, explain, stop_at_own_faults
from fedkin.engine.runner import Evaluation
from fedkin.protocol import State
from fedkin.results.files import write_json
from fedkin.results.folder import is_own
from fedkin.results.history import ALL
from fedkin.results.personal import FROZEN

MANY, AT_ONCE = 1 << 28, 1 << 26  # bytes of models for all clients that are too many, and of those sent at a time then


def evaluate_all(
    context: RunContext, state: State, round: int, ids: Tensor, models: Path | None = None, *, record: bool = True
) -> None:
    """Record the scores of these clients after a round. Their personal models go to the folder `models` if given."""
    recorder, names = context.recorder, context.spec.federation.names
    outcomes = []
    size = 4 * context.fed.layout.size
    for part in ids.split(max(1, AT_ONCE // size) if size * len(ids) > MANY else max(1, len(ids))):
        work = [
            Evaluation(round, position, client, context.checkpoint.client(client), models)
            for position, client in enumerate(part.tolist())
        ]
        outcomes += context.engine.run(work, context.spec.method.send(state, part))
    stop_at_own_faults(outcomes)
    explain(outcomes)
    files = {}
    for outcome in outcomes:
        if record:
            recorder.notes(round, outcome.client, outcome.notes, ALL)
            if outcome.error:
                recorder.unmeasured(round, outcome.client, outcome.error)
            recorder.evaluated(round, outcome.client, outcome.scores)
            if outcome.one_class:
                recorder.one_class(round, outcome.client)
        if outcome.model:
            files[names[outcome.client]] = outcome.model
    if models is not None and files:
        write_json(models / "index.json", files)
        for path in models.iterdir():
            if is_own(f"models/{path.name}") and path.name not in ("index.json", FROZEN, *files.values()):
                path.unlink()


def models_complete(models: Path) -> bool:
    """Are all personal models there that the index names?"""
    try:
        return all((models / name).exists() for name in json.loads((models / "index.json").read_bytes()).values())
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return False
