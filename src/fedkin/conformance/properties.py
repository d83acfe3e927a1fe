"""The properties, one function each: it raises `Broken` if the method does not have it."""

from __future__ import annotations

import json
import tempfile
import typing
from collections.abc import Callable
from dataclasses import Field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from fedkin.conformance.compare import Broken, alike, copied, finite, listed, same, scores, seen
from fedkin.conformance.order import in_another_order
from fedkin.conformance.trial import FROZEN_CHANGED, ROUNDS, federation, outcome, plain, with_batch_norm, with_frozen
from fedkin.engine.options import Options
from fedkin.engine.runner import ClientError
from fedkin.protocol import Method, Training
from fedkin.registry import RUN_FLAGS
from fedkin.results.store import equal, load_state, save_state


def is_frozen(method: Method) -> None:
    if not is_dataclass(method) or not type(method).__dataclass_params__.frozen:
        raise Broken("put @dataclass(frozen=True) above the class; its fields are the hyper-parameters.")
    taken = {f.name for kind in (Options, Training) for f in fields(kind)} | set(RUN_FLAGS)
    if clash := sorted(taken & {f.name for f in fields(method)}):
        raise Broken(f"{', '.join(clash)} is a flag of every run: rename the field (server_{clash[0]}, …).")


def engines_agree(method: Method) -> None:
    one = plain(method)
    for workers in (1, 2):
        two = outcome(method, engine="pool", workers=workers)
        same(one, two, f"serially and with {workers} workers")


def ray_agrees(method: Method) -> None:
    same(plain(method), outcome(method, engine="ray", workers=2), "serially and on Ray")


def resumes(method: Method) -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = {"out": folder, "checkpoint_every": 1}
        outcome(method, **settings, rounds=2)
        same(plain(method), outcome(method, **settings), "without a stop and stopped after round 2")


def state_round_trips(method: Method) -> None:
    state = plain(method).state
    with tempfile.TemporaryDirectory() as folder:
        save_state(Path(folder) / "state", state)
        if not equal(load_state(Path(folder) / "state"), listed(state)):
            raise Broken("the server's state changes when it is saved and loaded")


def moves(method: Method) -> None:
    first, last = outcome(method, rounds=1), plain(method)
    if scores(first, "personal_loss", 1) == scores(last, "personal_loss", ROUNDS):
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
            before = plain(base) if not settings else outcome(base, **settings)
            if seen(before) == seen(outcome(changed, **settings)):
                was = getattr(base, item.name)
                raise Broken(
                    f"{item.name}={other!r} gives the same outcome as {item.name}={was!r}. Either the field does "
                    "nothing, or it has an effect only together with other settings: declare them with "
                    f"matters = {{'{item.name}': {{…other fields…}}}}"
                )
            tried += 1
    return f" ({tried} {'change' if tried == 1 else 'changes'} tried)"


def survives_lost_replies(method: Method) -> None:
    result = outcome(method, lost=0.5, rounds=6)
    if not any(record.value == "lost on the way" for record in result.history.select("dropped")):
        raise Broken("no reply was lost, so this check could not check anything")
    finite(result)


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
    finite(result)
    same(result, stopped, "without a stop and stopped while clients join and leave")
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
    same(plain(method), outcome(method), "twice with the same seed")
    if seen(plain(method)) == seen(outcome(method, seed=7)):
        raise Broken("another seed gives the same outcome")


def mixes(method: Method) -> str | None:
    result = plain(method)
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
    usual = plain(method)
    replies, asked = (outcome(in_another_order(method, **{what: True})) for what in ("replies", "asked"))
    alike(usual, replies, "when replies come in another order, index by replies.ids")
    alike(usual, asked, "when clients are asked in another order, index by ids")


def keeps_frozen(method: Method) -> None:
    """Parameters that a user froze are the same whenever the network is used; they are not part of a vector."""
    settings = {"model": with_frozen, "model_options": {}, "rounds": 3, "weight_decay": 0.01, "momentum": 0.5}
    try:
        finite(outcome(method, **settings))
    except ClientError as error:
        if FROZEN_CHANGED not in str(error):
            raise
        raise Broken(f"{FROZEN_CHANGED}: vectors hold what is trained, and the rest is constant") from None


def is_pure(method: Method) -> None:
    """`send`, `mixing` and `describe` leave the state as it is: the engine calls them between rounds too."""
    result = plain(method)
    before = copied(result.state)
    method.send(result.state, torch.arange(len(federation())))
    method.mixing(result.state)
    method.describe(result.state)
    if not equal(before, result.state):
        raise Broken("send, mixing or describe changes the server's state")


def works_with_buffers(method: Method) -> None:
    """Float buffers of batch norm travel, its counters do not; dropout draws from the client's seed."""
    finite(outcome(method, model=with_batch_norm, model_options={}, rounds=2))


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
