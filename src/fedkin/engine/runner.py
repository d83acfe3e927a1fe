"""What happens at one client: the same code in every engine."""

from __future__ import annotations

import hashlib
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf, isfinite
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from fedkin.client.evaluate import scores_and_outputs
from fedkin.data.federation import Population
from fedkin.engine.ahead import TrainedAhead, copied
from fedkin.engine.allocation import keep_freed_memory
from fedkin.engine.device import Device, make_deterministic
from fedkin.engine.errors import where
from fedkin.engine.faults import spoiled
from fedkin.engine.workspace import Workspace
from fedkin.maths.table import ClientTable
from fedkin.models.network import Network
from fedkin.protocol import Client, Data, Examples, Message, Method, Model, Reply, State, Training
from fedkin.results.files import StorageError, Write, write_bytes
from fedkin.results.store import load_state, save_state
from fedkin.robust.attacks import Attack
from fedkin.robust.privacy import Privacy, PrivateData
from fedkin.robust.updates import references
from fedkin.task import Classification
from fedkin.task import Task as LearningTask


@dataclass(frozen=True)
class RunSpec:
    """Everything that stays fixed in a run."""

    method: Method
    federation: Population
    make: Callable[[], nn.Module]
    head: str | None
    training: Training
    seed: int
    task: LearningTask = field(default_factory=Classification)
    frozen: Mapping[str, Tensor] | None = None
    """Values of the frozen parameters. Forked workers share them; None: each network has its own."""
    privacy: Privacy | None = None
    amp: bool = False
    """Mixed precision in the network's forward and backward passes."""
    deterministic: bool = False
    """Use only deterministic kernels."""


class Task(NamedTuple):
    """Call one client function at one client."""

    round: int
    position: int
    client: int
    function: str
    state: Path | None
    """File of the client's private state, None before it has any."""
    new_state: Path | None
    """File for its next private state."""
    measure: bool = False
    """Also score the model that the client has before this work: the server's state after the previous round."""
    fault: str = ""
    """A fault to simulate in the reply: nan, shape or huge."""
    attack: str = ""
    """An attack to simulate at this client, such as signflip:0.2."""

    @property
    def hook(self) -> str:
        return self.function


class Evaluation(NamedTuple):
    """Score one client with what the server would send it after `round`. This changes nothing."""

    round: int
    position: int
    client: int
    state: Path | None
    models: Path | None = None
    """Folder in which the personal model is kept."""

    @property
    def hook(self) -> str:
        return "personal"


Work = Task | Evaluation
Made = TypeVar("Made")


class Outcome(NamedTuple):
    position: int
    client: int
    body: tuple[Tensor, ...]
    has_state: bool
    scores: dict[str, float]
    flops: float
    seconds: float
    error: str
    """Why there is no reply, or no scores of an evaluation."""
    trace: str = ""
    model: str = ""
    """File name of the personal model, if it was saved."""
    notes: tuple[str, ...] = ()
    """Problems that were solved along the way; they are written to the history."""
    digest: str = ""
    """Digest of the file with the client's new private state."""
    unmeasured: str = ""
    """Why a participant could not be scored. Its reply still counts."""
    kind: str = ""
    """Kind of the error: `bad` if a reply cannot be used, `storage` if one of fedkin's own files failed."""
    one_class: bool = False
    """Does the personal model predict the same class for every test example?"""
    released: int = 0
    """Number of noisy releases of the client's data: replies, or steps of private SGD."""


class BadReply(ValueError):
    """A client function returned something that cannot be used."""


class ClientError(RuntimeError):
    """An error in a client's code, with the round, the client and the hook in which it happened.

    `trace` is the traceback at the client. Python shows it with the error's own, but it is not part of the message.
    """

    def __init__(self, text: str, trace: str = "") -> None:
        super().__init__(text)
        if trace:
            self.add_note(f"\nAt the client:\n{trace}")


