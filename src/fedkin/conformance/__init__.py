"""`fedkin verify`: the properties that every method must have, checked on a small federation of digits.

They catch common mistakes of research code: a regularizer without a gradient, a server model that never changes,
positions used as client ids, state that leaks between clients or is lost on a restart.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from fedkin.conformance.compare import Broken as Broken
from fedkin.conformance.properties import PROPERTIES as PROPERTIES
from fedkin.conformance.properties import RAY_PROPERTIES
from fedkin.methods import method as by_name
from fedkin.protocol import Method


@dataclass(frozen=True)
class Outcome:
    name: str
    passed: bool
    detail: str
    seconds: float


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
