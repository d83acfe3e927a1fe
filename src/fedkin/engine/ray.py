"""Ray workers (`pip install 'fedkin[ray]'`): the same work as in the pool, over the machines of a Ray cluster.

The job, with all data, is put into Ray's object store once; a message's arrays are put there once in an exchange and
go to workers by reference. As in the pool, a worker that dies is replaced and its clients' work is done again.
Clients' states and models stay files of the machine that runs fedkin: workers of that machine read and write them, for
workers elsewhere their contents travel.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import socket
import sys
import sysconfig
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import fedkin
from fedkin.engine.pool import DEPTH, TRIES
from fedkin.engine.runner import ClientRunner, Outcome, RunSpec, Task, failed, memory_of
from fedkin.protocol import Message
from fedkin.results.store import write_bytes

INLINE = 1 << 16  # smaller arrays go with the call: an object of their own would cost more
START_LIMIT = 120.0  # seconds in which a cluster or a worker must have started

_idle: list[Any] | None = None  # workers of the cluster started or joined here, for the next run: a start takes seconds


class Packed(NamedTuple):
    """An array as bytes, which Ray shares between processes without copying; numpy does not have all dtypes."""

    content: NDArray[np.uint8]
    shape: tuple[int, ...]
    dtype: torch.dtype


def pack(array: Tensor) -> Packed:
    flat = array.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return Packed(flat, tuple(array.shape), array.dtype)


def unpack(packed: Packed) -> Tensor:
    """A copy, in memory of torch's own: products of matrices round otherwise at odd addresses."""
    out = torch.empty(packed.shape, dtype=packed.dtype)
    out.reshape(-1).view(torch.uint8).numpy()[:] = packed.content
    return out


class Done(NamedTuple):
    outcome: Outcome
    body: tuple[Packed, ...]
    state: bytes | None
    """The client's new state and its model, from a worker of another machine."""
    model: bytes | None


class RayWorker:
    """A worker's side."""

    def __init__(self) -> None:
        torch.set_num_threads(1)

    def take(self, spec: RunSpec) -> tuple[str, dict[str, str]]:
        """Get ready for a job. Returns its machine, and what must be the same everywhere for the same bits."""
        self._runner = ClientRunner(spec)
        node: str = _ray().get_runtime_context().get_node_id()
        return node, versions()

    def perform(self, task: Task, state: bytes | None, away: bool, shared: tuple[Packed, ...], *own: Packed) -> Done:
        message = Message(tuple(unpack(a) for a in shared), tuple(unpack(a) for a in own))
        if not away:
            return self._done(task, message)
        with tempfile.TemporaryDirectory(prefix="fedkin-") as name:
            folder = Path(name)
            here = task._replace(
                state=None if state is None else folder / "state",
                new_state=None if task.new_state is None else folder / "new_state",
                models=None if task.models is None else folder / "models",
            )
            if here.state is not None and state is not None:
                here.state.write_bytes(state)
            done = self._done(here, message)
            return done._replace(
                state=here.new_state.read_bytes() if here.new_state is not None and done.outcome.has_state else None,
                model=(here.models / done.outcome.model).read_bytes() if here.models and done.outcome.model else None,
            )

    def _done(self, task: Task, message: Message) -> Done:
        outcome = self._runner.perform(task, message)
        return Done(outcome._replace(body=()), tuple(pack(a) for a in outcome.body), None, None)


@dataclass
class Worker:
    actor: Any
    away: bool
    tasks: deque[tuple[Task, Any]] = field(default_factory=deque)
    """What it has to do, in order, with the promise of each answer."""
    since: float = 0.0
    """When it began its first task."""


