"""One round's exchanges with clients: ask them, check their replies, count the cost, record who failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from fedkin.bounds import Bound
from fedkin.engine.checkpoint import Checkpoint
from fedkin.engine.costs import Tally, message_bytes, nbytes
from fedkin.engine.errors import by_reason, reported_once
from fedkin.engine.faults import SLOW, FaultPlan
from fedkin.engine.options import Options
from fedkin.engine.recorder import Recorder
from fedkin.engine.reply_bounds import clamped, outside, with_upper_ends
from fedkin.engine.runner import ClientError, Outcome, RunSpec, Task, Work, client_seed, reach
from fedkin.engine.trackers import Tracker
from fedkin.protocol import Message, Method, Replies, Reply, Server, State, is_client_function
from fedkin.results.files import StorageError
from fedkin.results.history import PARTICIPANTS
from fedkin.results.store import equal
from fedkin.results.summary import QUARANTINED
from fedkin.robust.attacks import Attack
from fedkin.robust.defenses import Defense


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
    faults: FaultPlan = field(init=False)
    hostile: frozenset[int] = field(init=False)
    """Clients whose attacks are simulated."""
    defense: Defense | None = field(init=False)
    start_reach: float = field(init=False)

    def __post_init__(self) -> None:
        self.start_reach = reach(self.fed.initial(0), finite=True)
        self.faults = FaultPlan.read(self.options.faults, self.options.lost)
        attack = Attack.read(self.options.attack)
        self.hostile = frozenset(attack.hostile(self.fed.size, self.options.seed) if attack else ())
        self.defense = Defense.read(self.options.defend)

    def warn(self, text: str) -> None:
        for tracker in self.trackers:
            tracker.warn(text)


class RoundClients:
    """The `Clients` of one round. With `measure`, participants are scored before their work (see `Task.measure`).

    Nothing of the round is final before `keep` is called: until then it can be repeated without some clients.
    """

    def __init__(self, context: RunContext, round: int, ids: Tensor, state: State, *, measure: bool) -> None:
        if not len(ids):
            raise ValueError(f"{type(context.spec.method).__name__}.select chose nobody in round {round}.")
        self.ids = ids
        self.tally = Tally()
        self.number = round
        self._context, self._round, self._state, self._measure = context, round, state, measure
        self._recorded: set[tuple[int, int]] = set()
        self._named: set[tuple[str, int, int]] = set()
        self._start()

    def _start(self) -> None:
        self.answered = 0
        self._count = 0
        self._replies: list[Replies] = []
        self._private: dict[int, tuple[Path, str]] = {}

    def run(self, function: Callable[..., Reply], message: Message) -> Replies:
        context, round = self._context, self._round
        name = function.__name__
        if not is_client_function(context.spec.method, name):
            raise ValueError(f"{name} is not marked as a client function: put @client_function above it.")
        _check_message(message, len(self.ids))
        self._count += 1
        measure = self._measures(name, message)
        asked = self.ids.tolist()
        first = {client: position for position, client in reversed(list(enumerate(asked)))}  # one may be asked twice
        tasks = [self._task(position, client, name, measure) for client, position in first.items()]
        outcomes = {o.client: o for o in context.engine.run(tasks, message)}
        stop_at_own_faults(outcomes.values())
        self._account(outcomes, tasks, message)
        good = self._defended(self._good(outcomes, name), first, message)
        self.answered += len(good)
        positions = [position for position, client in enumerate(asked) if client in good]
        if not positions:
            explain(list(outcomes.values()))
            raise NoReplies
        ids = self.ids[positions]
        bodies = [good[client].body for client in ids.tolist()]
        body = tuple(_stacked([parts[part] for parts in bodies]) for part in range(len(bodies[0])))
        seed = client_seed(context.options.seed, round, 1 << 40) + self._count
        replies = Replies(ids, context.fed.n[ids], body, torch.tensor(positions), seed)
        self._replies.append(replies)
        return replies

    @property
    def start_reach(self) -> float:
        """The largest magnitude in the initial model."""
        return self._context.start_reach

    def reaches(self) -> dict[int, float]:
        """The largest magnitude in each client's replies of this round so far. Numbers that have a bound of their own,
        such as losses, do not count."""
        found: dict[int, float] = {}
        method, fed = self._context.spec.method, self._context.fed
        for replies in self._replies:
            for i, client in enumerate(replies.ids.tolist()):
                bounded = method.reply_bounds(fed, client)
                parts = [part[i] for index, part in enumerate(replies.body) if index not in bounded]
                found[client] = max(found.get(client, 0.0), reach(parts))
        return found

    def odd_shapes(self) -> dict[int, list[tuple[int, ...]]]:
        """Clients with a reply in which an array has another shape than most others sent, with the shapes it has.

        If shapes may differ (`ragged`), this alone does not make a reply wrong.
        """
        found: dict[int, list[tuple[int, ...]]] = {}
        for replies in self._replies:
            for part in replies.body:
                shapes = [tuple(array.shape) for array in part]
                usual, count = Counter(shapes).most_common(1)[0]
                for i, client in enumerate(replies.ids.tolist()):
                    if shapes[i] != usual and 2 * count > len(shapes):
                        found[client] = [tuple(p[i].shape) for p in replies.body]
        return found

    def start_again(self, ids: Tensor, without: Collection[int]) -> None:
        """Discard this round's work, to repeat the round with these clients, but `without` some."""
        self.ids = ids[[client not in without for client in ids.tolist()]]
        self._measure = False
        self._start()

    def drop(self, client: int, why: str) -> None:
        self._drop({client: why})

    def _drop(self, errors: Mapping[int, str], *, warn: bool = True) -> None:
        for client, why in errors.items():
            self._context.recorder.dropped(self._round, client, why)
        for line in reported_once(errors) if warn else ():
            self._context.warn(line)

    def keep(self) -> None:
        """Commit the clients' private states after this round."""
        for client, (path, digest) in self._private.items():
            self._context.checkpoint.commit(client, path, digest)

    def _task(self, position: int, client: int, name: str, measure: bool) -> Task:
        context, round, exchange = self._context, self._round, self._count
        kept = self._private.get(client)
        state = kept[0] if kept is not None else context.checkpoint.client(client)
        new_state = context.checkpoint.next(client, round, exchange)
        fault = context.faults.spoils(context.fed, round, client, exchange)
        attack = context.options.attack if client in context.hostile else ""
        return Task(round, position, client, name, state, new_state, measure, fault, attack)

    def _measures(self, name: str, message: Message) -> bool:
        """Would an evaluation after the previous round have sent this same message, to clients in the same state?"""
        method = self._context.spec.method
        if not (self._measure and name == "local" and self._count == 1):
            return False
        return type(method).round is Method.round or equal(method.send(self._state, self.ids), message)

    def _account(self, outcomes: dict[int, Outcome], tasks: list[Task], message: Message) -> None:
        context, recorder = self._context, self._context.recorder
        for task in tasks:
            outcome = outcomes[task.client]
            down, up = message_bytes(message, task.position), nbytes(outcome.body)
            slow = context.faults.hits("slow", context.fed, self._round, task.client, self._count)
            self.tally.add(task.client, down=down, up=up, flops=outcome.flops, slowdown=SLOW if slow else 1.0)
            if outcome.has_state and not outcome.error and task.new_state is not None:
                self._private[task.client] = task.new_state, outcome.digest
            recorder.participants(self._round - 1, task.client, outcome.scores)
            if outcome.unmeasured:
                recorder.unmeasured(self._round - 1, task.client, outcome.unmeasured, PARTICIPANTS)
        for task in tasks:
            recorder.notes(self._round, task.client, outcomes[task.client].notes)
            recorder.released(self._round, task.client, outcomes[task.client].released)

    def _good(self, outcomes: dict[int, Outcome], name: str) -> dict[int, Outcome]:
        """The usable outcomes; the other clients are named in the history."""
        context = self._context
        shapes = Counter(_shape(o) for o in outcomes.values() if not o.error)
        usual = shapes.most_common(1)[0][0] if shapes else None
        ragged = getattr(getattr(type(context.spec.method), name), "__ragged__", False)
        good, dropped = {}, {}
        noisy = context.spec.privacy is not None and context.spec.privacy.level == "client"
        bounds = self._bounds({client: o.body for client, o in outcomes.items() if not o.error})
        for client, outcome in sorted(outcomes.items()):
            error = f"{QUARANTINED}{outcome.error}" if outcome.kind == "bad" else outcome.error
            if not error and not ragged and _shape(outcome) != usual:
                error = f"{QUARANTINED}replied {_shape(outcome)} where the others replied {usual}"
            if not error and (noisy or client in context.hostile):
                # noise goes anywhere, and a simulated attacker knows the bounds: neither may be told by them
                outcome = outcome._replace(body=clamped(outcome.body, bounds[client]))
            elif not error and (wrong := outside(outcome.body, bounds[client])):
                error = f"{QUARANTINED}{wrong}"
            if not error and context.faults.hits("drop", context.fed, self._round, client, self._count):
                error = "lost on the way"
            if not error:
                good[client] = outcome
            elif (client, self._count) not in self._recorded:  # once, even if the round is repeated
                self._recorded.add((client, self._count))
                dropped[client] = error
        alike = all(o.error for o in outcomes.values()) and len(by_reason(dropped)) == 1
        self._drop(dropped, warn=not alike)  # if all of them fail for one reason, `explain` says it
        return good

    def _bounds(self, bodies: Mapping[int, Sequence[Tensor]]) -> dict[int, dict[int, Bound]]:
        method, fed = self._context.spec.method, self._context.fed
        return with_upper_ends(bodies, {client: method.reply_bounds(fed, client) for client in bodies})

    def _defended(self, good: dict[int, Outcome], first: dict[int, int], message: Message) -> dict[int, Outcome]:
        """The replies after the run's defense. The history names outliers and those that were left out."""
        context = self._context
        if context.defense is None:
            return good
        sent = {client: message.for_position(first[client]) for client in good}
        bodies = {client: outcome.body for client, outcome in good.items()}
        found = context.defense.apply(bodies, sent, context.spec.method.from_zero)
        for metric, texts in (("outlier", found.outliers), ("left_out", found.left_out)):
            for client, text in sorted(texts.items()):
                if (metric, client, self._count) not in self._named:  # once, even if the round is repeated
                    self._named.add((metric, client, self._count))
                    context.recorder.suspected(self._round, client, metric, text)
        return {client: good[client]._replace(body=body) for client, body in found.bodies.items()}


