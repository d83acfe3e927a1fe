"""Worker processes with one thread each: the fastest way to train many small networks on a CPU.

Workers are forked, so that data and user code are there without being copied or pickled. Arrays go through shared
memory (`Arena`), small things through pipes. A worker that dies is replaced and its clients' work is done again.
"""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import signal
import time
from collections import deque
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedkin.engine.runner import ClientRunner, Outcome, RunSpec, Task, failed, memory_of
from fedkin.protocol import Message

TRIES = 3  # a client whose work kills this many workers is given up for the round
DEPTH = 2  # tasks a worker has at hand, so that it never waits for the next one


class Slot(NamedTuple):
    """An array in an arena."""

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype


class Arena:
    """A stretch of memory that forked processes share. It costs what is written to it, not its size."""

    def __init__(self) -> None:
        size = 1 << 38
        while True:
            try:
                flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
                self._memory = mmap.mmap(-1, size, flags=flags)
                break
            except OSError:  # a limit on address space: take less
                size //= 2
                if size < 1 << 24:
                    raise
        self._size, self._at = size, 0

    def reset(self) -> None:
        self._at = 0

    def put(self, array: Tensor) -> Slot:
        place = Slot(self._at, tuple(array.shape), array.dtype)
        length = array.numel() * array.element_size()
        if self._at + length > self._size:
            raise MemoryError(f"An exchange needs more than the {self._size >> 20} MiB of shared memory there is.")
        if length:
            self.get(place).copy_(array)
        self._at += (length + 63) // 64 * 64
        return place

    def get(self, place: Slot) -> Tensor:
        count = 1
        for side in place.shape:
            count *= side
        if not count:
            return torch.empty(place.shape, dtype=place.dtype)
        return torch.frombuffer(self._memory, dtype=place.dtype, count=count, offset=place.offset).view(place.shape)


class Header(NamedTuple):
    """Where the message of an exchange lies."""

    number: int
    shared: tuple[Slot, ...]
    own: tuple[Slot | list[Slot], ...]


@dataclass
class Worker:
    process: Any
    pipe: Connection
    up: Arena
    header: int = -1
    tasks: deque[Task] = field(default_factory=deque)
    since: float = 0.0
    """When it began its first task."""


