"""The pool: worker processes with one thread each, the fastest way to train many small networks on a CPU.

Workers are forked, so that they have data and user code without copying or pickling. Arrays go through shared memory
(`Arena`), everything else through pipes.
"""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedkin.engine.device import check_fork, open_device
from fedkin.engine.runner import ClientRunner, Outcome, RunSpec, Work, memory_of
from fedkin.engine.scheduler import AT_ONCE, Line, Scheduler, WorkerDied
from fedkin.engine.signals import forget_in_child, protected
from fedkin.protocol import Message


class Slot(NamedTuple):
    """An array in an arena."""

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype


class Arena:
    """Memory that forked processes share. It uses only as much memory as is written to it."""

    def __init__(self) -> None:
        size = 1 << 38
        while True:
            try:
                flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
                self._memory = mmap.mmap(-1, size, flags=flags)
                break
            except OSError:  # the address space is limited: reserve less
                size //= 2
                if size < 1 << 24:
                    raise
        self._size, self._at = size, 0

    def reset(self) -> None:
        self._at = 0

    def put(self, array: Tensor) -> Slot:
        slot = Slot(self._at, tuple(array.shape), array.dtype)
        length = array.numel() * array.element_size()
        if self._at + length > self._size:
            raise MemoryError(f"An exchange needs more than the {self._size >> 20} MiB of shared memory available.")
        if length:
            self.get(slot).copy_(array)
        self._at += (length + 63) // 64 * 64
        return slot

    def get(self, slot: Slot) -> Tensor:
        count = prod(slot.shape)
        if not count:
            return torch.empty(slot.shape, dtype=slot.dtype)
        return torch.frombuffer(self._memory, dtype=slot.dtype, count=count, offset=slot.offset).view(slot.shape)


class Header(NamedTuple):
    """Where the message of an exchange is in shared memory."""

    number: int
    shared: tuple[Slot, ...]
    own: tuple[Slot | list[Slot], ...]


@dataclass
class Worker:
    process: Any
    pipe: Connection
    up: Arena
    finished: mmap.mmap
    """One byte that the worker writes: how many pieces of work it has done, but not answered yet."""
    header: int = -1
    """Number of the exchange whose header it has."""
    unsent: list[Work] = field(default_factory=list)
    answers: deque[Answer] = field(default_factory=deque)
    """Received, but not taken yet."""


Answer = tuple[Outcome, list[Slot]]


