"""`fedkin verify`: the properties that every method must have, checked on a small federation of digits.

They catch common mistakes of research code: a regularizer without a gradient, a server model that never changes,
positions used as client ids, state that leaks between clients or is lost on a restart.
"""

from __future__ import annotations

import json
import tempfile
import time
import typing
from collections.abc import Callable, Iterator
from dataclasses import Field, dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedkin.data.federation import Federation, federate
from fedkin.engine.loop import run
from fedkin.engine.options import Options
from fedkin.engine.runner import ClientError
from fedkin.methods import method as by_name
from fedkin.protocol import Clients, Message, Method, Replies, Reply, Server, State, Training
from fedkin.registry import RUN_FLAGS
from fedkin.results.run import Run
from fedkin.results.store import equal, load_state, save_state

ROUNDS = 4
ROUNDING = 1e-3  # means of the same vectors in another order differ in the last bit, which training magnifies
SETTINGS: dict[str, Any] = {
    "rounds": ROUNDS,
    "lr": 0.1,
    "epochs": 2,
    "batch_size": 8,
    "participation": 0.7,
    "evaluate_every": 2,
    "model": "mlp",
    "model_options": {"width": 0.25},
    "engine": "serial",
}


@dataclass(frozen=True)
class Outcome:
    name: str
    passed: bool
    detail: str
    seconds: float


class Broken(Exception):
    """Raised when a property does not hold."""


@cache
def federation() -> Federation:
    """Eight small clients that differ in size and labels."""
    made = federate("digits", partition="dirichlet", clients=8, alpha=0.5, minimum=20, samples_per_client=60, seed=1)
    splits = [
        replace(s, train=s.train[np.linspace(0, len(s.train) - 1, 42 - 4 * i).astype(int)])
        for i, s in enumerate(made.splits)
    ]
    return replace(made, splits=tuple(splits))


def verify(name: str | Method, *, ray: bool = False) -> Iterator[Outcome]:
    """Check a method (a name, `file.py:Class`, or an instance) against every property, one by one.

    With `ray`, also check that the Ray engine agrees; starting Ray takes a few seconds.
    """
    try:
        method = by_name(name) if isinstance(name, str) else name
    except Exception as error:
        yield Outcome("can be made from its defaults", False, f"{type(error).__name__}: {error}", 0.0)
        return
    for label, check in (PROPERTIES | (RAY_PROPERTIES if ray else {})).items():
        begin = time.perf_counter()
        try:
            detail = check(method) or ""
            yield Outcome(f"{label}{detail}", True, "", time.perf_counter() - begin)
        except Exception as error:
            text = str(error) if isinstance(error, Broken) else f"{type(error).__name__}: {error}"
            yield Outcome(label, False, text, time.perf_counter() - begin)


def outcome(method: Method, **changes: Any) -> Run:
    return run(method, federation(), **{**SETTINGS, **changes})


@cache
def _plain(method: Method) -> Run:
    return outcome(method)


def is_frozen(method: Method) -> None:
    if not is_dataclass(method) or not type(method).__dataclass_params__.frozen:
        raise Broken("put @dataclass(frozen=True) above the class; its fields are the hyper-parameters.")
    taken = {f.name for kind in (Options, Training) for f in fields(kind)} | set(RUN_FLAGS)
    if clash := sorted(taken & {f.name for f in fields(method)}):
        raise Broken(f"{', '.join(clash)} is a flag of every run: rename the field (server_{clash[0]}, …).")


def engines_agree(method: Method) -> None:
    one = _plain(method)
    for workers in (1, 2):
        two = outcome(method, engine="pool", workers=workers)
        _same(one, two, f"serially and with {workers} workers")


def ray_agrees(method: Method) -> None:
    _same(_plain(method), outcome(method, engine="ray", workers=2), "serially and on Ray")


def resumes(method: Method) -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = {"out": folder, "checkpoint_every": 1}
        outcome(method, **settings, rounds=2)
        _same(_plain(method), outcome(method, **settings), "without a stop and stopped after round 2")


