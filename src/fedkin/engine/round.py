"""One round's exchanges with clients: ask them, check their replies, count the cost, record who failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedkin.engine.checkpoint import Checkpoint
from fedkin.engine.costs import Tally, message_bytes, nbytes
from fedkin.engine.options import Options
from fedkin.engine.recorder import Recorder
from fedkin.engine.runner import ClientError, Outcome, RunSpec, Task, Work, client_seed
from fedkin.engine.trackers import Tracker
from fedkin.protocol import Message, Method, Replies, Reply, Server, State, is_client_function
from fedkin.results.store import equal


class Engine(Protocol):
    """Runs work at clients: in this process, in a pool of processes, on a Ray cluster, or at remote sites."""

    def run(self, work: Sequence[Work], message: Message) -> list[Outcome]:
        """The outcome of every piece of work, in the order given."""

    def close(self) -> None: ...


class NoReplies(Exception):
    """Nobody answered an exchange: the round has no effect."""


@dataclass
class RunContext:
    """Per-run context shared by all rounds."""

    spec: RunSpec
    options: Options
    fed: Server
    checkpoint: Checkpoint
    recorder: Recorder
    engine: Engine
    trackers: Sequence[Tracker]

    def warn(self, text: str) -> None:
        for tracker in self.trackers:
            tracker.warn(text)


class RoundClients:
    """The `Clients` of one round. With `measure`, participants are scored before their work (see `Task.measure`)."""

    def __init__(self, context: RunContext, round: int, ids: Tensor, state: State, *, measure: bool) -> None:
        if not len(ids):
            raise ValueError(f"{type(context.spec.method).__name__}.select chose nobody in round {round}.")
        self.ids = ids
        self.tally = Tally()
        self.answered = 0
        self._context, self._round, self._state = context, round, state
        self._count, self._measure = 0, measure

    def run(self, function: Callable[..., Reply], message: Message) -> Replies:
        context, checkpoint, round = self._context, self._context.checkpoint, self._round
        name = function.__name__
        if not is_client_function(context.spec.method, name):
            raise ValueError(f"{name} is not marked as a client function: put @client_function above it.")
        _check_message(message, len(self.ids))
        self._count += 1
        measure = self._measures(name, message)
        asked = self.ids.tolist()
        first = {client: position for position, client in reversed(list(enumerate(asked)))}  # one may be asked twice
        tasks = [
            Task(
                round,
                position,
                client,
                name,
                checkpoint.client(client),
                checkpoint.next(client, round, self._count),
                measure,
            )
            for client, position in first.items()
        ]
        outcomes = {o.client: o for o in context.engine.run(tasks, message)}
        self._account(outcomes, tasks, message)
        good = self._good(outcomes, name)
        self.answered += len(good)
        positions = [position for position, client in enumerate(asked) if client in good]
        if not positions:
            explain(list(outcomes.values()))
            raise NoReplies
        ids = self.ids[positions]
        bodies = [good[client].body for client in ids.tolist()]
        body = tuple(_stacked([parts[part] for parts in bodies]) for part in range(len(bodies[0])))
        seed = client_seed(context.options.seed, round, 1 << 40) + self._count
        return Replies(ids, context.fed.n[ids], body, torch.tensor(positions), seed)

    def _measures(self, name: str, message: Message) -> bool:
        """Would an evaluation after the round before have sent this very message, to clients in the same state?"""
        method = self._context.spec.method
        if not (self._measure and name == "local" and self._count == 1):
            return False
        return type(method).round is Method.round or equal(method.send(self._state, self.ids), message)

    def _account(self, outcomes: dict[int, Outcome], tasks: list[Task], message: Message) -> None:
        context, recorder = self._context, self._context.recorder
        for task in tasks:
            outcome = outcomes[task.client]
            up = nbytes(outcome.body)
            self.tally.add(task.client, down=message_bytes(message, task.position), up=up, flops=outcome.flops)
            if outcome.has_state and not outcome.error and task.new_state is not None:
                context.checkpoint.commit(task.client, task.new_state)
            recorder.participants(self._round - 1, task.client, outcome.scores)
        for task in tasks:
            recorder.notes(self._round, task.client, outcomes[task.client].notes)

    def _good(self, outcomes: dict[int, Outcome], name: str) -> dict[int, Outcome]:
        """Those that answered as they should; the others are named in the history."""
        context = self._context
        shapes = Counter(_shape(o) for o in outcomes.values() if not o.error)
        usual = shapes.most_common(1)[0][0] if shapes else None
        ragged = getattr(getattr(type(context.spec.method), name), "__ragged__", False)
        good = {}
        for client, outcome in sorted(outcomes.items()):
            error = outcome.error
            if not error and not ragged and _shape(outcome) != usual:
                error = f"replied {_shape(outcome)} where the others replied {usual}"
            if not error and self._gets_lost(client):
                error = "lost on the way"
            if error:
                context.recorder.dropped(self._round, client, error)
                context.warn(f"client {client} dropped: {error}")
            else:
                good[client] = outcome
        return good

    def _gets_lost(self, client: int) -> bool:
        context = self._context
        if not context.options.lost:
            return False
        return bool(context.fed.rng(self._round, 0x105, client, self._count).random() < context.options.lost)


def explain(outcomes: list[Outcome]) -> None:
    """Raise if every client failed: that is a bug or a bad setting, not bad luck."""
    failed = [o for o in outcomes if o.error]
    if len(failed) == len(outcomes):
        raise ClientError(
            f"All {len(failed)} clients failed. The first: {failed[0].error}\n\n{failed[0].trace}"
            "Run with --engine serial to stop at the first error, or lower --lr if the values are not finite."
        )


def _shape(outcome: Outcome) -> tuple[tuple[tuple[int, ...], str], ...]:
    return tuple((tuple(a.shape), str(a.dtype).removeprefix("torch.")) for a in outcome.body)


def _stacked(arrays: list[Tensor]) -> Tensor | list[Tensor]:
    if all(array.shape == arrays[0].shape for array in arrays):
        return torch.stack(arrays)
    return arrays


def _check_message(message: Message, count: int) -> None:
    for part in message.own:
        if len(part) != count:
            raise ValueError(f"send made {len(part)} entries of `own` for {count} clients: one for each is needed.")
