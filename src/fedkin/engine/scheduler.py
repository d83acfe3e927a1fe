"""The scheduler of all engines with workers: which worker does what, retries, and time limits.

An engine with workers is a `Scheduler` that implements how work and outcomes travel: `give`, `wait`, `take`, `replace`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from fedkin.engine import signals
from fedkin.engine.runner import Outcome, RunSpec, Work, failed
from fedkin.maths.threads import one_thread
from fedkin.protocol import Message

TRIES = 3  # a client whose work kills this many workers is dropped from the round
# Pieces of work queued at a worker: two, so that it never waits for the next one. Handing over a short piece takes as
# long as doing it, so short ones are handed over together: twice as many as take AT_ONCE seconds.
DEPTH, DEEPEST, AT_ONCE = 2, 32, 0.004

# How long a client may take if the user sets no limit: a multiple of the longest answer so far.
MULTIPLE, AT_LEAST, NOTHING_KNOWN = 20.0, 60.0, 3600.0
LOOK_EVERY = 5.0  # maximum number of seconds between two looks at the clock


class WorkerDied(Exception):
    """A worker ended before it answered. `who` is the worker, `why` the reason."""

    def __init__(self, who: str, why: str) -> None:
        super().__init__(f"{who} died: {why}")
        self.who, self.why = who, why


@dataclass
class Line:
    """The queue of one worker."""

    work: deque[Work] = field(default_factory=deque)
    since: float = 0.0
    """When it began the first piece, by the scheduler's clock."""


class Scheduler(ABC):
    def __init__(self, spec: RunSpec, time_limit: float | None) -> None:
        self.spec, self._limit = spec, time_limit
        self._longest: dict[str, float] = {}  # by hook: training says nothing about how long an evaluation takes
        self._usual = AT_ONCE  # seconds that a piece of work takes by itself: a moving average
        self._clock = Clock()
        self.lines: list[Line] = []
        """One for each worker."""
        self.retired: set[int] = set()
        """Workers that ended and cannot be replaced, because there is no room."""

    # ---- how things travel
    @abstractmethod
    def post(self, message: Message) -> None:
        """Make a message available to the workers."""

    @abstractmethod
    def give(self, worker: int, work: Work) -> None:
        """Send work to a worker. If it is dead, `take` will say so."""

    @abstractmethod
    def wait(self, workers: Sequence[int], timeout: float) -> Collection[int]:
        """The workers among these that have an answer, or have died. Empty after `timeout` seconds."""

    @abstractmethod
    def take(self, worker: int, work: Work) -> Outcome:
        """A worker's answer to the first piece of its work. Raises WorkerDied."""

    def finished(self, worker: int) -> int:
        """How many pieces of its work a worker has done, but not answered yet."""
        return 0

    @abstractmethod
    def replace(self, worker: int) -> None:
        """Kill a worker and start a new one instead; or retire it, if others are left."""

    @abstractmethod
    def close(self) -> None:
        """End all workers."""

    # ---- who does what
    def run(self, work: Sequence[Work], message: Message) -> list[Outcome]:
        """All outcomes, in the order of the work, no matter which worker did it when."""
        self.post(message)
        self._clock.tick()
        sizes = self.spec.federation.sizes
        # the largest first, so that no worker is left alone with a long one at the end
        self._todo = deque(sorted(work, key=lambda w: (-int(sizes[w.client]), w.position)))
        self._deaths: dict[int, int] = {}
        self._outcomes: dict[int, Outcome] = {}
        with one_thread():  # copying replies with several threads would take the cores from the workers
            while len(self._outcomes) < len(work):
                self._step()
        return [self._outcomes[w.position] for w in work]

    def _step(self) -> None:
        """Keep every worker busy, and collect the next answers."""
        signals.check()
        self._hand_out()
        busy = [worker for worker, line in enumerate(self.lines) if line.work]
        ready = self.wait(busy, self._patience(busy))
        self._clock.tick()
        for worker in busy:
            if worker in ready:
                self._collect(worker)
            elif self._late(worker) and not self.wait([worker], 0.0):
                self._time_out(worker)

    def _late(self, worker: int) -> bool:
        line = self.lines[worker]
        return self._clock.now - line.since > self.allowed(line.work[0])

    def _hand_out(self) -> None:
        depth = max(DEPTH, min(DEEPEST, int(2 * AT_ONCE / self._usual)))
        for worker, line in enumerate(self.lines):
            while worker not in self.retired and self._todo and len(line.work) < depth:
                if not line.work:
                    line.since = self._clock.now
                line.work.append(self._todo.popleft())
                self.give(worker, line.work[-1])

    def _collect(self, worker: int) -> None:
        line = self.lines[worker]
        try:
            outcome = self.take(worker, line.work[0])
        except WorkerDied as death:
            self._do_again(worker, death)
            return
        hook = line.work.popleft().hook
        self._longest[hook] = max(self._longest.get(hook, 0.0), self._clock.now - line.since)
        line.since = self._clock.now
        self._usual += 0.1 * (max(outcome.seconds, 1e-6) - self._usual)
        self._outcomes[outcome.position] = outcome

    def _current(self, worker: int) -> Work:
        """What a worker is doing."""
        work = self.lines[worker].work
        return work[min(self.finished(worker), len(work) - 1)]

    def _time_out(self, worker: int) -> None:
        work = self._current(worker)
        self.lines[worker].work.remove(work)
        why = f"did not answer within {self.allowed(work):g} s"
        if not self._limit:
            why += f", {MULTIPLE:g} times the longest answer so far" if work.hook in self._longest else ""
            why += " (set --time-limit to wait longer)"
        self._outcomes[work.position] = failed(work, why)
        self._do_again(worker, None)

    def _do_again(self, worker: int, death: WorkerDied | None) -> None:
        """Requeue what a worker had to do, and replace it. Work that killed several workers is given up."""
        again = self.lines[worker].work
        if death is not None:
            deadly = self._current(worker)
            self._deaths[deadly.position] = self._deaths.get(deadly.position, 0) + 1
            if self._deaths[deadly.position] >= TRIES:
                self._outcomes[deadly.position] = failed(deadly, f"{death.who} died {TRIES} times ({death.why})")
                again.remove(deadly)
        self.lines[worker] = Line()
        self._todo.extendleft(reversed(again))
        self.replace(worker)

    def allowed(self, work: Work) -> float:
        """Seconds that a client may take."""
        if self._limit:
            return self._limit
        longest = self._longest.get(work.hook)
        return NOTHING_KNOWN if longest is None else max(AT_LEAST, MULTIPLE * longest)

    def _patience(self, busy: Sequence[int]) -> float:
        """Seconds to wait before the next look at the clock."""
        lines = [self.lines[worker] for worker in busy]
        left = min(self.allowed(line.work[0]) - (self._clock.now - line.since) for line in lines)
        return max(0.01, min(LOOK_EVERY, left))


class Clock:
    """Seconds that this process ran. Time during which it is suspended, or the machine sleeps, does not count."""

    def __init__(self) -> None:
        self.now = 0.0
        self._last = time.monotonic()

    def tick(self) -> None:
        now = time.monotonic()
        self.now += min(now - self._last, 2 * LOOK_EVERY)
        self._last = now
