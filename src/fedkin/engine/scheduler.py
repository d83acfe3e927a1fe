"""The scheduler of all engines with workers: who does what, what is done again, and how long a client may take.

An engine with workers is a `Scheduler` that says how work and outcomes travel: `give`, `wait`, `take` and `replace`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from fedkin.engine.runner import Outcome, RunSpec, Work, failed
from fedkin.protocol import Message

TRIES = 3  # a client whose work kills this many workers is given up for the round
DEPTH = 2  # tasks a worker has at hand, so that it never waits for the next one


class WorkerDied(Exception):
    """A worker ended before it answered. `who` was it, and why."""

    def __init__(self, who: str, why: str) -> None:
        super().__init__(f"{who} died: {why}")
        self.who, self.why = who, why


@dataclass
class Line:
    """What one worker has to do, in order."""

    work: deque[Work] = field(default_factory=deque)
    since: float = 0.0
    """When it began the first of it."""


class Scheduler(ABC):
    def __init__(self, spec: RunSpec, time_limit: float | None) -> None:
        self.spec, self._limit = spec, time_limit
        self.lines: list[Line] = []
        """One for each worker."""

    # ---- how things travel
    @abstractmethod
    def post(self, message: Message) -> None:
        """Make a message available to the workers."""

    @abstractmethod
    def give(self, worker: int, work: Work) -> None:
        """Send work to a worker. If it is dead, `take` will say so."""

    @abstractmethod
    def wait(self, workers: Sequence[int], timeout: float | None) -> Collection[int]:
        """Those of these workers that have an answer, or have died. Empty after `timeout` seconds."""

    @abstractmethod
    def take(self, worker: int, work: Work) -> Outcome:
        """A worker's answer to the first of its work. Raises WorkerDied."""

    @abstractmethod
    def replace(self, worker: int) -> None:
        """End a worker, whatever it does, and start a new one in its place."""

    @abstractmethod
    def close(self) -> None:
        """End all workers."""

    # ---- who does what
    def run(self, work: Sequence[Work], message: Message) -> list[Outcome]:
        """All outcomes, in the order of the work, whoever did it and whenever."""
        self.post(message)
        sizes = self.spec.federation.sizes
        # the largest first, so that no worker is left alone with a long one at the end
        self._todo = deque(sorted(work, key=lambda w: (-int(sizes[w.client]), w.position)))
        self._deaths: dict[int, int] = {}
        self._outcomes: dict[int, Outcome] = {}
        while len(self._outcomes) < len(work):
            self._hand_out()
            busy = [worker for worker, line in enumerate(self.lines) if line.work]
            ready = self.wait(busy, self._patience(busy))
            for worker in busy:
                if worker in ready:
                    self._collect(worker)
                elif self._limit and time.monotonic() - self.lines[worker].since > self._limit:
                    self._time_out(worker)
        return [self._outcomes[w.position] for w in work]

    def _hand_out(self) -> None:
        for worker, line in enumerate(self.lines):
            while self._todo and len(line.work) < DEPTH:
                if not line.work:
                    line.since = time.monotonic()
                line.work.append(self._todo.popleft())
                self.give(worker, line.work[-1])

    def _collect(self, worker: int) -> None:
        line = self.lines[worker]
        try:
            outcome = self.take(worker, line.work[0])
        except WorkerDied as death:
            self._do_again(worker, death)
            return
        line.work.popleft()
        line.since = time.monotonic()
        self._outcomes[outcome.position] = outcome

    def _time_out(self, worker: int) -> None:
        work = self.lines[worker].work.popleft()
        self._outcomes[work.position] = failed(work, f"did not answer within {self._limit:g} s")
        self._do_again(worker, None)

    def _do_again(self, worker: int, death: WorkerDied | None) -> None:
        """Put back what a worker had to do, and replace it. The work that it died of is given up after some tries."""
        again = self.lines[worker].work
        self.lines[worker] = Line()
        if death is not None:
            first = again[0]
            self._deaths[first.position] = self._deaths.get(first.position, 0) + 1
            if self._deaths[first.position] >= TRIES:
                self._outcomes[first.position] = failed(first, f"{death.who} died {TRIES} times ({death.why})")
                again.popleft()
        self._todo.extendleft(reversed(again))
        self.replace(worker)

    def _patience(self, busy: Sequence[int]) -> float | None:
        """Seconds until the first of these workers has had its time."""
        if not self._limit:
            return None
        now = time.monotonic()
        return max(0.01, min(self._limit - (now - self.lines[worker].since) for worker in busy))