def stop_at_own_faults(outcomes: Iterable[Outcome]) -> None:
    """Raise if this machine could not store or read something: that is not a client's failure."""
    for outcome in outcomes:
        if outcome.kind == "storage":
            raise StorageError(
                f"{outcome.error}. The run has stopped. Free space or fix permissions, then repeat the command: "
                "it resumes from the last checkpoint."
            )


def explain(outcomes: list[Outcome]) -> None:
    """Raise if every client failed: that is a bug or a bad setting, not bad luck."""
    failed = [o for o in outcomes if o.error]
    if len(failed) == len(outcomes):
        reasons = by_reason({o.client: o.error for o in failed})
        first = f"for one reason: {next(iter(reasons))}" if len(reasons) == 1 else f"The first: {failed[0].error}"
        raise ClientError(
            f"All {len(failed)} clients failed{' ' if len(reasons) == 1 else '. '}{first.rstrip('.')}. "
            "Run with --engine serial to stop at the first error, or lower --lr if the values are not finite.",
            failed[0].trace,
        )


def _shape(outcome: Outcome) -> tuple[tuple[tuple[int, ...], str], ...]:
    return tuple((tuple(a.shape), str(a.dtype).removeprefix("torch.")) for a in outcome.body)


def _stacked(arrays: list[Tensor]) -> Tensor | list[Tensor]:
    if all(array.shape == arrays[0].shape for array in arrays):
        return torch.stack(arrays)
    return arrays


def checked_state(method: Method, hook: str, state: object) -> State:
    """The state that a server hook returned. Raise if it is not one: it may have forgotten to return it."""
    if not isinstance(state, dict):
        raise ValueError(
            f"{type(method).__name__}.{hook} must return the state, a dict of named arrays and numbers; it returned "
            f"{_kind(state)}."
        )
    return state


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _check_message(message: object, count: int) -> None:
    if not isinstance(message, Message):
        raise ValueError(f"send must return Message(shared, own); it returned {_kind(message)}.")
    for part in message.own:
        if len(part) != count:
            raise ValueError(f"send made {len(part)} entries of `own` for {count} clients: it must make one for each.")