def state_round_trips(method: Method) -> None:
    state = _plain(method).state
    with tempfile.TemporaryDirectory() as folder:
        save_state(Path(folder) / "state", state)
        if not equal(load_state(Path(folder) / "state"), _listed(state)):
            raise Broken("the server's state changes when it is saved and loaded")


def moves(method: Method) -> None:
    first, last = outcome(method, rounds=1), _plain(method)
    if _scores(first, "personal_loss", 1) == _scores(last, "personal_loss", ROUNDS):
        raise Broken(f"the clients' models are the same after 1 and {ROUNDS} rounds")


def every_field_matters(method: Method) -> str:
    tried = 0
    for item in fields(method):  # type: ignore[arg-type]
        company = dict(type(method).matters.get(item.name, {}))
        settings = company.pop("settings", {})
        given = item.name in company
        value = company.pop(item.name, None)
        base = _changed(method, company)
        for other in [value] if given else _others(base, item):
            changed = _changed(base, {item.name: other})
            before = _plain(base) if not settings else outcome(base, **settings)
            if _outcome(before) == _outcome(outcome(changed, **settings)):
                was = getattr(base, item.name)
                raise Broken(
                    f"{item.name}={other!r} gives the same outcome as {item.name}={was!r}. Either the field does "
                    "nothing, or it has an effect only together with other settings: declare them with "
                    f"matters = {{'{item.name}': {{…other fields…}}}}"
                )
            tried += 1
    return f" ({tried} changes tried)"


def survives_lost_replies(method: Method) -> None:
    result = outcome(method, lost=0.5, rounds=6)
    if not any(record.value == "lost on the way" for record in result.history.select("dropped")):
        raise Broken("no reply was lost, so this check could not check anything")
    _finite(result)


