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
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from fedkin.data.arrays import Arrays
from fedkin.data.federation import Population
from fedkin.engine.checkpoint import Checkpoint, environment
from fedkin.engine.costs import Device
from fedkin.engine.device import check as check_device
from fedkin.engine.evaluation import evaluate_all, models_complete
from fedkin.engine.options import RESUMABLE, Options, settled
from fedkin.engine.pool import Pool
from fedkin.engine.presence import Presence
from fedkin.engine.progress import automatic
from fedkin.engine.quarantine import sound
from fedkin.engine.recorder import Recorder, plain
from fedkin.engine.round import Engine, NoReplies, RoundClients, RunContext, checked_state
from fedkin.engine.runner import RunSpec
from fedkin.engine.serial import Serial
from fedkin.engine.signals import interruptible, stoppable
from fedkin.engine.trackers import Tracker
from fedkin.maths.table import TableError
from fedkin.models.build import Source, check_outputs, maker, resolve
from fedkin.models.network import Network
from fedkin.protocol import (
    Method,
    Server,
    State,
    Training,
    needs_few_clients,
    needs_plain_sgd,
    needs_validation_examples,
)
from fedkin.registry import qualified
from fedkin.results import checksums
from fedkin.results.files import StorageError, read_json, write_bytes, write_json
from fedkin.results.folder import Folder
from fedkin.results.history import History
from fedkin.results.personal import FROZEN, in_memory, personal_data
from fedkin.results.run import Run, inputs_of
from fedkin.results.summary import summarize
from fedkin.robust.privacy import Privacy
from fedkin.task import Task, task_of

IN_MEMORY = 1 << 30  # bytes of personal models that a run without a folder keeps
HISTORY_IN_MEMORY = 1 << 28  # bytes of a history up to which it is read into memory at the end of a run
Connect = Callable[[RunSpec, Checkpoint], Engine]


