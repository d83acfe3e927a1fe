"""Ray workers (`pip install 'fedkin[ray]'`): the same work as in the pool, over the machines of a Ray cluster.

The run's specification, with all data, is put into Ray's object store once. A message's arrays are put there once in an
exchange and go to workers by reference. Clients' states and models stay files of the machine that runs fedkin. Workers
on that machine read them; to workers elsewhere their contents travel. No worker writes them: a worker may outlive the
run for a moment. What a client's work leaves behind comes back with its outcome, and the process of the run writes it.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkin.engine.device import open_device
from fedkin.engine.ray_cluster import START_LIMIT, by_value, cluster, idle, on_loopback, ray_module, short, versions
from fedkin.engine.runner import ClientRunner, Evaluation, Outcome, RunSpec, Task, Work, memory_of
from fedkin.engine.scheduler import LOOK_EVERY, Line, Scheduler, WorkerDied
from fedkin.protocol import Message
from fedkin.results.files import Content, write_bytes

__all__ = ["Ray", "cluster", "on_loopback"]

INLINE = 1 << 16  # smaller arrays go with the call: an object of their own would cost more


class Packed(NamedTuple):
    """An array as bytes, which Ray shares between processes without copying; numpy does not have all dtypes."""

    content: NDArray[np.uint8]
    shape: tuple[int, ...]
    dtype: torch.dtype


def pack(array: Tensor) -> Packed:
    flat = array.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return Packed(flat, tuple(array.shape), array.dtype)


def unpack(packed: Packed) -> Tensor:
    """A copy in memory of torch's own: Ray's may be unaligned, which changes BLAS rounding."""
    out = torch.empty(packed.shape, dtype=packed.dtype)
    out.reshape(-1).view(torch.uint8).numpy()[:] = packed.content
    return out


class Done(NamedTuple):
    outcome: Outcome
    body: tuple[Packed, ...]
    files: dict[Path, bytes]
    """The client's new state, or its model."""


class RayWorker:
    """A worker's side."""

    def __init__(self) -> None:
        torch.set_num_threads(1)

    def prepare(self, spec: RunSpec, device: str = "cpu") -> tuple[str, dict[str, str]]:
        """Get ready for a run. Return this machine's name, and the versions that must match for equal bits.

        Ray shows a worker only the GPUs that it was given, so `cuda` is the right one."""
        self._written: dict[Path, bytes] = {}
        self._runner = ClientRunner(spec, device=open_device(device), write=self._note)
        node: str = ray_module().get_runtime_context().get_node_id()
        return node, versions()

    def _note(self, path: Path, content: Content) -> None:
        self._written[path] = content if isinstance(content, bytes) else b"".join(content)

    def perform(self, work: Work, state: bytes | None, away: bool, shared: tuple[Packed, ...], *own: Packed) -> Done:
        message = Message(tuple(unpack(a) for a in shared), tuple(unpack(a) for a in own))
        if not away:
            return self._done(work, message)
        with tempfile.TemporaryDirectory(prefix="fedkin-") as name:
            here = _moved(work, Path(name))
            if here.state is not None and state is not None:
                here.state.write_bytes(state)
            done = self._done(here, message)
            if isinstance(work, Evaluation) and work.models is not None:
                done = done._replace(files={work.models / path.name: content for path, content in done.files.items()})
            return done

    def _done(self, work: Work, message: Message) -> Done:
        self._written.clear()
        outcome = self._runner.perform(work, message)
        return Done(outcome._replace(body=()), tuple(pack(a) for a in outcome.body), dict(self._written))


def _moved(work: Work, folder: Path) -> Work:
    """The same work with the files that it reads in another folder."""
    state = None if work.state is None else folder / "state"
    if isinstance(work, Evaluation):
        return work._replace(state=state, models=None if work.models is None else folder)
    return work._replace(state=state)


@dataclass
class Worker:
    actor: Any
    away: bool
    """It runs on another machine than this process."""
    promises: deque[Any] = field(default_factory=deque)
    """References to its answers, in the order of its work."""


