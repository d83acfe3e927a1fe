"""Ranges of settings are read off their annotations, and every wrong field is named at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal, get_type_hints

import pytest

from fedkin.bounds import Bound, Count, Fraction, FractionBelow1, NonNegative, Positive, PositiveFraction, Whole, check
from fedkin.engine.options import Options
from fedkin.methods import METHODS, method
from fedkin.protocol import Training


@dataclass(frozen=True)
class Settings:
    mu: NonNegative = 0.1
    lr: Positive = 0.1
    share: Fraction = 0.5
    some: PositiveFraction = 1.0
    momentum: FractionBelow1 = 0.0
    wait: Whole = 0
    clusters: Count = 1
    members: Annotated[int, Bound(least=2, most=9)] = 2
    limit: Annotated[float, Bound(least=0, infinite=True)] = math.inf
    start: Literal["cold", "warm", "hot"] = "cold"
    dynamic: bool = True
    free: float = -3.0

    def __post_init__(self) -> None:
        check(self)


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("mu", -1, "mu=-1 must be at least 0."),
        ("lr", 0.0, "lr=0.0 must be above 0."),
        ("share", 1.5, "share=1.5 must lie in [0, 1]."),
        ("some", 0, "some=0 must lie in (0, 1]."),
        ("momentum", 1, "momentum=1 must lie in [0, 1)."),
        ("wait", 1.5, "wait=1.5 must be a whole number."),
        ("clusters", 0, "clusters=0 must be at least 1."),
        ("clusters", True, "clusters=True must be a whole number."),
        ("members", 10, "members=10 must lie in [2, 9]."),
        ("start", "tepid", "start='tepid' must be cold, warm or hot."),
        ("dynamic", 1, "dynamic=1 must be True or False."),
        ("free", math.inf, "free=inf must be finite."),
        ("free", 1e308, "free=1e+308 must lie in [-3.4e+38, 3.4e+38], the range of float32."),
        ("free", -(10**40), f"free=-1{'0' * 40} must lie in [-3.4e+38, 3.4e+38], the range of float32."),
        ("mu", math.nan, "mu=nan must be finite."),
        ("limit", math.nan, "limit=nan must be finite."),
        ("mu", "much", "mu='much' must be a number."),
    ],
)
def test_what_is_wrong_is_said(field, value, rule):
    with pytest.raises(ValueError) as caught:
        Settings(**{field: value})
    assert str(caught.value) == rule


def test_all_wrong_fields_are_named_at_once():
    with pytest.raises(ValueError, match=r"mu=-1 must be at least 0; clusters=0 must be at least 1\."):
        Settings(mu=-1, clusters=0)


def test_what_is_allowed_passes():
    Settings(mu=0, share=1, some=1, members=9, limit=math.inf, start="hot", free=-1e9)


@pytest.mark.parametrize("name", METHODS)
def test_no_method_takes_what_is_not_a_number(name):
    made = method(name)
    for field in made.__dataclass_fields__:  # type: ignore[attr-defined]
        if isinstance(getattr(made, field), float):
            with pytest.raises(ValueError, match=f"{field}=nan must be finite"):
                method(name, **{field: math.nan})


FREE = {("ClusterFL", "rho"), ("PFedBayes", "rho"), ("FedAGHN", "q")}  # any number, or a rule between fields


def test_every_number_that_a_method_or_a_run_takes_declares_its_range():
    kinds = {Options, Training, *(entry.load() for entry in METHODS.values())}
    unbounded = {
        (kind.__name__, name)
        for kind in kinds
        for name, hint in get_type_hints(kind, include_extras=True).items()
        if hint in (int, float)
    }
    assert unbounded == FREE