class Pool:
    def __init__(self, spec: RunSpec, workers: int, *, time_limit: float | None = None) -> None:
        self._spec, self._limit = spec, time_limit
        self._context = multiprocessing.get_context("fork")
        self._down = Arena()
        self._number = 0
        self._workers: list[Worker] = []
        for _ in range(workers):
            self._workers.append(self._start(Arena()))

    def run(self, tasks: list[Task], message: Message) -> list[Outcome]:
        """All tasks' outcomes, in the order of the tasks, whoever did them and whenever."""
        header = self._post(message)
        sizes = self._spec.federation.sizes
        # the largest first, so that no worker is left alone with a long one at the end
        todo = deque(sorted(tasks, key=lambda t: (-int(sizes[t.client]), t.position)))
        tries: dict[int, int] = {}
        outcomes: dict[int, Outcome] = {}
        while len(outcomes) < len(tasks):
            for worker in self._workers:
                while todo and len(worker.tasks) < DEPTH:
                    self._give(worker, todo.popleft(), header)
            ready = wait([w.pipe for w in self._workers if w.tasks], timeout=self._patience())
            for index, worker in enumerate(self._workers):
                if worker.pipe in ready:
                    try:
                        position, places, rest = worker.pipe.recv()
                    except (EOFError, ConnectionError, OSError):
                        self._replace(index, todo, tries, outcomes)
                        continue
                    body = tuple(worker.up.get(place).clone() for place in places)
                    outcomes[position] = rest._replace(body=body)
                    worker.tasks.popleft()
                    worker.since = time.monotonic()
                elif self._limit and worker.tasks and time.monotonic() - worker.since > self._limit:
                    task = worker.tasks.popleft()
                    outcomes[task.position] = failed(task, f"did not answer within {self._limit:g} s")
                    self._replace(index, todo, tries, outcomes)
        return [outcomes[task.position] for task in tasks]

    def close(self) -> None:
        for worker in self._workers:
            with contextlib.suppress(OSError):
                worker.pipe.send(None)
        for worker in self._workers:
            worker.process.join(timeout=2)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.pipe.close()
        self._workers = []

    def _patience(self) -> float | None:
        if not self._limit:
            return None
        now = time.monotonic()
        return max(0.01, min(self._limit - (now - w.since) for w in self._workers if w.tasks))

    def _post(self, message: Message) -> Header:
        self._number += 1
        self._down.reset()
        shared = tuple(self._down.put(a) for a in message.shared)
        there: dict[tuple[Any, ...], Slot] = {}
        own = tuple(
            [self._once(a, there) for a in part] if isinstance(part, list) else self._down.put(part)
            for part in message.own
        )
        return Header(self._number, shared, own)

    def _once(self, array: Tensor, there: dict[tuple[Any, ...], Slot]) -> Slot:
        """In a list, clients are often sent the very same array: it is copied once."""
        key = memory_of(array)
        if key not in there:
            there[key] = self._down.put(array)
        return there[key]

    def _give(self, worker: Worker, task: Task, header: Header) -> None:
        if not worker.tasks:
            worker.since = time.monotonic()
        worker.tasks.append(task)
        # a dead worker is noticed, and its tasks are taken back, when its pipe is read
        with contextlib.suppress(BrokenPipeError, ConnectionError):
            if worker.header != header.number:
                worker.pipe.send(header)
                worker.header = header.number
            worker.pipe.send(task)

    def _replace(self, index: int, todo: deque[Task], tries: dict[int, int], outcomes: dict[int, Outcome]) -> None:
        old = self._workers[index]
        old.process.kill()
        old.process.join()
        old.pipe.close()
        for place, task in enumerate(reversed(old.tasks)):
            if place == len(old.tasks) - 1:  # the one it was at
                tries[task.position] = tries.get(task.position, 0) + 1
                if tries[task.position] >= TRIES:
                    code = old.process.exitcode
                    why = f"its worker process died {TRIES} times (exit code {code}; -9 is often a lack of memory)"
                    outcomes[task.position] = failed(task, why)
                    continue
            todo.appendleft(task)
        self._workers[index] = self._start(old.up)

    def _start(self, up: Arena) -> Worker:
        mine, theirs = self._context.Pipe()
        others = [w.pipe for w in self._workers if not w.pipe.closed]
        process = self._context.Process(
            target=_serve, args=(self._spec, theirs, [mine, *others], self._down, up), daemon=True
        )
        process.start()
        theirs.close()
        return Worker(process, mine, up)


def _serve(spec: RunSpec, pipe: Connection, others: list[Connection], down: Arena, up: Arena) -> None:
    """A worker's life. It ends when its pipe does, so that no worker outlives a killed parent."""
    for other in others:
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    site: ClientRunner | None = None
    header = Header(0, (), ())
    try:
        while (item := pipe.recv()) is not None:
            if isinstance(item, Header):
                header = item
                up.reset()
                continue
            site = site or ClientRunner(spec)
            outcome = site.perform(item, _message(down, header, item.position))
            places = [up.put(array) for array in outcome.body]
            pipe.send((outcome.position, places, outcome._replace(body=())))
    except (EOFError, ConnectionError):
        pass
    finally:
        os._exit(0)  # no atexit handlers of the parent's libraries


def _message(down: Arena, header: Header, position: int) -> Message:
    """This client's part, copied: a client may write into what it received."""
    own = tuple(
        down.get(part[position]).clone() if isinstance(part, list) else down.get(part)[position].clone()
        for part in header.own
    )
    return Message(tuple(down.get(place).clone() for place in header.shared), own)
