"""`run`: one federated run, from a method and a federation to a history, a summary and models on disk."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from fedkin.costs import Device, Tally, message_bytes, nbytes
from fedkin.engine.checkpoint import Checkpoint, environment, fingerprint
from fedkin.engine.pool import Pool
from fedkin.engine.serial import Serial
from fedkin.engine.work import ClientError, Job, Outcome, Task, client_seed
from fedkin.federation import Federation
from fedkin.history import History
from fedkin.maths.cluster import rand_index
from fedkin.models.build import Source, maker, resolve
from fedkin.models.network import Network
from fedkin.protocol import Message, Method, Replies, Reply, Server, State, Training, is_client_function
from fedkin.store import write_json
from fedkin.summary import summarise
from fedkin.trackers import Tracker

MIXING_LIMIT = 400  # beyond so many clients the matrix of who learns from whom is not written down


@dataclass(frozen=True)
class Options:
    """How a run is carried out."""

    rounds: int = 20
    """Rounds of communication."""
    participation: float = 1.0
    """Share of the clients that take part in a round."""
    seed: int = 0
    """Seed of everything random: the same seed gives the same bits."""
    evaluate_every: int = 10
    """Measure all clients every so many rounds (0: only after the last); other rounds measure the participants."""
    engine: Literal["pool", "serial"] = "pool"
    """pool: worker processes. serial: one client after the other in this process, for debugging."""
    workers: int = 0
    """Worker processes; 0: one for each core. The results do not depend on it."""
    time_limit: float = 0.0
    """Seconds after which a client's answer is no longer waited for; 0: no limit."""
    lost: float = 0.0
    """Share of the replies that get lost on the way, at random."""
    link_rate: float = 2e6
    """Bits a second of a simulated client's link."""
    device_rate: float = 1e10
    """FLOPs a second of a simulated client."""
    spread: float = 0.0
    """How unlike the simulated clients' links and processors are (std of the logarithm)."""
    arrive: dict[int, int] = field(default_factory=dict)
    """Client and the first round in which it is there; the others are there from the start."""
    leave: dict[int, int] = field(default_factory=dict)
    """Client and the first round in which it is gone for ever."""
    checkpoint_every: int = 5
    """Rounds between checkpoints."""
    save_models: bool = True
    """Keep each client's final personal model."""

    def __post_init__(self) -> None:
        wrong = [
            f"{name}={value} must {rule}"
            for name, value, good, rule in (
                ("rounds", self.rounds, self.rounds >= 1, "be at least 1"),
                ("participation", self.participation, 0 < self.participation <= 1, "lie in (0, 1]"),
                ("lost", self.lost, 0 <= self.lost < 1, "lie in [0, 1)"),
                ("workers", self.workers, self.workers >= 0, "be at least 0"),
                ("evaluate_every", self.evaluate_every, self.evaluate_every >= 0, "be at least 0"),
                ("checkpoint_every", self.checkpoint_every, self.checkpoint_every >= 1, "be at least 1"),
                ("link_rate", self.link_rate, self.link_rate > 0, "be above 0"),
                ("device_rate", self.device_rate, self.device_rate > 0, "be above 0"),
                ("seed", self.seed, self.seed >= 0, "be at least 0"),
                ("engine", self.engine, self.engine in ("pool", "serial"), "be pool or serial"),
            )
            if not good
        ]
        if wrong:
            raise ValueError("; ".join(wrong) + ".")


# What may differ between a stopped run and the one that goes on with it: no number depends on these.
_FREE = {"engine", "workers", "rounds", "checkpoint_every", "save_models"}


@dataclass(frozen=True)
class Result:
    summary: dict[str, Any]
    history: History
    state: State
    out: Path | None


class Engine(Protocol):
    def run(self, tasks: list[Task], message: Message) -> list[Outcome]: ...

    def close(self) -> None: ...


class NoReplies(Exception):
    """Nobody answered an exchange: the round has no effect."""


def run(
    method: Method | str,
    federation: Federation,
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
    **settings: Any,
) -> Result:
    """Run a method on a federation.

    `settings` are fields of `Options` (rounds, participation, seed, …) and of `Training` (lr, epochs, batch_size, …).
    With `out`, a run that was stopped goes on where it was; `fresh` starts over.
    """
    if isinstance(method, str):
        from fedkin.methods import method as by_name

        label = label or method
        method = by_name(method)
    options, training = _settings(options or Options(), training or Training(), settings)
    source = resolve(model, federation.description.get("data", "own"))
    make = maker(source, federation.shape, federation.classes, options.seed, model_options or {})
    job = Job(method, federation, lambda: make(0), head, training, options.seed)
    config = {
        "label": label or type(method).__name__,
        "method": {"class": type(method).__name__, **(asdict(method) if is_dataclass(method) else {})},
        "sees_test": method.sees_test,
        "federation": federation.description,
        "fingerprint": fingerprint(federation),
        "model": {"name": source if isinstance(source, str) else type(source).__name__, **(model_options or {})},
        "training": asdict(training),
        "options": asdict(options),
        "environment": environment(),
    }
    with tempfile.TemporaryDirectory(prefix="fedkin-") as scratch:
        place = Path(out) if out is not None else Path(scratch)
        if fresh and out is not None:
            _clear(place)
        book = Checkpoint.open(place, config, _FREE)
        loop = _Loop(job, options, config, book, make, trackers, keep=out is not None)
        try:
            return loop.run(Path(out) if out is not None else None)
        finally:
            loop.close()