def comes_and_goes(method: Method) -> None:
    """Client 7 joins at round 3, client 0 leaves at round 4; the run may be stopped before, between and after."""
    settings: dict[str, Any] = {
        "arrive": {7: 3}, "leave": {0: 4}, "participation": 1.0, "evaluate_every": 1, "checkpoint_every": 1,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        result = outcome(method, **settings, rounds=5, out=Path(folder) / "straight")
        kept = set(json.loads((Path(folder) / "straight" / "models" / "index.json").read_text()))
        for rounds in (2, 3, 5):
            stopped = outcome(method, **settings, rounds=rounds, out=Path(folder) / "stopped")
    _finite(result)
    _same(result, stopped, "without a stop and stopped while clients join and leave")
    there = {round: set(range(1 if round >= 4 else 0, 8 if round >= 3 else 7)) for round in range(1, 6)}
    asked: set[int] = set()
    for round, ids in there.items():
        measured = set(result.history.values("personal", round=round))
        if measured != ids:
            raise Broken(f"after round {round} clients {sorted(measured)} were evaluated; {sorted(ids)} are present")
        now = set(result.history.values("bytes_down", round=round, scope=""))
        if not now <= ids:
            raise Broken(f"in round {round} clients {sorted(now - ids)} were asked, which are not present")
        asked |= now
    if asked != set(range(8)):
        raise Broken(f"clients {sorted(set(range(8)) - asked)} were never asked")
    if kept != {federation().names[client] for client in there[5]}:
        raise Broken(f"personal models of {sorted(kept)} were kept; client 0 left and client 7 joined")


def is_deterministic(method: Method) -> None:
    _same(_plain(method), outcome(method), "twice with the same seed")
    if _outcome(_plain(method)) == _outcome(outcome(method, seed=7)):
        raise Broken("another seed gives the same outcome")


def mixes(method: Method) -> str | None:
    result = _plain(method)
    mixing = method.mixing(result.state)
    if mixing is None:
        return " (it defines no mixing)"
    for name, matrix in mixing.items() if isinstance(mixing, dict) else [("", mixing)]:
        size = len(federation())
        if tuple(matrix.shape) != (size, size):
            raise Broken(f"mixing {name} has shape {tuple(matrix.shape)}, not [{size}, {size}]")
        if not torch.allclose(matrix.sum(1), torch.ones(size), atol=1e-4):
            raise Broken(f"rows of mixing {name} sum to {[round(v, 4) for v in matrix.sum(1).tolist()]}, not to 1")
    return None


def order_is_free(method: Method) -> None:
    """Ask the clients in another order, and hand over their replies in another order: clients must be told apart by
    their ids. With participation below 1 no position is the id by chance."""
    plain = _plain(method)
    _alike(plain, outcome(_with(method, replies=True)), "when replies come in another order, index by replies.ids")
    _alike(plain, outcome(_with(method, asked=True)), "when clients are asked in another order, index by ids")


def keeps_frozen(method: Method) -> None:
    """Parameters that a user froze are the same whenever the network is used; they are not part of a vector."""
    settings = {"model": _with_frozen, "model_options": {}, "rounds": 3, "weight_decay": 0.01, "momentum": 0.5}
    try:
        _finite(outcome(method, **settings))
    except ClientError as error:
        if FROZEN_CHANGED not in str(error):
            raise
        raise Broken(f"{FROZEN_CHANGED}: vectors hold what is trained, and the rest is constant") from None


def is_pure(method: Method) -> None:
    """`send`, `mixing` and `describe` leave the state as it is: the engine calls them between rounds too."""
    result = _plain(method)
    before = _copied(result.state)
    method.send(result.state, torch.arange(len(federation())))
    method.mixing(result.state)
    method.describe(result.state)
    if not equal(before, result.state):
        raise Broken("send, mixing or describe changes the server's state")


def works_with_buffers(method: Method) -> None:
    """Float buffers of batch norm travel, its counters do not; dropout draws from the client's seed."""
    _finite(outcome(method, model=_with_batch_norm, model_options={}, rounds=2))


PROPERTIES: dict[str, Callable[[Method], str | None]] = {
    "is a frozen dataclass": is_frozen,
    "engines agree to the bit": engines_agree,
    "same seed, same bits; another seed, another run": is_deterministic,
    "a resumed run gives the same bits": resumes,
    "the state survives saving and loading": state_round_trips,
    "the outcome moves with rounds": moves,
    "every hyper-parameter changes the outcome": every_field_matters,
    "lost replies are survived": survives_lost_replies,
    "clients come and go": comes_and_goes,
    "rows of the mixing matrix sum to 1": mixes,
    "the order of clients and replies does not matter": order_is_free,
    "send, mixing and describe change nothing": is_pure,
    "batch norm and dropout work": works_with_buffers,
    "frozen parameters stay frozen": keeps_frozen,
}


RAY_PROPERTIES: dict[str, Callable[[Method], str | None]] = {"Ray agrees to the bit": ray_agrees}


def _with_batch_norm(shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    from torch import nn

    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, classes)
    )


FROZEN_CHANGED = "a parameter with requires_grad=False was changed"