def failed(work: Work, why: str) -> Outcome:
    """The outcome of work without an answer."""
    return Outcome(work.position, work.client, (), False, {}, 0.0, 0.0, where(work.round, work.client, work.hook, why))


def memory_of(array: Tensor) -> tuple[object, ...]:
    """A key that two arrays share if they are the same memory, read in the same way. Valid while both exist."""
    return array.data_ptr(), tuple(array.shape), array.stride(), array.dtype


def client_seed(seed: int, round: int, client: int) -> int:
    return int(np.random.SeedSequence([seed, round, client]).generate_state(1, np.uint64)[0] >> np.uint64(1))


class ClientRunner:
    """Runs client functions, one after another, with its own network."""

    def __init__(
        self, spec: RunSpec, threads: int = 1, device: Device | None = None, write: Write = write_bytes
    ) -> None:
        """`write` is given every file that a client's work leaves behind."""
        self.spec, self.device, self._write = spec, device or Device(), write
        keep_freed_memory()
        if spec.deterministic:
            make_deterministic()
        example = self.device.placed(spec.federation.example)

        def make(frozen: Mapping[str, Tensor] | None = None) -> Network:
            module = spec.make() if self.device.is_cpu else self.device.module(spec.make())
            net = Network(module, example, spec.head, spec.task, frozen if self.device.is_cpu else None)
            net.autocast = self.device.autocast if spec.amp else None
            return net

        self._workspace = Workspace(make, threads, make(spec.frozen))
        self.net = self._workspace.net
        self.hook = ""
        self._placed: dict[tuple[int, str], Examples] = {}
        self._ahead = TrainedAhead()

    def perform(self, work: Work, message: Message) -> Outcome:
        """Do the work. Errors come back as data."""
        start = time.perf_counter()
        self.hook = work.hook
        with self.device.active():
            return self._performed(work, self.device.placed(message), start)

    def _performed(self, work: Work, message: Message, start: float) -> Outcome:
        try:
            if isinstance(work, Evaluation):
                return self._evaluate(work, message)._replace(seconds=time.perf_counter() - start)
            client = self._client(work, work.round)
            attack = Attack.read(work.attack)
            if attack is not None:
                client = client._replace(data=attack.data(client.data))
            untouched = copied(message) if work.measure or attack is not None else message
            plain = work.function == "local" and attack is None and not work.fault and not work.measure
            if plain and (ahead := self._ahead.take(work, message)):
                (reply, flops), released = ahead, 0
            else:
                reply, released = self._reply(work.function, client, message, work.fault)
                flops = self.net.cost
            scores, unmeasured = self._scores_before(work, client, untouched, reply) if work.measure else ({}, "")
            if attack is not None:
                reply = reply._replace(body=self._attacked(attack, client, untouched, reply.body))
            reply = self.device.returned(reply)
            has_state = bool(reply.state or work.state)
            digest = save_state(work.new_state, reply.state, self._write) if has_state and work.new_state else ""
            done = Outcome(work.position, work.client, reply.body, has_state, scores, flops, 0.0, "")
            done = done._replace(digest=digest, unmeasured=unmeasured, released=released)
            return done._replace(seconds=time.perf_counter() - start)
        except Exception as error:
            kind = "storage" if isinstance(error, StorageError) else "bad" if isinstance(error, BadReply) else ""
            text = where(work.round, work.client, self.hook, error)
            seconds, trace = time.perf_counter() - start, traceback.format_exc()
            return Outcome(work.position, work.client, (), False, {}, 0.0, seconds, text, trace, kind=kind)

    def _reply(self, function: str, client: Client, message: Message, fault: str = "") -> tuple[Reply, int]:
        """The reply of a client function (made private if the run is), and the number of its noisy releases."""
        method, privacy = self.spec.method, self.spec.privacy

        def ordinary(client: Client) -> Reply:
            reply = _checked(getattr(method, function)(client, message), function, fault)
            return Reply(self._workspace.apart(reply.state), self._workspace.apart(reply.body))

        if privacy is None:
            return ordinary(client), 0
        generator = privacy.generator(client.seed, function, message)
        if privacy.level == "example":
            hidden = PrivateData(client.data, privacy, client.training.batch_size, generator)
            return ordinary(client._replace(data=hidden)), hidden.released
        sent = copied(message)  # a client function may write into what it received
        reply = ordinary(client)
        return Reply(reply.state, privacy.covered(reply.body, sent, method.from_zero, generator)), 1

    def _attacked(
        self, attack: Attack, client: Client, message: Message, body: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """What a hostile client sends. If it chose among several models, it starts from the one it chose."""
        method = self.spec.method
        starts = references(message, body, method.from_zero)
        if body and 0 not in method.from_zero:
            received = method.received(client, message)
            if isinstance(received, Tensor) and received.shape == body[0].shape:
                starts[0] = received
        return attack.body(body, starts, client.seed)

    def _client(self, work: Work, round: int) -> Client:
        """The client at the start of a round, with a clean network and a freshly seeded random generator."""
        spec, self.net = self.spec, self._workspace.clean()
        data = self._data(work.client)
        seed = client_seed(spec.seed, round, work.client)
        client = Client(self._state(work), data, seed, self.net, spec.training.at(round))
        self.device.seed(client.seed)
        return client

    def _data(self, client: int) -> Data:
        """The client's data. On an accelerator it is placed there once, when it is first used."""
        sees_test = self.spec.method.sees_test
        data = self.spec.federation.data(client, with_test=sees_test)
        if self.device.is_cpu:
            return data

        def kept(part: str) -> Callable[[], Examples]:
            return lambda: self._once(client, part, lambda: getattr(data, part))

        return Data(kept("train"), kept("validation"), data.classes, kept("test") if sees_test else None)

    def _once(self, client: int, part: str, load: Callable[[], Examples]) -> Examples:
        if (client, part) not in self._placed:
            self._placed[client, part] = self.device.placed(on_host(load))
        return self._placed[client, part]

    def _test(self, client: int) -> Examples:
        if self.device.is_cpu:
            return self.spec.federation.test(client)
        return self._once(client, "test", lambda: self.spec.federation.test(client))

    def _state(self, work: Work) -> State:
        path = work.state
        state = self.spec.method.init_client() if path is None else on_host(lambda: load_state(path))
        return self.device.placed(state)  # type: ignore[no-any-return]

    def _evaluate(self, work: Evaluation, message: Message) -> Outcome:
        # with the seed of the next round: `trained()` is what the client would do in it
        client = self._client(work, work.round + 1)
        made: list[Reply] = []

        def trained() -> Reply:
            if not made:
                worker = client._replace(state=self._state(work))  # its work may modify what it is given
                self.device.seed(client.seed)
                before = self.net.cost
                made.append(self._reply("local", worker, copied(message))[0])
                if self.device.is_cpu and self.spec.privacy is None:
                    self._ahead.keep(work, message, made[0], self.net.cost - before)
            return made[0]

        scores, personal, outputs = self._scores(work.client, client, message, trained)
        one_class = self.spec.task.has_classes and _all_equal(outputs.argmax(1))
        model = self._keep(personal, work.models) if work.models is not None else ""
        return Outcome(work.position, work.client, (), False, scores, 0.0, 0.0, "", model=model, one_class=one_class)

    def _scores_before(
        self, work: Task, client: Client, message: Message, reply: Reply
    ) -> tuple[dict[str, float], str]:
        """The scores that an evaluation after the previous round would give here, or why there are none. The
        training that this needs is already done."""
        after = self.device.random_state()
        self.net = self._workspace.clean()
        client = client._replace(state=self._state(work), net=self.net)  # its work may have changed the others
        self.device.seed(client.seed)

        def trained() -> Reply:
            self.device.set_random_state(after)
            return reply

        try:
            return self._scores(work.client, client, message, trained)[0], ""
        except Exception as error:
            return {}, where(work.round, work.client, self.hook, error)

    def _scores(
        self, number: int, client: Client, message: Message, trained: Callable[[], Reply]
    ) -> tuple[dict[str, float], Model, Tensor]:
        """All scores of a client, its personal model, and that model's outputs for the test examples."""
        method, data = self.spec.method, client.data
        self.hook = "received"
        received = method.received(client, message)
        self.hook = "personal"
        personal = method.personal(client, message, trained)
        self.hook = "predict"
        test = self._test(number)
        measured, outputs = self._score(client, personal, test)
        found = {"personal": measured}
        if len(data.validation.y):
            found["validation"] = self._score(client, personal, data.validation)[0]
        if received is not None:
            found["received"] = measured if received is personal else self._score(client, received, test)[0]
        scores = {
            kind if metric == self.spec.task.headline else f"{kind}_{metric}": value
            for kind, metrics in found.items()
            for metric, value in metrics.items()
        }
        self.hook = "describe_personal"
        about = {f"model_{name}": float(value) for name, value in method.describe_personal(personal).items()}
        return scores | about, personal, outputs

    def _score(self, client: Client, model: Model, examples: Examples) -> tuple[dict[str, float], Tensor]:
        return scores_and_outputs(lambda x: self.spec.method.predict(client, model, x), self.net, examples)

    def _keep(self, personal: Model, folder: Path) -> str:
        """The personal model as a file named by its content: clients that use the same model share the file."""
        tensors = self.net.layout.tensors(personal) if isinstance(personal, Tensor) else personal
        content = save({k: self.device.to_host(v).contiguous().clone() for k, v in tensors.items()})
        name = f"{hashlib.blake2b(content, digest_size=8).hexdigest()}.safetensors"
        if not (folder / name).exists() or (folder / name).stat().st_size != len(content):
            self._write(folder / name, content)
        return name


def _all_equal(values: Tensor) -> bool:
    return len(values) > 0 and bool((values == values[0]).all())


def on_host(load: Callable[[], Made]) -> Made:
    """Call a function of fedkin that reads data or files on the host, whatever device client code uses."""
    with torch._C.DisableTorchFunction():
        return load()


def reach(value: Any, *, finite: bool = False) -> float:
    """The largest magnitude of all floating-point numbers in a nested value; infinite if one of them is not finite.
    With `finite`, such numbers are skipped."""
    if isinstance(value, Tensor):
        if not value.numel() or not (value.is_floating_point() or value.is_complex()):
            return 0.0
        least, most = map(float, torch.aminmax(value.abs() if value.is_complex() else value))
        if isfinite(least) and isfinite(most):  # both are NaN if any number is
            return max(-least, most)
        return reach(value[torch.isfinite(value)]) if finite else inf
    if isinstance(value, ClientTable):
        return value.reach(finite=finite)
    if isinstance(value, float):
        return abs(value) if isfinite(value) else 0.0 if finite else inf
    if isinstance(value, dict):
        value = list(value.values())
    return max((reach(v, finite=finite) for v in value), default=0.0) if isinstance(value, list | tuple) else 0.0


def _checked(value: object, function: str, fault: str = "") -> Reply:
    """Check a reply and return it as plain tuples and dictionaries. Raise if it cannot be used."""
    if not (isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], dict)):
        raise BadReply(
            f"{function} must return Reply(state, body); it returned "
            f"{'None' if value is None else f'a {type(value).__name__}'}."
        )
    state, parts = value
    body = [torch.as_tensor(p).detach().contiguous() for p in (parts if isinstance(parts, tuple | list) else (parts,))]
    if fault:
        body = spoiled(body, fault)
    for what, arrays in (("", body), ("a private state with ", state)):
        if not isfinite(reach(arrays)):
            raise BadReply(f"{function} returned {what}NaN or infinity (a learning rate that is too large does that).")
    return Reply(state, tuple(body))
