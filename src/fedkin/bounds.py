"""Ranges of settings, declared beside the field: `mu: NonNegative = 0.1`. `check` reads them off a dataclass."""

from __future__ import annotations

import math
import typing
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, Literal

LARGEST = (2 - 2**-23) * 2.0**127  # of float32, in which models are computed


@dataclass(frozen=True)
class Bound:
    """The values that a number may take."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    infinite: bool = False
    """Whether infinity is allowed."""

    def holds(self, value: float) -> bool:
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        low = self.least if self.least is not None else self.above
        high = self.most if self.most is not None else self.below
        if low is not None and high is not None:
            opening, closing = "[" if self.least is not None else "(", "]" if self.most is not None else ")"
            return f"lie in {opening}{low:g}, {high:g}{closing}"
        if low is not None:
            return f"be at least {low:g}" if self.least is not None else f"be above {low:g}"
        assert high is not None
        return f"be at most {high:g}" if self.most is not None else f"be below {high:g}"


NonNegative = Annotated[float, Bound(least=0)]
Positive = Annotated[float, Bound(above=0)]
Fraction = Annotated[float, Bound(least=0, most=1)]
PositiveFraction = Annotated[float, Bound(above=0, most=1)]
FractionBelow1 = Annotated[float, Bound(least=0, below=1)]
Whole = Annotated[int, Bound(least=0)]
Count = Annotated[int, Bound(least=1)]


def check(settings: Any) -> None:
    """Raise one ValueError that names every field of a dataclass whose value its annotation does not allow."""
    kind: type = type(settings)
    hints = _hints(kind)
    wrong = [
        f"{field.name}={getattr(settings, field.name)!r} must {rule}"
        for field in fields(settings)
        if field.name in hints and (rule := _broken(getattr(settings, field.name), hints[field.name]))
    ]
    if wrong:
        raise ValueError("; ".join(wrong) + ".")


@cache
def _hints(kind: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except NameError:  # a class made inside a function, with annotations that only that function can resolve
        return {}


def _broken(value: Any, hint: Any) -> str:
    """What a value must do to satisfy its annotation; empty if it does."""
    bounds: tuple[Any, ...] = ()
    if typing.get_origin(hint) is Annotated:
        hint, *bounds_ = typing.get_args(hint)
        bounds = tuple(b for b in bounds_ if isinstance(b, Bound))
    if typing.get_origin(hint) is Literal:
        allowed = [str(a) for a in typing.get_args(hint)]
        return "" if value in typing.get_args(hint) else f"be {_either(allowed)}"
    if hint is bool:
        return "" if isinstance(value, bool) else "be True or False"
    if hint is int and (isinstance(value, bool) or not isinstance(value, int)):
        return "be a whole number"
    if hint is float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return "be a number"
        if not math.isfinite(value) and not any(bound.infinite and value == math.inf for bound in bounds):
            return "be finite"
        if math.isfinite(value) and abs(value) > LARGEST:
            return f"lie in [-{LARGEST:.2g}, {LARGEST:.2g}], the range of float32"
    return next((str(bound) for bound in bounds if not bound.holds(value)), "")


def _either(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
