"""Compare two runs: to the bit, or up to rounding."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedkin.results.run import Run
from fedkin.results.store import equal

ROUNDING = 1e-3  # means of the same vectors in another order differ in the last bit, which training magnifies


class Broken(Exception):
    """Raised when a property does not hold."""


def alike(a: Run, b: Run, how: str) -> None:
    """Check that two runs are equal up to rounding: the same records, with nearly the same scores."""
    for metric in ("personal_loss", "received_loss"):
        mine, yours = ({(r.round, r.client): r.value for r in x.history.select(metric)} for x in (a, b))
        if mine.keys() != yours.keys():
            raise Broken(f"{how}: other clients were measured")
        for (round, client), value in mine.items():
            other = yours[round, client]
            if (value is None) != (other is None) or (
                value is not None and abs(value - other) > ROUNDING * max(1.0, abs(value))
            ):
                raise Broken(f"{how}: after round {round} client {client} has {metric} {other}, not {value}")


def seen(result: Run) -> list[Any]:
    """What a user sees: models' scores, costs and what the method reports. Warnings depend on the planned rounds."""
    return [
        (record.round, record.client, record.metric, record.value, record.scope)
        for record in result.history.records
        if record.metric != "warning"
    ]


def same(a: Run, b: Run, how: str) -> None:
    first, second = seen(a), seen(b)
    for mine, yours in zip(first, second):
        if mine != yours:
            raise Broken(f"{how}: the histories differ, first in {mine} against {yours}"[:400])
    if len(first) != len(second):
        raise Broken(f"{how}: {len(first)} and {len(second)} records in the history")
    if not equal(listed(a.state), listed(b.state)):
        raise Broken(f"{how}: the server's states differ")


def scores(result: Run, metric: str, round: int) -> dict[int, Any]:
    return result.history.values(metric, round=round)


def finite(result: Run) -> None:
    values = [record.value for record in result.history.select("personal_loss", scope="all")]
    if not values or not all(value is not None and abs(value) < 1e6 for value in values):
        raise Broken("the personal models' losses are not finite")
    if broken := [record.value for record in result.history.select("unmeasured")]:
        raise Broken(broken[0])
    if failed := [record.value for record in result.history.select("dropped") if record.value != "lost on the way"]:
        raise Broken(failed[0])


def copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {k: copied(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [copied(v) for v in value]
    return value


listed = copied  # JSON turns tuples into lists