class Ray(Scheduler):
    def __init__(
        self,
        spec: RunSpec,
        workers: int,
        *,
        address: str = "",
        time_limit: float | None = None,
        device: str = "cpu",
    ) -> None:
        super().__init__(spec, time_limit)
        self._device, self._gpus = device, 0.0
        self._ray = ray_module()
        self._workers: list[Worker] = []
        self._cluster = contextlib.ExitStack()
        self._cluster.enter_context(cluster(address, workers))
        try:
            cores = int(self._ray.cluster_resources().get("CPU", 0))
            free = int(self._ray.available_resources().get("CPU", 0))
            if workers > cores:
                raise ValueError(f"workers={workers}, but the Ray cluster has {cores} CPUs: ask for at most that many.")
            self._node = self._ray.get_runtime_context().get_node_id()
            with by_value(spec):
                self._spec_reference = self._ray.put(spec)
            wanted = workers or max(1, free + len(idle() or ()))
            if device == "cuda":
                gpus = int(self._ray.cluster_resources().get("GPU", 0))
                if not gpus:
                    raise ValueError("device=cuda, but the Ray cluster has no GPUs: use device=cpu.")
                wanted = workers or gpus
                self._gpus = gpus_per_worker(gpus, min(wanted, len(spec.federation)))
            self._workers = self._start(min(wanted, len(spec.federation)))
            self.lines = [Line() for _ in self._workers]
        except BaseException:
            self.close()
            raise

    def post(self, message: Message) -> None:
        self._message = message
        self._shared = self._ray.put(tuple(pack(a) for a in message.shared))
        self._posted: dict[tuple[Any, ...], Any] = {}

    def _own(self, array: Tensor) -> Any:
        """A client's own array, or a reference to it; clients that are sent the same one share it."""
        if array.numel() * array.element_size() < INLINE:
            return pack(array)
        key = memory_of(array)
        if key not in self._posted:
            self._posted[key] = self._ray.put(pack(array))
        return self._posted[key]

    def give(self, worker: int, work: Work) -> None:
        target = self._workers[worker]
        state = work.state.read_bytes() if target.away and work.state is not None else None
        own = [self._own(part[work.position]) for part in self._message.own]
        target.promises.append(target.actor.perform.remote(work, state, target.away, self._shared, *own))

    def wait(self, workers: Sequence[int], timeout: float) -> set[int]:
        first = {worker: self._workers[worker].promises[0] for worker in workers}
        ready, _ = self._ray.wait(list(first.values()), num_returns=1, timeout=timeout, fetch_local=False)
        return {worker for worker, promise in first.items() if promise in ready}

    def take(self, worker: int, work: Work) -> Outcome:
        try:
            done: Done = self._ray.get(self._workers[worker].promises[0])
        except self._ray.exceptions.RayTaskError:
            raise  # not from client code, whose errors come back as data
        except self._ray.exceptions.RayError as error:
            raise WorkerDied("its Ray worker", short(error)) from error
        self._workers[worker].promises.popleft()
        return _received(work, done)

    def replace(self, worker: int) -> None:
        self._ray.kill(self._workers[worker].actor)
        others = len(self._workers) - len(self.retired) - 1

        def machine_left() -> bool:
            return others > 0 and self._ray.cluster_resources().get("CPU", 0) < others + 1

        if new := self._start(1, machine_left):
            (self._workers[worker],) = new
        else:
            self.retired.add(worker)
            self._workers[worker].promises.clear()

    def close(self) -> None:
        for number, worker in enumerate(self._workers):
            if number in self.retired:
                continue
            workers = idle()
            if worker.promises or workers is None or self._gpus:
                self._ray.kill(worker.actor)
            else:
                workers.append(worker.actor)
        self._workers, self.lines = [], []
        self._cluster.close()

    def _start(self, count: int, in_vain: Callable[[], bool] = lambda: False) -> list[Worker]:
        """New workers; none if waiting for them is, or becomes, `in_vain`: Ray takes half a minute to notice that a
        machine has left, and until then it promises workers there."""
        if in_vain():
            return []
        kind = self._ray.remote(num_cpus=1, num_gpus=self._gpus, max_restarts=0, max_task_retries=0)(RayWorker)
        workers = idle() if not self._gpus else None  # idle workers have no GPU
        actors = [workers.pop() if workers else kind.remote() for _ in range(count)]
        promises = [actor.prepare.remote(self._spec_reference, self._device) for actor in actors]
        end = time.monotonic() + START_LIMIT
        while (
            len(self._ray.wait(promises, num_returns=count, timeout=LOOK_EVERY)[0]) < count and time.monotonic() < end
        ):
            if in_vain():
                for actor in actors:
                    self._ray.kill(actor)
                return []
        try:
            greetings = self._ray.get(promises, timeout=LOOK_EVERY)
        except self._ray.exceptions.GetTimeoutError:
            raise RuntimeError(
                f"The Ray cluster did not start {count} workers of one CPU each within {START_LIMIT:g} s: it has "
                f"{self._ray.available_resources().get('CPU', 0):g} CPUs free. Ask for fewer with --workers, or wait."
            ) from None
        except self._ray.exceptions.RayError as error:
            raise RuntimeError(
                f"A Ray worker could not start: {short(error)}. Every machine of the cluster needs the same fedkin, "
                "and your own modules."
            ) from error
        for _, theirs in greetings:
            if theirs != versions():
                raise RuntimeError(f"A Ray worker has {theirs}; this process has {versions()}: install the same.")
        return [Worker(actor, node != self._node) for actor, (node, _) in zip(actors, greetings)]


def gpus_per_worker(gpus: int, workers: int) -> float:
    """GPUs for each worker: whole ones, or the largest fraction 1/k that leaves room for all workers."""
    return float(gpus // workers) if workers <= gpus else 1 / -(-workers // gpus)


def _received(work: Work, done: Done) -> Outcome:
    """Write the files that came with an outcome, and return it."""
    for path, content in done.files.items():
        if isinstance(work, Task) or not path.exists():  # a model's name is made from its content
            write_bytes(path, content)
    return done.outcome._replace(body=tuple(unpack(a) for a in done.body))