class Pool(Scheduler):
    """Short pieces of work, and the answers to them, travel several at a time."""

    def __init__(
        self, spec: RunSpec, workers: int, *, time_limit: float | None = None, devices: Sequence[str] = ("cpu",)
    ) -> None:
        super().__init__(spec, time_limit)
        check_fork(devices)
        self._devices = devices
        self._context = multiprocessing.get_context("fork")
        self._life = os.pipe()  # never written to: it closes when this process ends, which the workers notice
        self._down = Arena()
        self._header = Header(0, (), ())
        self._workers: list[Worker] = []
        try:
            for _ in range(workers):
                with protected():
                    self._workers.append(self._start(Arena(), len(self._workers)))
                    self.lines.append(Line())
        except BaseException:
            self.close()
            raise

    def post(self, message: Message) -> None:
        self._down.reset()
        shared = tuple(self._down.put(a) for a in message.shared)
        known: dict[tuple[Any, ...], Slot] = {}
        own = tuple(
            [self._put_once(a, known) for a in part] if isinstance(part, list) else self._down.put(part)
            for part in message.own
        )
        self._header = Header(self._header.number + 1, shared, own)

    def _put_once(self, array: Tensor, known: dict[tuple[Any, ...], Slot]) -> Slot:
        """Copy an array only once if several clients are sent the same one."""
        key = memory_of(array)
        if key not in known:
            known[key] = self._down.put(array)
        return known[key]

    def give(self, worker: int, work: Work) -> None:
        self._workers[worker].unsent.append(work)

    def _send(self, target: Worker) -> None:
        # a dead worker is noticed, and its work requeued, when its pipe is read
        with contextlib.suppress(BrokenPipeError, ConnectionError):
            if target.header != self._header.number:
                target.pipe.send(self._header)
                target.header = self._header.number
            target.pipe.send(target.unsent)
        target.unsent = []

    def wait(self, workers: Sequence[int], timeout: float) -> set[int]:
        if known := {worker for worker in workers if self._workers[worker].answers}:
            return known
        for worker in workers:
            # less than half of its queue can wait: the worker has the rest, and few long messages cost less
            if 2 * len(self._workers[worker].unsent) >= len(self.lines[worker].work):
                self._send(self._workers[worker])
        ready = wait([self._workers[worker].pipe for worker in workers], timeout=timeout)
        return {worker for worker in workers if self._workers[worker].pipe in ready}

    def take(self, worker: int, work: Work) -> Outcome:
        source = self._workers[worker]
        if not source.answers:
            try:
                source.answers.extend(source.pipe.recv())
            except (EOFError, ConnectionError, OSError):
                source.process.join(timeout=2)
                why = f"exit code {source.process.exitcode}; -9 often means out of memory"
                raise WorkerDied("its worker process", why) from None
        outcome, slots = source.answers.popleft()
        return outcome._replace(body=tuple(source.up.get(slot).clone() for slot in slots))

    def finished(self, worker: int) -> int:
        return self._workers[worker].finished[0]

    def replace(self, worker: int) -> None:
        old = self._workers[worker]
        old.process.kill()
        old.process.join()
        with protected():
            old.pipe.close()
            self._workers[worker] = self._start(old.up, worker)

    def close(self) -> None:
        for worker, line in zip(self._workers, self.lines):
            if line.work:
                worker.process.kill()  # it was interrupted: nobody waits for its answer
            else:
                with contextlib.suppress(OSError):
                    worker.pipe.send(None)
        for worker in self._workers:
            worker.process.join(timeout=2)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.pipe.close()
        self._workers, self.lines = [], []
        for end in self._life:
            if end >= 0:
                os.close(end)
        self._life = (-1, -1)

    def _start(self, up: Arena, number: int) -> Worker:
        mine, theirs = self._context.Pipe()
        finished = mmap.mmap(-1, 1)
        others = [w.pipe for w in self._workers if not w.pipe.closed]
        process = self._context.Process(
            target=_serve,
            args=(
                self.spec,
                theirs,
                [mine, *others],
                self._life,
                self._down,
                up,
                finished,
                self._devices[number % len(self._devices)],
            ),
            daemon=True,
        )
        process.start()
        theirs.close()
        return Worker(process, mine, up, finished)


def _serve(
    spec: RunSpec,
    pipe: Connection,
    others: list[Connection],
    life: tuple[int, int],
    down: Arena,
    up: Arena,
    finished: mmap.mmap,
    device: str,
) -> None:
    """A worker's loop. It keeps answers back for `AT_ONCE` seconds at most, to send several at a time."""
    forget_in_child()
    for other in others:
        other.close()
    os.close(life[1])
    threading.Thread(target=_end_with_parent, args=(life[0],), daemon=True).start()
    torch.set_num_threads(1)
    runner: ClientRunner | None = None
    header = Header(0, (), ())
    try:
        while (item := pipe.recv()) is not None:
            if isinstance(item, Header):
                header = item
                up.reset()
                continue
            runner = runner or ClientRunner(spec, device=open_device(device))
            answers: list[Answer] = []
            since = time.monotonic()
            for work in item:
                outcome = runner.perform(work, _message(down, header, work.position))
                answers.append((outcome._replace(body=()), [up.put(array) for array in outcome.body]))
                if work is item[-1] or time.monotonic() - since >= AT_ONCE:
                    finished[0] = 0
                    pipe.send(answers)
                    answers, since = [], time.monotonic()
                else:
                    finished[0] = len(answers)
    except (EOFError, ConnectionError):
        pass
    finally:
        os._exit(0)  # no atexit handlers of the parent's libraries


def _end_with_parent(life: int) -> None:
    """End this worker with its parent. Otherwise it could write into the folder of the next run."""
    os.read(life, 1)
    os._exit(0)


def _message(down: Arena, header: Header, position: int) -> Message:
    """This client's part, copied: a client may write into what it received."""
    own = tuple(
        down.get(part[position]).clone() if isinstance(part, list) else down.get(part)[position].clone()
        for part in header.own
    )
    return Message(tuple(down.get(slot).clone() for slot in header.shared), own)