class Ray:
    def __init__(self, spec: RunSpec, workers: int, *, address: str = "", time_limit: float | None = None) -> None:
        self._spec, self._limit = spec, time_limit
        self._ray = _ray()
        self._workers: list[Worker] = []
        self._cluster = contextlib.ExitStack()
        self._cluster.enter_context(cluster(address, workers))
        try:
            cores = int(self._ray.cluster_resources().get("CPU", 0))
            free = int(self._ray.available_resources().get("CPU", 0))
            if workers > cores:
                raise ValueError(f"workers={workers}, but the Ray cluster has {cores} CPUs: ask for at most that many.")
            self._node = self._ray.get_runtime_context().get_node_id()
            with _by_value(spec):
                self._data = self._ray.put(spec)
            self._workers = self._start(min(workers or max(1, free + len(_idle or ())), len(spec.federation)))
        except BaseException:
            self.close()
            raise

    def run(self, tasks: list[Task], message: Message) -> list[Outcome]:
        """All tasks' outcomes, in the order of the tasks, whoever did them and whenever."""
        shared = self._ray.put(tuple(pack(a) for a in message.shared))
        kept: dict[tuple[Any, ...], Any] = {}
        sizes = self._spec.federation.sizes
        # the largest first, so that no worker is left alone with a long one at the end
        todo = deque(sorted(tasks, key=lambda t: (-int(sizes[t.client]), t.position)))
        tries: dict[int, int] = {}
        outcomes: dict[int, Outcome] = {}
        while len(outcomes) < len(tasks):
            for worker in self._workers:
                while todo and len(worker.tasks) < DEPTH:
                    task = todo.popleft()
                    own = [self._posted(part[task.position], kept) for part in message.own]
                    self._give(worker, task, shared, own)
            heads = [worker.tasks[0][1] for worker in self._workers if worker.tasks]
            ready, _ = self._ray.wait(heads, num_returns=1, timeout=self._patience(), fetch_local=False)
            for index, worker in enumerate(self._workers):
                if not worker.tasks:
                    continue
                task, promise = worker.tasks[0]
                if promise in ready:
                    try:
                        done: Done = self._ray.get(promise)
                    except self._ray.exceptions.RayTaskError:
                        raise  # not of the client's code, whose errors come back as data
                    except self._ray.exceptions.RayError as error:
                        self._replace(index, todo, tries, outcomes, error)
                        continue
                    outcomes[task.position] = _received(task, done)
                    worker.tasks.popleft()
                    worker.since = time.monotonic()
                elif self._limit and time.monotonic() - worker.since > self._limit:
                    worker.tasks.popleft()
                    outcomes[task.position] = failed(task, f"did not answer within {self._limit:g} s")
                    self._replace(index, todo, tries, outcomes, None)
        return [outcomes[task.position] for task in tasks]

    def close(self) -> None:
        for worker in self._workers:
            if worker.tasks or _idle is None:
                self._ray.kill(worker.actor)
            else:
                _idle.append(worker.actor)
        self._workers = []
        self._cluster.close()

    def _patience(self) -> float | None:
        if not self._limit:
            return None
        now = time.monotonic()
        return max(0.01, min(self._limit - (now - w.since) for w in self._workers if w.tasks))

    def _posted(self, array: Tensor, kept: dict[tuple[Any, ...], Any]) -> Any:
        """A client's own array, or a reference to it; clients that are sent the same one share it."""
        if array.numel() * array.element_size() < INLINE:
            return pack(array)
        key = memory_of(array)
        if key not in kept:
            kept[key] = self._ray.put(pack(array))
        return kept[key]

    def _give(self, worker: Worker, task: Task, shared: Any, own: list[Any]) -> None:
        if not worker.tasks:
            worker.since = time.monotonic()
        state = task.state.read_bytes() if worker.away and task.state is not None else None
        worker.tasks.append((task, worker.actor.perform.remote(task, state, worker.away, shared, *own)))

    def _replace(
        self,
        index: int,
        todo: deque[Task],
        tries: dict[int, int],
        outcomes: dict[int, Outcome],
        error: Exception | None,
    ) -> None:
        """A new worker; the tasks of the old one are done again. `error` is what its first task died of."""
        old = self._workers[index]
        self._ray.kill(old.actor)
        again = [task for task, _ in old.tasks]
        if error is not None:
            first = again[0]
            tries[first.position] = tries.get(first.position, 0) + 1
            if tries[first.position] >= TRIES:
                outcomes[first.position] = failed(first, f"its Ray worker died {TRIES} times ({_short(error)})")
                again = again[1:]
        todo.extendleft(reversed(again))
        (self._workers[index],) = self._start(1)

    def _start(self, count: int) -> list[Worker]:
        kind = self._ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(RayWorker)
        actors = [_idle.pop() if _idle else kind.remote() for _ in range(count)]
        promises = [actor.take.remote(self._data) for actor in actors]
        try:
            greetings = self._ray.get(promises, timeout=START_LIMIT)
        except self._ray.exceptions.GetTimeoutError:
            raise RuntimeError(
                f"The Ray cluster did not start {count} workers of one CPU each within {START_LIMIT:g} s: it has "
                f"{self._ray.available_resources().get('CPU', 0):g} CPUs free. Ask for fewer with --workers, or wait."
            ) from None
        except self._ray.exceptions.RayError as error:
            raise RuntimeError(
                f"A Ray worker could not start: {_short(error)}. Every machine of the cluster needs the same fedkin, "
                "and your own modules."
            ) from error
        for _, theirs in greetings:
            if theirs != versions():
                raise RuntimeError(f"A Ray worker has {theirs}; this process has {versions()}: install the same.")
        return [Worker(actor, node != self._node) for actor, (node, _) in zip(actors, greetings)]


