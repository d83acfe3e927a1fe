"""`run`: one federated run, from a method and a federation to a history, a summary and models on disk."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from math import ceil, isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.data.federation import Population
from fedkin.engine.checkpoint import Checkpoint, environment
from fedkin.engine.costs import Device
from fedkin.engine.options import RESUMABLE, Options, settled
from fedkin.engine.pool import Pool
from fedkin.engine.round import Engine, NoReplies, RoundClients, RunContext, explain
from fedkin.engine.runner import RunSpec, Task
from fedkin.engine.serial import Serial
from fedkin.engine.trackers import Tracker
from fedkin.maths.cluster import rand_index
from fedkin.models.build import Source, maker, resolve
from fedkin.models.network import Network
from fedkin.protocol import Method, Server, State, Training
from fedkin.results.folder import Folder, is_own
from fedkin.results.history import History
from fedkin.results.store import write_json
from fedkin.results.summary import summarize

Connect = Callable[[RunSpec, Checkpoint], Engine]
MIXING_LIMIT = 400  # beyond so many clients the matrix of who learns from whom is not written down
MIXING_CELLS = 5_000  # above so many numbers in a round, the matrices of every second, third, … round are


@dataclass(frozen=True)
class Result:
    summary: dict[str, Any]
    history: History
    state: State
    out: Path | None


def run(
    method: Method | str,
    federation: Population,
    *,
    model: Source = "auto",
    model_options: dict[str, Any] | None = None,
    head: str | None = None,
    training: Training | None = None,
    out: str | Path | None = None,
    fresh: bool = False,
    trackers: Sequence[Tracker] = (),
    label: str | None = None,
    options: Options | None = None,
    connect: Connect | None = None,
    **settings: Any,
) -> Result:
    """Run a method on a federation.

    `settings` are fields of `Options` (rounds, participation, seed, …) and of `Training` (lr, epochs, batch_size, …).
    With `out`, a run that was stopped goes on where it was; `fresh` starts over. `connect` makes an engine of one's own
    in the place of `options.engine`.
    """
    if isinstance(method, str):
        from fedkin.methods import method as by_name

        label = label or method
        method = by_name(method)
    options, training = settled(options or Options(), training or Training(), settings)
    source = resolve(model, federation.description.get("data", "own"))
    make = maker(source, federation.shape, federation.classes, options.seed, model_options or {})
    spec = RunSpec(method, federation, lambda: make(0), head, training, options.seed)
    config = {
        "label": label or type(method).__name__,
        "method": {"class": type(method).__name__, **(asdict(method) if is_dataclass(method) else {})},
        "sees_test": method.sees_test,
        "federation": federation.description,
        "fingerprint": federation.fingerprint(),
        "model": {"name": _name(source), "head": head, "start": _hash(make(0)), **(model_options or {})},
        "training": asdict(training),
        "options": asdict(options),
        "environment": environment(),
    }
    with contextlib.ExitStack() as stack:
        if out is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedkin-")))
        else:
            owned = stack.enter_context(Folder(out, "run"))
            folder = owned.path
            if fresh:
                owned.clear()
        checkpoint = Checkpoint.open(folder, config, RESUMABLE)
        loop = _Loop(spec, options, config, checkpoint, make, trackers, connect, keep=out is not None)
        try:
            return loop.run(Path(out) if out is not None else None)
        finally:
            loop.close()


class _Loop:
    def __init__(
        self,
        spec: RunSpec,
        options: Options,
        config: dict[str, Any],
        checkpoint: Checkpoint,
        make: Callable[[int], torch.nn.Module],
        trackers: Sequence[Tracker],
        connect: Connect | None,
        *,
        keep: bool,
    ) -> None:
        self.spec, self.options, self.config, self.checkpoint = spec, options, config, checkpoint
        self.trackers, self.keep, self.connect = trackers, keep, connect
        federation = spec.federation
        net = Network(spec.make(), federation.example, spec.head)
        self.fed = Server(
            ids=torch.arange(len(federation)),
            n=federation.sizes,
            classes=federation.classes,
            seed=options.seed,
            participation=options.participation,
            training=spec.training,
            layout=net.layout,
            initial=lambda k: _row(make(k), net),
        )
        self.device = Device(options.link_rate, options.device_rate, options.spread, options.seed)
        self.history = History()
        self.context: RunContext | None = None
        self._answered, self._mark = 0, 0

    def close(self) -> None:
        if self.context is not None:
            self.context.engine.close()
        self.history.close()

    def run(self, out: Path | None) -> Result:
        method, options, checkpoint = self.spec.method, self.options, self.checkpoint
        state, done, kept = checkpoint.load()
        self._check_presence()
        if state is not None and checkpoint.finished(options.rounds):
            self.history = History.load(checkpoint.folder)
            summary = json.loads((checkpoint.folder / "summary.json").read_text())
            return Result(summary, self.history, state, out)
        self.history = History(checkpoint.folder / "history.jsonl", keep=kept)
        if state is None:
            state = method.init(self._present(1))
            for client, metric, value in self.spec.federation.facts():
                self.history.add(0, client, metric, value)
        checkpoint.start(self.config)
        self.context = RunContext(self.spec, options, self.fed, checkpoint, self.history, self._engine(), self.trackers)
        for tracker in self.trackers:
            tracker.start(self.config, done)
        for round in range(done + 1, options.rounds + 1):
            begin = time.perf_counter()
            self._mark = len(self.history.records)
            state = self._round(state, round)
            last = round == options.rounds
            if self._scheduled(round):
                self._sweep(state, round, models=last)
            if last or round % options.checkpoint_every == 0:
                checkpoint.save(round, state, self.history.flush())
            if last and not self._scheduled(round):  # after the checkpoint: a longer run would not have it
                self._sweep(state, round, models=True)
            self.history.flush()
            self._notify(round, time.perf_counter() - begin)
        if done == options.rounds and not self._scheduled(done):
            self._sweep(state, done, models=True)  # it was stopped between its last checkpoint and its end
            self.history.flush()
        summary = summarize(self.history, self.config)
        if self.keep:
            write_json(checkpoint.folder / "summary.json", summary)
        for tracker in self.trackers:
            tracker.finish(summary)
        return Result(summary, self.history, state, out)

    def _engine(self) -> Engine:
        options = self.options
        if self.connect is not None:
            return self.connect(self.spec, self.checkpoint)
        if options.engine == "ray":
            from fedkin.engine.ray import Ray

            limit = options.time_limit or None
            return Ray(self.spec, options.workers, address=options.ray_address, time_limit=limit)
        if options.engine == "serial" or not hasattr(os, "fork"):
            return Serial(self.spec)
        workers = options.workers or os.cpu_count() or 1
        return Pool(self.spec, min(workers, len(self.spec.federation)), time_limit=options.time_limit or None)

    def _present(self, round: int) -> Server:
        """The server's view of the clients that are there in this round."""
        arrive, leave = self.options.arrive, self.options.leave
        if not arrive and not leave:
            return self.fed
        there = [c for c in range(self.fed.size) if arrive.get(c, 1) <= round < leave.get(c, round + 1)]
        return replace(self.fed, ids=torch.tensor(there, dtype=torch.long))

    def _check_presence(self) -> None:
        for word, times in (("arrive", self.options.arrive), ("leave", self.options.leave)):
            for client in times:
                if not 0 <= client < self.fed.size:
                    raise ValueError(f"{word} names client {client}; there are clients 0 to {self.fed.size - 1}.")
        for client in self.options.arrive.keys() | self.options.leave.keys():
            first, gone = self.options.arrive.get(client, 1), self.options.leave.get(client)
            if first < 1 or (gone is not None and gone <= first):
                raise ValueError(
                    f"Client {client} arrives in round {first} and leaves in round {gone}: it must arrive in round 1 "
                    "or later, and leave after that."
                )
        for round in range(1, self.options.rounds + 1):
            if not len(self._present(round).ids):
                raise ValueError(f"Nobody is there in round {round}: change arrive={self.options.arrive} or leave.")

    def _scheduled(self, round: int) -> bool:
        """Are all clients measured after this round, however many rounds there are?"""
        every = self.options.evaluate_every
        return bool(every and round % every == 0)

    def _round(self, state: State, round: int) -> State:
        method = self.spec.method
        present = self._present(round)
        ids = method.select(state, present, round)
        if absent := sorted(set(ids.tolist()) - set(present.ids.tolist())):
            raise ValueError(
                f"{type(method).__name__}.select chose clients {absent} in round {round}; they are not there: choose "
                "from fed.ids."
            )
        assert self.context is not None
        clients = RoundClients(self.context, round, ids, measure=not self._scheduled(round))
        answered = True
        try:
            state = method.round(state, clients)
        except NoReplies:
            answered = False
            self.history.add(round, None, "lost_round", True)
        self._answered, tally = clients.answered, clients.tally
        for client in sorted(tally.down):
            self.history.add(round, client, "bytes_down", tally.down[client])
            self.history.add(round, client, "bytes_up", tally.up[client])
            self.history.add(round, client, "flops", tally.flops[client])
        compute, communication = tally.seconds(self.device)
        self.history.add(round, None, "compute_seconds", compute)
        self.history.add(round, None, "communication_seconds", communication)
        if answered:  # else the state still tells of the round before: what happened once would be told twice
            self._describe(state, round)
        return state

    def _describe(self, state: State, round: int) -> None:
        method = self.spec.method
        for metric, value in method.describe(state).items():
            self.history.add(round, None, metric, _plain(value))
            if metric == "clusters" and self.spec.federation.groups is not None:
                truth = self.spec.federation.groups.tolist()
                pairs = [(t, c) for t, c in zip(truth, _plain(value)) if c is not None and c >= 0]
                if len(pairs) > 1:
                    self.history.add(round, None, "rand_index", rand_index(*zip(*pairs)))
        if len(self.spec.federation) <= MIXING_LIMIT and (mixing := method.mixing(state)) is not None:
            parts = len(mixing) if isinstance(mixing, dict) else 1
            if round == 1 or round % ceil(parts * len(self.spec.federation) ** 2 / MIXING_CELLS) == 0:
                self.history.add(round, None, "mixing", _plain(mixing))

    def _sweep(self, state: State, round: int, *, models: bool) -> None:
        """Measure every client with what the server would send it now; nothing of it has an effect on the run."""
        ids = self._present(round).ids
        folder = self.checkpoint.folder / "models" if models and self.keep and self.options.save_models else None
        tasks = [
            Task(round + 1, place, client, "", self.checkpoint.client(client), None, True, folder)
            for place, client in enumerate(ids.tolist())
        ]
        assert self.context is not None
        files = {}
        outcomes = self.context.engine.run(tasks, self.spec.method.send(state, ids))
        explain(outcomes)
        for outcome in outcomes:
            for note in outcome.notes:
                self.history.add(round, outcome.client, "note", note, "all")
            if outcome.error:
                self.history.add(round, outcome.client, "unmeasured", outcome.error, "all")
            for metric, value in outcome.scores.items():
                self.history.add(round, outcome.client, metric, value, "all")
            if outcome.model:
                files[self.spec.federation.names[outcome.client]] = outcome.model
        if folder is not None and files:
            write_json(folder / "index.json", files)
            for path in folder.iterdir():
                if is_own(f"models/{path.name}") and path.name not in ("index.json", *files.values()):
                    path.unlink()

    def _notify(self, round: int, seconds: float) -> None:
        scope = "all" if self._scheduled(round) or round == self.options.rounds else "round"
        metrics: dict[str, float] = {"seconds": seconds, "clients": float(self._answered)}
        news = self.history.records[self._mark :]  # not the whole history: a round must not cost more the later it is
        for metric in ("personal", "received", "personal_loss"):
            if values := [r.value for r in news if r.metric == metric and r.scope == scope and r.value is not None]:
                metrics[metric] = sum(values) / len(values)
        if self.keep:
            with open(self.checkpoint.folder / "timing.jsonl", "a") as f:
                f.write(json.dumps({"round": round, "seconds": _plain(seconds), "answers": self._answered}) + "\n")
        for tracker in self.trackers:
            tracker.round(round, metrics)