class _Loop:
    def __init__(
        self,
        job: Job,
        options: Options,
        config: dict[str, Any],
        book: Checkpoint,
        make: Callable[[int], torch.nn.Module],
        trackers: Sequence[Tracker],
        *,
        keep: bool,
    ) -> None:
        self.job, self.options, self.config, self.book = job, options, config, book
        self.trackers, self.keep = trackers, keep
        federation = job.federation
        net = Network(job.make(), federation.example, job.head)
        self.layout = net.layout
        self.fed = Server(
            ids=torch.arange(len(federation)),
            n=federation.sizes,
            classes=federation.classes,
            seed=options.seed,
            participation=options.participation,
            training=job.training,
            layout=net.layout,
            initial=lambda k: _row(make(k), net),
        )
        self.device = Device(options.link_rate, options.device_rate, options.spread, options.seed)
        self.history = History()
        self.engine: Engine | None = None
        self.answered = 0
        self._mark = 0

    def close(self) -> None:
        if self.engine is not None:
            self.engine.close()
        self.history.close()

    def run(self, out: Path | None) -> Result:
        method, options, book = self.job.method, self.options, self.book
        state, done, kept = book.load()
        self._check_presence()
        if state is not None and book.finished(options.rounds):
            self.history = History.load(book.folder)
            summary = json.loads((book.folder / "summary.json").read_text())
            return Result(summary, self.history, state, out)
        self.history = History(book.folder / "history.jsonl", keep=kept)
        if state is None:
            state = method.init(self._present(1))
            self._write_partition()
        book.start(self.config)
        self.engine = self._engine()
        for tracker in self.trackers:
            tracker.start(self.config, done)
        for round in range(done + 1, options.rounds + 1):
            begin = time.perf_counter()
            self._mark = len(self.history.rows)
            state = self._round(state, round)
            last = round == options.rounds
            if self._scheduled(round):
                self._sweep(state, round, models=last)
            if last or round % options.checkpoint_every == 0:
                book.save(round, state, self.history.flush())
            if last and not self._scheduled(round):  # after the checkpoint: a longer run would not have it
                self._sweep(state, round, models=True)
            self.history.flush()
            self._tell(round, time.perf_counter() - begin)
        if done == options.rounds and not self._scheduled(done):
            self._sweep(state, done, models=True)  # it was stopped between its last checkpoint and its end
            self.history.flush()
        summary = summarise(self.history, self.config)
        if self.keep:
            write_json(book.folder / "summary.json", summary)
        for tracker in self.trackers:
            tracker.finish(summary)
        return Result(summary, self.history, state, out)

    def _engine(self) -> Engine:
        options = self.options
        if options.engine == "serial" or not hasattr(os, "fork"):
            return Serial(self.job)
        workers = options.workers or os.cpu_count() or 1
        return Pool(self.job, min(workers, len(self.job.federation)), time_limit=options.time_limit or None)

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
        for round in range(1, self.options.rounds + 1):
            if not len(self._present(round).ids):
                raise ValueError(f"Nobody is there in round {round}: change arrive={self.options.arrive} or leave.")

    def _scheduled(self, round: int) -> bool:
        """Are all clients measured after this round, however many rounds there are?"""
        every = self.options.evaluate_every
        return bool(every and round % every == 0)

    def _round(self, state: State, round: int) -> State:
        method = self.job.method
        clients = _Exchanges(self, round, method.select(state, self._present(round), round))
        try:
            state = method.round(state, clients)
        except NoReplies:
            self.history.add(round, None, "lost_round", True)
        tally = clients.tally
        for client in sorted(tally.down):
            self.history.add(round, client, "bytes_down", tally.down[client])
            self.history.add(round, client, "bytes_up", tally.up[client])
            self.history.add(round, client, "flops", tally.flops[client])
        compute, communication = tally.seconds(self.device)
        self.history.add(round, None, "compute_seconds", compute)
        self.history.add(round, None, "communication_seconds", communication)
        for metric, value in method.describe(state).items():
            self.history.add(round, None, metric, _plain(value))
            if metric == "clusters" and self.job.federation.groups is not None:
                truth = self.job.federation.groups.tolist()
                pairs = [(t, c) for t, c in zip(truth, _plain(value)) if c is not None and c >= 0]
                if len(pairs) > 1:
                    self.history.add(round, None, "rand_index", rand_index(*zip(*pairs)))
        if len(self.job.federation) <= MIXING_LIMIT and (mixing := method.mixing(state)) is not None:
            self.history.add(round, None, "mixing", _plain(mixing))
        return state

    def _sweep(self, state: State, round: int, *, models: bool) -> None:
        """Measure every client with what the server would send it now; nothing of it has an effect on the run."""
        ids = self._present(round).ids
        folder = self.book.folder / "models" if models and self.keep and self.options.save_models else None
        tasks = [
            Task(round + 1, place, client, "", self.book.client(client), None, True, folder)
            for place, client in enumerate(ids.tolist())
        ]
        assert self.engine is not None
        files = {}
        for outcome in self.engine.run(tasks, self.job.method.send(state, ids)):
            if outcome.error:
                self.history.add(round, outcome.client, "unmeasured", outcome.error, "all")
            for metric, value in outcome.scores.items():
                self.history.add(round, outcome.client, metric, value, "all")
            if outcome.model:
                files[self.job.federation.names[outcome.client]] = outcome.model
        if folder is not None and files:
            write_json(folder / "index.json", files)
            for path in folder.glob("*.safetensors"):
                if path.name not in files.values():
                    path.unlink()

    def _write_partition(self) -> None:
        federation = self.job.federation
        self.history.add(0, None, "mean_kld", federation.mean_kld)
        if federation.partition.edges is not None:
            self.history.add(0, None, "true_edges", federation.partition.edges.tolist())
        for client, split in enumerate(federation.splits):
            self.history.add(0, client, "train_rows", len(split.train))
            self.history.add(0, client, "validation_rows", len(split.validation))
            self.history.add(0, client, "test_rows", len(split.test))
            self.history.add(0, client, "labels", federation.counts[client].tolist())
            if federation.groups is not None:
                self.history.add(0, client, "group", int(federation.groups[client]))
            if federation.names[client] != f"client {client}":
                self.history.add(0, client, "name", federation.names[client])

    def _tell(self, round: int, seconds: float) -> None:
        scope = "all" if self._scheduled(round) or round == self.options.rounds else "round"
        metrics: dict[str, float] = {"seconds": seconds, "clients": float(self.answered)}
        news = self.history.rows[self._mark :]  # not the whole history: a round must not cost more the later it is
        for metric in ("personal", "received", "personal_loss"):
            if values := [row.value for row in news if row.metric == metric and row.scope == scope]:
                metrics[metric] = sum(values) / len(values)
        if self.keep:
            with open(self.book.folder / "timing.jsonl", "a") as f:
                f.write(json.dumps({"round": round, "seconds": round_to(seconds), "answers": self.answered}) + "\n")
        for tracker in self.trackers:
            tracker.round(round, metrics)


