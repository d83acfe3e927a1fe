"""One round's exchanges with clients: ask, check what comes back, count what it cost, and write down who failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedkin.costs import Tally, message_bytes, nbytes
from fedkin.engine.checkpoint import Checkpoint
from fedkin.engine.options import Options
from fedkin.engine.work import ClientError, Job, Outcome, Task, client_seed
from fedkin.history import History
from fedkin.protocol import Message, Replies, Reply, Server, is_client_function
from fedkin.trackers import Tracker


class Engine(Protocol):
    def run(self, tasks: list[Task], message: Message) -> list[Outcome]: ...

    def close(self) -> None: ...


class NoReplies(Exception):
    """Nobody answered an exchange: the round has no effect."""


@dataclass
class Desk:
    """What a run has at hand."""

    job: Job
    options: Options
    fed: Server
    book: Checkpoint
    history: History
    engine: Engine
    trackers: Sequence[Tracker]


class Exchanges:
    """The `Clients` of one round."""

    def __init__(self, desk: Desk, round: int, ids: Tensor, *, measure: bool) -> None:
        if not len(ids):
            raise ValueError(f"{type(desk.job.method).__name__}.select chose nobody in round {round}.")
        self.ids = ids
        self.tally = Tally()
        self.answered = 0
        self._desk, self._round, self._count, self._measure = desk, round, 0, measure

    def run(self, function: Callable[..., Reply], message: Message) -> Replies:
        desk, book, round = self._desk, self._desk.book, self._round
        name = function.__name__
        if not is_client_function(desk.job.method, name):
            raise ValueError(f"{name} is not marked as a client function: put @client_function above it.")
        _check_message(message, len(self.ids))
        self._count += 1
        measure = name == "local" and self._measure
        asked = self.ids.tolist()
        first = {client: place for place, client in reversed(list(enumerate(asked)))}  # a client may be asked twice
        tasks = [
            Task(round, place, client, name, book.client(client), book.next(client, round, self._count), measure)
            for client, place in first.items()
        ]
        outcomes = {o.client: o for o in desk.engine.run(tasks, message)}
        self._account(outcomes, tasks, message)
        good = self._good(outcomes, name)
        self.answered += len(good)
        places = [place for place, client in enumerate(asked) if client in good]
        if not places:
            explain(list(outcomes.values()))
            raise NoReplies
        ids = self.ids[places]
        rows = [good[client].body for client in ids.tolist()]
        body = tuple(_stacked([row[part] for row in rows]) for part in range(len(rows[0])))
        seed = client_seed(desk.options.seed, round, 1 << 40) + self._count
        return Replies(ids, desk.fed.n[ids], body, torch.tensor(places), seed)

    def _account(self, outcomes: dict[int, Outcome], tasks: list[Task], message: Message) -> None:
        desk = self._desk
        for task in tasks:
            outcome = outcomes[task.client]
            up = nbytes(outcome.body)
            self.tally.add(task.client, down=message_bytes(message, task.position), up=up, flops=outcome.flops)
            if outcome.has_state and not outcome.error and task.new_state is not None:
                desk.book.commit(task.client, task.new_state)
            for metric, value in outcome.scores.items():
                desk.history.add(self._round, task.client, metric, value, "round")
            for note in outcome.notes:
                desk.history.add(self._round, task.client, "note", note)

    def _good(self, outcomes: dict[int, Outcome], name: str) -> dict[int, Outcome]:
        """Those that answered as they should; the others are named in the history."""
        desk = self._desk
        shapes = Counter(_shape(o) for o in outcomes.values() if not o.error)
        usual = shapes.most_common(1)[0][0] if shapes else None
        ragged = getattr(getattr(type(desk.job.method), name), "__ragged__", False)
        good = {}
        for client, outcome in sorted(outcomes.items()):
            error = outcome.error
            if not error and not ragged and _shape(outcome) != usual:
                error = f"replied {_shape(outcome)} where the others replied {usual}"
            if not error and self._gets_lost(client):
                error = "lost on the way"
            if error:
                desk.history.add(self._round, client, "dropped", error)
                for tracker in desk.trackers:
                    tracker.warn(f"client {client} dropped: {error}")
            else:
                good[client] = outcome
        return good

    def _gets_lost(self, client: int) -> bool:
        desk = self._desk
        if not desk.options.lost:
            return False
        return bool(desk.fed.rng(self._round, 0x105, client, self._count).random() < desk.options.lost)


def explain(outcomes: list[Outcome]) -> None:
    """Where every client failed by itself, it is a fault of the method or its settings, not bad luck."""
    failed = [o for o in outcomes if o.error]
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