def _row(module: torch.nn.Module, like: Network) -> Tensor:
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    return like.layout.flatten({k: v.detach() for k, v in tensors.items()})


def _hash(module: torch.nn.Module) -> str:
    """Of the initial model: a run does not go on with another one of the same name."""
    digest = hashlib.blake2b(digest_size=8)
    for name, value in module.state_dict().items():
        digest.update(name.encode() + value.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _name(source: Source) -> str:
    return source if isinstance(source, str) else getattr(source, "__name__", type(source).__name__)


def _plain(value: Any) -> Any:
    """For JSON: plain numbers and lists, of six digits; what is not finite becomes null."""
    if isinstance(value, Tensor):
        value = value.detach().numpy()
    if isinstance(value, np.ndarray):
        if not np.issubdtype(value.dtype, np.floating) or not np.isfinite(value).all():
            return _plain(value.tolist())
        with np.errstate(divide="ignore"):
            digits = 10.0 ** (5 - np.floor(np.log10(np.abs(value.astype(float)))))
        return np.where(value == 0, 0.0, np.round(value * np.where(value == 0, 1, digits)) / digits).tolist()
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, float):
        return float(f"{value:.6g}") if isfinite(value) else None
    return value


if sys.platform == "win32":  # pragma: no cover
    raise ImportError("fedkin runs on Linux and macOS.")