def run(
    method: Method | str,
    federation: Population,
    *,
    model: Source = "auto",
    model_options: dict[str, Any] | None = None,
    head: str | None = None,
    task: Task | str | None = None,
    training: Training | None = None,
    out: str | Path | None = None,
    fresh: bool = False,
    trackers: Sequence[Tracker] = (),
    label: str | None = None,
    options: Options | None = None,
    connect: Connect | None = None,
    **settings: Any,
) -> Run:
    """Run a method on a federation.

    `settings` are fields of `Options` (rounds, participation, seed, …) and of `Training` (lr, epochs, batch_size, …).
    `task` says what is learned: by default a classification, or a regression if the data has numbers to predict.
    With `out`, a stopped run resumes from its last checkpoint; `fresh` starts over. `connect` makes an engine of your
    own in place of `options.engine`. Without `trackers` a run shows a progress bar in a notebook, nothing elsewhere.
    """
    if isinstance(method, str):
        from fedkin.methods import method as by_name

        label = label or method
        method = by_name(method)
    if isinstance(federation, Arrays):
        raise ValueError("run needs clients: give fedkin.federate(data) instead of the data itself.")
    options, training = settled(options or Options(), training or Training(), settings)
    training = training.settled(options.rounds)
    _check_training(training, federation)
    task = task_of(task, federation, method)
    source = resolve(model, federation.description.get("data", "own"))
    make = maker(source, federation.shape, federation.outputs, options.seed, model_options or {})
    check_outputs(make(0), federation.example, federation.outputs)
    privacy = Privacy.read(options.privacy)
    if privacy is not None:
        privacy.refuse(method)
    spec = RunSpec(method, federation, lambda: make(0), head, training, options.seed, task, privacy=privacy)
    config = {
        "label": label or type(method).__name__,
        "method": {"class": qualified(type(method)), **(asdict(method) if is_dataclass(method) else {})},
        "sees_test": method.sees_test,
        "task": task.to_config(),
        "inputs": inputs_of(federation),
        "federation": federation.description,
        "fingerprint": federation.fingerprint(),
        "model": {"name": _name(source), "options": model_options or {}, "head": head, "start": _hash(make(0))},
        "training": asdict(training),
        "options": asdict(options),
        "environment": environment(),
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(stoppable())
        if out is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedkin-")))
        else:
            owned = stack.enter_context(Folder(out, "run"))
            folder = owned.path
            if fresh:
                owned.clear()
        watching = trackers or automatic(str(config["label"]))
        loop = Loop(spec, options, config, Checkpoint.open(folder, config, RESUMABLE), make, watching, out is not None)
        stack.callback(loop.close)
        if (result := loop.finished()) is not None:
            return result
        state, done = loop.begin(connect)
        with interruptible():
            loop.catch_up(state, done)
        for round in range(done + 1, options.rounds + 1):
            with interruptible():
                state = loop.round(state, round)
        return loop.finish(state)


class Loop:
    """The parts of a run. `keep`: its folder stays after the run."""

    def __init__(
        self,
        spec: RunSpec,
        options: Options,
        config: dict[str, Any],
        checkpoint: Checkpoint,
        make: Callable[[int], torch.nn.Module],
        trackers: Sequence[Tracker],
        keep: bool,
    ) -> None:
        self.options, self.config, self.checkpoint = options, config, checkpoint
        self.trackers, self.keep, self.make = trackers, keep, make
        federation = spec.federation
        net = Network(spec.make(), federation.example, spec.head, spec.task)
        self.spec = replace(spec, frozen=net.frozen_parameters, amp=options.amp, deterministic=options.deterministic)
        self.devices = check_device(options.device, options.amp)
        self.fed = Server(
            ids=torch.arange(len(federation)),
            n=federation.sizes,
            classes=federation.classes,
            seed=options.seed,
            participation=options.participation,
            training=spec.training,
            layout=net.layout,
            initial=lambda k: net.like(make(k)),
            least_loss=spec.task.least_loss,
        )
        self.presence = Presence(self.fed, options.arrive, options.leave, options.rounds)
        self.context: RunContext | None = None

    def close(self) -> None:
        """End the workers, then remove what they were writing. Nobody writes to the folder after this."""
        with contextlib.ExitStack() as stack:
            if self.keep:
                stack.callback(self.checkpoint.remove_unfinished)
            if self.context is not None:
                stack.callback(self.context.recorder.history.close)
                stack.callback(self.context.engine.close)

    @property
    def folder(self) -> Path:
        return self.checkpoint.folder

    def finished(self) -> Run | None:
        """The result, if the run has already reached its last round."""
        if not self.checkpoint.finished(self.options.rounds):
            if self.checkpoint.done > self.options.rounds:
                raise ValueError(
                    f"{self.folder} holds {self.checkpoint.done} rounds of this run, more than the "
                    f"{self.options.rounds} asked for. Name another --out, or use --fresh to start over there."
                )
            return None
        state = self.checkpoint.load()[0]
        assert state is not None
        summary = read_json(self.folder / "summary.json")
        return self._result(summary, History.load(self.folder, limit=HISTORY_IN_MEMORY), state)

    def begin(self, connect: Connect | None) -> tuple[State, int]:
        """Start the run, or resume it from its checkpoint. Return the server's state and the rounds done."""
        options, checkpoint = self.options, self.checkpoint
        for note in checkpoint.notes:
            self._warn(note)
        state, done, kept = checkpoint.load()
        history = History(self.folder / "history.jsonl", keep=kept)
        device = Device(options.link_rate, options.device_rate, options.spread, options.seed)
        recorder = Recorder(history, self.spec.federation, device)
        warnings: list[str] = []
        if state is None:
            crowd = needs_few_clients(self.spec.method, self.fed.size)
            for text in crowd:
                self._warn(text)  # now, because `init` may already need more memory than there is
            state = checked_state(self.spec.method, "init", self.spec.method.init(self.presence.server(1)))
            recorder.facts()
            warnings = self.spec.method.warnings(self.presence.server(1), options.rounds)
            warnings += needs_plain_sgd(self.spec.method, self.spec.training)
            warnings += needs_validation_examples(self.spec.method, self.spec.federation.description.get("validation"))
            for text in [*crowd, *warnings]:
                recorder.warning(text)
        checkpoint.start(self.config)
        engine = connect(self.spec, checkpoint) if connect is not None else self._engine()
        self.context = RunContext(self.spec, options, self.fed, checkpoint, recorder, engine, self.trackers)
        if checkpoint.done == 0:
            recorder.hostile(self.context.hostile)
        for tracker in self.trackers:
            tracker.start(self.config, done)
            for text in warnings:
                tracker.warn(text)
        return state, done

    def catch_up(self, state: State, done: int) -> None:
        """Do what is missing of a run that was stopped between its last checkpoint and its end."""
        if done == self.options.rounds:
            if not self._scheduled(done):
                self._evaluate(state, done)
            elif self._models(done) and not models_complete(self.folder / "models"):
                self._evaluate(state, done, record=False)

    def round(self, state: State, round: int) -> State:
        """One round: the method's own steps, then what is measured, saved and reported."""
        assert self.context is not None
        context, recorder = self.context, self.context.recorder
        start = time.perf_counter()
        ids = self._select(state, round)
        measure = self.options.curves and not self._scheduled(round - 1)
        clients = RoundClients(context, round, ids, state, measure=measure)
        method, after, error, answered = self.spec.method, None, None, True
        try:
            try:
                after = method.round(state, clients)
            except (NoReplies, StorageError, TableError):
                raise
            except Exception as raised:
                error = raised
            if error is None:
                checked_state(method, "merge", after)
            state = sound(method, state, after, clients, error)
        except NoReplies:
            recorder.lost_round(round)
            answered = False
        clients.keep()
        recorder.costs(round, clients.tally)
        if answered:  # otherwise the state is that of the previous round, and its events would be recorded twice
            recorder.describe(round, method, state)
        last = round == self.options.rounds
        if self._scheduled(round):
            self._evaluate(state, round)
        if self.keep and (last or round % self.options.checkpoint_every == 0):
            length = recorder.history.flush(durable=True)
            self.checkpoint.save(round, state, length, recorder.history.digest)
        if last and not self._scheduled(round):  # after the checkpoint: a longer run would not have it
            self._evaluate(state, round)
        recorder.history.flush()
        self._notify(round, clients.answered, time.perf_counter() - start)
        return state

    def finish(self, state: State) -> Run:
        assert self.context is not None
        written = self.context.recorder.history
        written.flush(durable=self.keep)
        written.close()
        limit = HISTORY_IN_MEMORY if self.keep else None
        history = History.load(self.folder / "history.jsonl", limit=limit)  # read once, for the summary and for the run
        summary = summarize(history, self.config)
        if self.keep:
            self._keep_frozen()
            write_json(self.folder / "summary.json", summary, durable=True)
            checksums.write(self.folder)
            if (self.folder / "models").is_dir() and (text := personal_data(self.spec.method, self.folder)):
                self._warn(text)
        for tracker in self.trackers:
            tracker.finish(summary)
        return self._result(summary, history, state)

    def _keep_frozen(self) -> None:
        """Frozen parameters are the same for all clients: they are stored once, beside the personal models."""
        if self.spec.frozen and (self.folder / "models").is_dir():
            tensors = {name: value.contiguous().clone() for name, value in self.spec.frozen.items()}
            write_bytes(self.folder / "models" / FROZEN, save(tensors))

    def _result(self, summary: dict[str, Any], history: History, state: State) -> Run:
        folder = self.folder if self.keep else None
        kept = {} if self.keep else in_memory(self.folder / "models")  # the folder is about to be removed
        return Run(self.config, summary, history, state, folder, self.spec.method, self.make, kept)

    def _warn(self, text: str) -> None:
        for tracker in self.trackers:
            tracker.warn(text)
        if not self.trackers:
            print(f"fedkin: {text}", file=sys.stderr)

    def _engine(self) -> Engine:
        options = self.options
        limit = options.time_limit or None
        if options.engine == "ray":
            from fedkin.engine.ray import Ray

            address, kind = options.ray_address, self.devices[0].partition(":")[0]
            with interruptible():  # a cluster may take a minute to start
                return Ray(self.spec, options.workers, address=address, time_limit=limit, device=kind)
        if options.engine == "serial" or not hasattr(os, "fork"):
            return Serial(self.spec, self.devices[0])
        # one worker keeps an accelerator busy; more only help with small networks
        workers = options.workers or (len(self.devices) if self.devices != ["cpu"] else os.cpu_count()) or 1
        return Pool(self.spec, min(workers, len(self.spec.federation)), time_limit=limit, devices=self.devices)

    def _select(self, state: State, round: int) -> Tensor:
        method, present = self.spec.method, self.presence.server(round)
        ids = method.select(state, present, round)
        if absent := sorted(set(ids.tolist()) - set(present.ids.tolist())):
            raise ValueError(
                f"{type(method).__name__}.select chose clients {absent} in round {round}; they are not present: choose "
                "from fed.ids."
            )
        return ids

    def _scheduled(self, round: int) -> bool:
        """Are all clients evaluated after this round, no matter how many rounds the run has?"""
        every = self.options.evaluate_every
        return bool(round and every and round % every == 0)

    def _models(self, round: int) -> Path | None:
        """The folder for personal models, if they are saved after this round."""
        size = 4 * len(self.spec.federation) * self.fed.layout.size
        keep = self.options.save_models and round == self.options.rounds and (self.keep or size <= IN_MEMORY)
        return self.folder / "models" if keep else None

    def _evaluate(self, state: State, round: int, *, record: bool = True) -> None:
        assert self.context is not None
        ids = self.presence.server(round).ids
        evaluate_all(self.context, state, round, ids, self._models(round), record=record)

    def _notify(self, round: int, answered: int, seconds: float) -> None:
        """Notify trackers of the round, with the scores of the latest state that was measured."""
        assert self.context is not None
        recorder = self.context.recorder
        if self.keep:
            with open(self.folder / "timing.jsonl", "a") as f:
                f.write(json.dumps({"round": round, "seconds": plain(seconds), "answers": answered}) + "\n")
        before, now = recorder.means(round - 1), recorder.means(round)
        for tracker in self.trackers:
            if before:
                tracker.participants(round - 1, before)
            tracker.round(round, {"seconds": seconds, "clients": float(answered), **now})


def _check_training(training: Training, federation: Population) -> None:
    """Raise if a setting of local training can have no effect on this data."""
    if training.augment != "none" and len(federation.shape) != 3:
        raise ValueError(
            f"augment={training.augment} is for images; examples of this data have shape {list(federation.shape)}: "
            "leave it out."
        )
    if training.stop_after and federation.description.get("validation") == 0:
        raise ValueError(
            f"stop_after={training.stop_after} needs validation examples, and there are none: set validation above 0."
        )


def _hash(module: torch.nn.Module) -> str:
    """A digest of the initial model: a run must not resume with a different model of the same name."""
    digest = hashlib.blake2b(digest_size=8)
    for name, value in module.state_dict().items():
        digest.update(name.encode() + value.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _name(source: Source) -> str:
    """The name by which `load` finds the model again: a registered one, or the user's module:name."""
    if isinstance(source, str):
        path, _, name = source.rpartition(":")
        return f"{Path(path).resolve()}:{name}" if path.endswith(".py") else source
    return qualified(source) if hasattr(source, "__qualname__") else qualified(type(source))


if sys.platform == "win32":  # pragma: no cover
    raise ImportError("fedkin runs on Linux and macOS.")
