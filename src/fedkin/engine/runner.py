"""What happens at one client: the same code in every engine."""

from __future__ import annotations

import hashlib
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from fedkin.client.evaluate import score
from fedkin.data.federation import Population
from fedkin.models.network import Network
from fedkin.protocol import Client, Examples, Message, Method, Model, Reply, State, Training
from fedkin.results.store import load_state, save_state, write_bytes


@dataclass(frozen=True)
class RunSpec:
    """All that stays the same in a run."""

    method: Method
    federation: Population
    make: Callable[[], nn.Module]
    head: str | None
    training: Training
    seed: int


class Task(NamedTuple):
    """One call at one client. `function` is "" where the client is only measured."""

    round: int
    position: int
    client: int
    function: str
    state: Path | None
    """The client's private state, None before it has any."""
    new_state: Path | None
    """Where its next state is written."""
    measure: bool
    models: Path | None = None
    """Folder in which the personal model is kept."""


class Outcome(NamedTuple):
    position: int
    client: int
    body: tuple[Tensor, ...]
    has_state: bool
    scores: dict[str, float]
    flops: float
    seconds: float
    error: str
    trace: str = ""
    model: str = ""
    """File name of the personal model, where it was kept."""
    notes: tuple[str, ...] = ()
    """What went wrong on the way and was put right: it is written to the history."""


def failed(task: Task, why: str) -> Outcome:
    """Of a task that gave no answer."""
    text = f"round {task.round}, client {task.client}, hook {task.function or 'personal'}: {why}"
    return Outcome(task.position, task.client, (), False, {}, 0.0, 0.0, text)


def memory_of(array: Tensor) -> tuple[object, ...]:
    """The same for two arrays that are one stretch of memory, seen in the same way. Only while both are alive."""
    return array.data_ptr(), tuple(array.shape), array.stride(), array.dtype


class ClientError(RuntimeError):
    """An error in a client's code, with the place where it happened."""


def client_seed(seed: int, round: int, client: int) -> int:
    return int(np.random.SeedSequence([seed, round, client]).generate_state(1, np.uint64)[0] >> np.uint64(1))


class ClientRunner:
    """One place where clients' work is done: a network to work in, and the job."""

    def __init__(self, spec: RunSpec) -> None:
        self.spec = spec
        self.net = Network(spec.make(), spec.federation.example, spec.head)
        self.hook = ""

    def perform(self, task: Task, message: Message) -> Outcome:
        """Do the task; errors come back as data."""
        start = time.perf_counter()
        self.hook = task.function
        try:
            return self._perform(task, message)._replace(seconds=time.perf_counter() - start)
        except Exception as error:
            text = f"round {task.round}, client {task.client}, hook {self.hook}: {type(error).__name__}: {error}"
            seconds = time.perf_counter() - start
            return Outcome(task.position, task.client, (), False, {}, 0.0, seconds, text, traceback.format_exc())

    def _perform(self, task: Task, message: Message) -> Outcome:
        spec = self.spec
        before: State = load_state(task.state) if task.state else spec.method.init_client()
        data = spec.federation.data(task.client, with_test=spec.method.sees_test)
        client = Client(before, data, client_seed(spec.seed, task.round, task.client), self.net, spec.training)
        # not torch.manual_seed: that queues a call with a stack trace for a CUDA that is not there, each time
        torch.default_generator.manual_seed(client.seed)
        self.net.cost = 0.0
        done: Reply | None = None
        if task.function:
            done = _checked(getattr(spec.method, task.function)(client, message), task.function)
        flops = self.net.cost
        scores, kept = self._measure(task, client, message, done) if task.measure else ({}, "")
        wrote = done is not None and bool(done.state or task.state)
        if wrote and done is not None and task.new_state is not None:
            save_state(task.new_state, done.state)
        body = done.body if done is not None else ()
        return Outcome(task.position, task.client, body, wrote, scores, flops, 0.0, "", model=kept)

    def _measure(
        self, task: Task, client: Client, message: Message, done: Reply | None
    ) -> tuple[dict[str, float], str]:
        method, before = self.spec.method, client
        cache = [] if done is None else [done]

        def trained() -> Reply:
            if not cache:
                torch.default_generator.manual_seed(before.seed)
                cache.append(_checked(method.local(before, message), "local"))
            return cache[0]

        if done is not None:
            client = client._replace(state=done.state)
        self.hook = "received"
        received = method.received(client, message)
        self.hook = "personal"
        personal = method.personal(client, message, trained)
        self.hook = "predict"
        test = self.spec.federation.test(task.client)
        scores: dict[str, float] = {}
        scores["personal"], scores["personal_loss"] = self._score(client, personal, test)
        if len(client.data.validation.y):
            scores["validation"], scores["validation_loss"] = self._score(client, personal, client.data.validation)
        if received is personal:
            scores["received"], scores["received_loss"] = scores["personal"], scores["personal_loss"]
        elif received is not None:
            scores["received"], scores["received_loss"] = self._score(client, received, test)
        return scores, self._keep(personal, task.models) if task.models is not None else ""

    def _score(self, client: Client, model: Model, rows: Examples) -> tuple[float, float]:
        with torch.no_grad():
            return score(lambda x: self.spec.method.predict(client, model, x), self.net, rows)

    def _keep(self, personal: Model, folder: Path) -> str:
        """The personal model as a file named by its content: clients that use the same model share the file."""
        tensors = self.net.layout.tensors(personal) if isinstance(personal, Tensor) else personal
        content = save({k: v.detach().contiguous().clone() for k, v in tensors.items()})
        name = f"{hashlib.blake2b(content, digest_size=8).hexdigest()}.safetensors"
        if not (folder / name).exists():
            write_bytes(folder / name, content)
        return name


def _checked(value: object, function: str) -> Reply:
    """The reply in its plain form, or an error that says what is wrong with it."""
    if not (isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], dict)):
        raise TypeError(f"{function} must return Reply(state, body); it returned a {type(value).__name__}.")
    state, parts = value
    body = []
    for part in parts if isinstance(parts, tuple | list) else (parts,):
        array = torch.as_tensor(part).detach().contiguous()
        if array.is_floating_point() and not bool(torch.isfinite(array).all()):
            raise ValueError(f"{function} returned NaN or infinity (a learning rate that is too large does that).")
        body.append(array)
    return Reply(state, tuple(body))