class _Exchanges:
    """The `Clients` of one round."""

    def __init__(self, loop: _Loop, round: int, ids: Tensor) -> None:
        if not len(ids):
            raise ValueError(f"{type(loop.job.method).__name__}.select chose nobody in round {round}.")
        self.ids = ids
        self.tally = Tally()
        self._loop, self._round, self._count = loop, round, 0
        loop.answered = 0

    def run(self, function: Callable[..., Reply], message: Message) -> Replies:
        loop, book, round = self._loop, self._loop.book, self._round
        name = function.__name__
        if not is_client_function(loop.job.method, name):
            raise ValueError(f"{name} is not marked as a client function: put @client_function above it.")
        _check_message(message, len(self.ids))
        self._count += 1
        measure = name == "local" and not loop._scheduled(round)
        asked = self.ids.tolist()
        first = {client: place for place, client in reversed(list(enumerate(asked)))}  # a client may be asked twice
        tasks = [
            Task(round, place, client, name, book.client(client), book.next(client, round, self._count), measure)
            for client, place in first.items()
        ]
        assert loop.engine is not None
        outcomes = {o.client: o for o in loop.engine.run(tasks, message)}
        self._account(outcomes, tasks, message)
        good = self._good(outcomes, name)
        loop.answered += len(good)
        places = [place for place, client in enumerate(asked) if client in good]
        if not places:
            self._explain(outcomes)
            raise NoReplies
        ids = self.ids[places]
        rows = [good[client].body for client in ids.tolist()]
        body = tuple(_stacked([row[part] for row in rows]) for part in range(len(rows[0])))
        seed = client_seed(loop.options.seed, round, 1 << 40) + self._count
        return Replies(ids, loop.fed.n[ids], body, torch.tensor(places), seed)

    def _account(self, outcomes: dict[int, Outcome], tasks: list[Task], message: Message) -> None:
        loop = self._loop
        for task in tasks:
            outcome = outcomes[task.client]
            up = nbytes(outcome.body)
            self.tally.add(task.client, down=message_bytes(message, task.position), up=up, flops=outcome.flops)
            if outcome.has_state and not outcome.error and task.new_state is not None:
                loop.book.commit(task.client, task.new_state)
            for metric, value in outcome.scores.items():
                loop.history.add(self._round, task.client, metric, value, "round")

    def _good(self, outcomes: dict[int, Outcome], name: str) -> dict[int, Outcome]:
        """Those that answered as they should; the others are named in the history."""
        loop = self._loop
        shapes = Counter(_shape(o) for o in outcomes.values() if not o.error)
        usual = shapes.most_common(1)[0][0] if shapes else None
        ragged = getattr(getattr(type(loop.job.method), name), "__ragged__", False)
        good = {}
        for client, outcome in sorted(outcomes.items()):
            error = outcome.error
            if not error and not ragged and _shape(outcome) != usual:
                error = f"replied {_shape(outcome)} where the others replied {usual}"
            if not error and self._gets_lost(client):
                error = "lost on the way"
            if error:
                loop.history.add(self._round, client, "dropped", error)
                for tracker in loop.trackers:
                    tracker.warn(f"client {client} dropped: {error}")
            else:
                good[client] = outcome
        return good

    def _gets_lost(self, client: int) -> bool:
        loop = self._loop
        if not loop.options.lost:
            return False
        return bool(loop.fed.rng(self._round, 0x105, client, self._count).random() < loop.options.lost)

    def _explain(self, outcomes: dict[int, Outcome]) -> None:
        """A round in which every client failed by itself is a fault of the method or its settings, not bad luck."""
        failed = [o for o in outcomes.values() if o.error]
        if len(failed) == len(outcomes):
            raise ClientError(
                f"All {len(failed)} clients failed. The first: {failed[0].error}\n\n{failed[0].trace}"
                "Run with --engine serial to stop at the first error, or lower --lr if the values are not finite."
            )