def _with_frozen(shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    from torch import nn

    class Partly(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if any(not torch.equal(a, b) for a, b in zip(held, start)):
                raise RuntimeError(FROZEN_CHANGED)
            out: torch.Tensor = super().forward(x)  # type: ignore[no-untyped-call]
            return out

    module = Partly(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, classes))
    module[1].requires_grad_(False)
    module[3].bias.requires_grad_(False)
    held = [parameter for parameter in module.parameters() if not parameter.requires_grad]
    start = [parameter.detach().clone() for parameter in held]
    return module


class _Shuffled:
    """The clients of a round, with their replies in another order."""

    def __init__(self, clients: Clients) -> None:
        self.ids, self._clients = clients.ids, clients

    def run(self, function: Callable[..., Reply], message: Message) -> Replies:
        replies = self._clients.run(function, message)
        order = _another_order(len(replies.ids), replies.seed)
        body = tuple(
            part[order] if isinstance(part, Tensor) else [part[r] for r in order.tolist()] for part in replies.body
        )
        return Replies(replies.ids[order], replies.n[order], body, replies.position[order], replies.seed)


def _another_order(count: int, seed: int) -> Tensor:
    """A permutation that is not the identity if `count` is at least 2."""
    order = np.random.default_rng([seed, 0x0DE2]).permutation(count)
    return torch.from_numpy(order if count < 2 or (order != np.arange(count)).any() else order[::-1].copy())


def _with(method: Method, *, replies: bool = False, asked: bool = False) -> Method:
    """The same method, whose clients are asked or whose replies are delivered in another order."""
    kind = type(method)

    def round(self: Method, state: State, clients: Clients) -> State:
        return kind.round(self, state, _Shuffled(clients) if replies else clients)

    def select(self: Method, state: State, fed: Server, round: int) -> Tensor:
        ids = kind.select(self, state, fed, round)
        return ids[_another_order(len(ids), round)] if asked else ids

    other = type(kind.__name__, (kind,), {"round": round, "select": select, "__module__": kind.__module__})
    return other(**{f.name: getattr(method, f.name) for f in fields(method) if f.init})  # type: ignore[arg-type,no-any-return]


def _alike(a: Run, b: Run, how: str) -> None:
    """Check that two runs are equal up to rounding: the same records, with nearly the same scores."""
    for metric in ("personal_loss", "received_loss"):
        mine, yours = ({(r.round, r.client): r.value for r in x.history.select(metric)} for x in (a, b))
        if mine.keys() != yours.keys():
            raise Broken(f"{how}: other clients were measured")
        for (round, client), value in mine.items():
            other = yours[round, client]
            if (value is None) != (other is None) or (
                value is not None and abs(value - other) > 1e-3 * max(1.0, abs(value))
            ):
                raise Broken(f"{how}: after round {round} client {client} has {metric} {other}, not {value}")


def _changed(method: Method, changes: dict[str, Any]) -> Method:
    made: Method = replace(method, **changes)  # type: ignore[type-var]
    return made


def _others(method: Method, item: Field[Any]) -> list[Any]:
    """Other values to try for a field."""
    value = getattr(method, item.name)
    kind = typing.get_type_hints(type(method)).get(item.name)
    if typing.get_origin(kind) is Literal:
        return [other for other in typing.get_args(kind) if other != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1]
    if isinstance(value, float):
        return [value / 2 if value else 0.5]
    raise Broken(
        f"{item.name} is a {type(value).__name__}: declare a value to try with "
        f"matters = {{'{item.name}': {{'{item.name}': …}}}}"
    )


def _outcome(result: Run) -> list[Any]:
    """What a user sees: models' scores, costs and what the method reports. Warnings depend on the planned rounds."""
    return [
        (record.round, record.client, record.metric, record.value, record.scope)
        for record in result.history.records
        if record.metric != "warning"
    ]


def _same(a: Run, b: Run, how: str) -> None:
    first, second = _outcome(a), _outcome(b)
    for mine, yours in zip(first, second):
        if mine != yours:
            raise Broken(f"{how}: the histories differ, first in {mine} against {yours}"[:400])
    if len(first) != len(second):
        raise Broken(f"{how}: {len(first)} and {len(second)} records in the history")
    if not equal(_listed(a.state), _listed(b.state)):
        raise Broken(f"{how}: the server's states differ")


def _scores(result: Run, metric: str, round: int) -> dict[int, Any]:
    return result.history.values(metric, round=round)


def _finite(result: Run) -> None:
    values = [record.value for record in result.history.select("personal_loss", scope="all")]
    if not values or not all(value is not None and abs(value) < 1e6 for value in values):
        raise Broken("the personal models' losses are not finite")
    if broken := [record.value for record in result.history.select("unmeasured")]:
        raise Broken(broken[0])
    if failed := [record.value for record in result.history.select("dropped") if record.value != "lost on the way"]:
        raise Broken(failed[0])


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {k: _copied(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(v) for v in value]
    return value


_listed = _copied  # JSON turns tuples into lists
