"""Fuzzing: whatever comes in, a command works or says in one message what was given and what to do (exit code 2).

No traceback, no pickle, no write outside the output folder. The cases are the same each time: a test fails because of
a change, not because of the day.
"""

from __future__ import annotations

import pytest

from tests.fuzz.harness import hunt
from tests.fuzz.targets import TARGETS

FEW, MANY = 500, 10_000  # cases of all targets together


@pytest.mark.parametrize("name", TARGETS)
def test_few_cases(name):
    _, target, values, share = TARGETS[name]
    found = hunt(target, values, round(share * FEW))
    assert found.total() >= 0.9 * share * FEW, "hypothesis leaves out a case that it has had"
    assert found["refused"]


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", TARGETS)
def test_many_cases(name):
    _, target, values, share = TARGETS[name]
    assert hunt(target, values, round(share * MANY)).total() >= 0.9 * share * MANY