def _shape(outcome: Outcome) -> tuple[tuple[tuple[int, ...], str], ...]:
    return tuple((tuple(a.shape), str(a.dtype).removeprefix("torch.")) for a in outcome.body)


def _stacked(rows: list[Tensor]) -> Tensor | list[Tensor]:
    if all(row.shape == rows[0].shape for row in rows):
        return torch.stack(rows)
    return rows


def _check_message(message: Message, count: int) -> None:
    for part in message.own:
        if len(part) != count:
            raise ValueError(f"send made {len(part)} rows of `own` for {count} clients: one for each is needed.")


def _settings(options: Options, training: Training, settings: dict[str, Any]) -> tuple[Options, Training]:
    known = {f.name for f in fields(Options)}, {f.name for f in fields(Training)}
    unknown = [name for name in settings if name not in known[0] | known[1]]
    if unknown:
        raise ValueError(
            f"run() knows no setting {', '.join(unknown)}; it knows {', '.join(sorted(known[0] | known[1]))}."
        )
    options = replace(options, **{k: v for k, v in settings.items() if k in known[0]})
    training = replace(training, **{k: v for k, v in settings.items() if k in known[1]})
    if training.lr <= 0 or training.epochs < 1 or training.batch_size < 1 or not 0 <= training.momentum < 1:
        raise ValueError(f"{training}: lr must be above 0, epochs and batch_size at least 1, momentum in [0, 1).")
    return options, training


def _row(module: torch.nn.Module, like: Network) -> Tensor:
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    return like.layout.flatten({k: v.detach() for k, v in tensors.items()})


def _plain(value: Any) -> Any:
    """For JSON: plain numbers and lists, of six digits."""
    if isinstance(value, Tensor):
        value = value.detach().numpy()
    if isinstance(value, np.ndarray):
        if not np.issubdtype(value.dtype, np.floating):
            return value.tolist()
        with np.errstate(all="ignore"):
            digits = 10.0 ** (5 - np.floor(np.log10(np.abs(value.astype(float)))))
            rounded = np.round(value * digits) / digits
        return np.where(np.isfinite(rounded), rounded, np.where(value == 0, 0.0, value)).tolist()
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value


def round_to(seconds: float) -> float:
    return float(f"{seconds:.4g}")


def _clear(place: Path) -> None:
    """Remove what a run has written there, and nothing else."""
    for name in ("config.json", "history.jsonl", "summary.json", "timing.jsonl", "report.html"):
        (place / name).unlink(missing_ok=True)
    for name in ("models", "checkpoint"):
        shutil.rmtree(place / name, ignore_errors=True)


if sys.platform == "win32":  # pragma: no cover
    raise ImportError("fedkin runs on Linux and macOS.")