def versions() -> dict[str, str]:
    return {"fedkin": fedkin.__version__, "torch": str(torch.__version__), "numpy": np.__version__}


@contextlib.contextmanager
def cluster(address: str = "", workers: int = 0) -> Iterator[None]:
    """A connection to a Ray cluster: this process's own if it has one, that of `address` or RAY_ADDRESS, or else one
    on this machine, on loopback alone, that ends with this."""
    global _idle
    ray = _ray()
    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS", "")
    if address.startswith("ray://"):
        raise ValueError(
            f"{address} is for Ray's client, which has no object store of its own: run fedkin on a machine of the "
            "cluster, with --ray-address auto or host:port."
        )
    folder = None
    quiet = {"include_dashboard": None, "log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address and address != "local":
            try:
                _knock(address)
                ray.init(address=address, **quiet)
            except (OSError, RuntimeError, ValueError) as error:
                raise ValueError(
                    f"There is no Ray cluster at '{address}': {_short(error)}. Start one with `ray start --head`, or "
                    "leave --ray-address and RAY_ADDRESS out for one on this machine."
                ) from error
        else:
            # a folder of its own: other programs' ray.init() must not find this cluster. Sockets need a short path.
            folder = tempfile.mkdtemp(prefix="fedkin-ray-", dir="/tmp")
            _start_here(workers or os.cpu_count() or 1, folder, {**quiet, "include_dashboard": False})
        _idle = []
        yield
    finally:
        _idle = None
        ray.shutdown()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _start_here(cores: int, folder: str, settings: dict[str, Any]) -> None:
    """On loopback, and with more patience than the 30 s that Ray itself has: on a busy machine it takes longer."""
    from ray._private import services

    look = services.get_node

    def look_longer(*arguments: Any) -> Any:
        deadline = time.monotonic() + START_LIMIT
        while True:
            try:
                return look(*arguments)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    services.get_node = look_longer
    try:
        with on_loopback():
            _ray().init(address="local", num_cpus=cores, _node_ip_address="127.0.0.1", _temp_dir=folder, **settings)
    finally:
        services.get_node = look


def _knock(address: str) -> None:
    """Is there anybody? Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()


@contextlib.contextmanager
def on_loopback() -> Iterator[None]:
    """On Linux Ray takes 127.0.0.1 for an address that can be reached from outside, unless it is told so."""
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@functools.cache
def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # without it Ray warns of a change to come
    os.environ.setdefault("RAY_agent_register_timeout_ms", str(int(1000 * START_LIMIT)))  # on a busy machine it is slow
    try:
        import ray
    except ImportError as error:
        raise ImportError(
            f"--engine ray needs Ray, which cannot be imported ({error}): pip install 'fedkin[ray]'; or take "
            "--engine pool."
        ) from error
    return ray


def _received(task: Task, done: Done) -> Outcome:
    if done.state is not None and task.new_state is not None:
        write_bytes(task.new_state, done.state)
    if done.model is not None and task.models is not None and not (task.models / done.outcome.model).exists():
        write_bytes(task.models / done.outcome.model, done.model)
    return done.outcome._replace(body=tuple(unpack(a) for a in done.body))


def _short(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]


@contextlib.contextmanager
def _by_value(spec: RunSpec) -> Iterator[None]:
    """Code of the user's own files travels with the job: a worker could not import it."""
    from ray import cloudpickle

    modules = [sys.modules[name] for name in sorted(_modules_of(spec)) if name in sys.modules]
    own = [
        module
        for module in modules
        if _is_own(module) and module.__name__ not in cloudpickle.list_registry_pickle_by_value()
    ]
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)


def _modules_of(spec: RunSpec) -> set[str]:
    """Where the method's classes, and the model's function or classes, are defined."""
    names = {kind.__module__ for kind in type(spec.method).__mro__}
    seen: set[int] = set()
    todo: list[Any] = [spec.make]
    while todo:
        thing = todo.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, nn.Module):
            names |= {kind.__module__ for part in thing.modules() for kind in type(part).__mro__}
        elif callable(thing) and isinstance(getattr(thing, "__module__", None), str):
            names.add(thing.__module__)
            todo += [cell.cell_contents for cell in getattr(thing, "__closure__", None) or ()]
            todo += [getattr(thing, "func", None)]
    return names


def _is_own(module: ModuleType) -> bool:
    """Neither installed nor part of Python or fedkin."""
    path = getattr(module, "__file__", None)
    if module.__name__ == "__main__" or module.__name__.split(".")[0] == "fedkin" or not path:
        return False
    installed = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return not any(Path(path).resolve().is_relative_to(Path(place).resolve()) for place in installed)
