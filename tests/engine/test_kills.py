"""Runs killed by SIGKILL at random instants: in a round, in the middle of a write, by a dying worker.

Each of them goes on to the bits of the run that was never killed.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedkin
from tests.engine.test_resume import files
from tests.processes import family, needs_linux, wait_until_gone

pytestmark = [pytest.mark.processes, needs_linux]

SETTINGS: dict[str, Any] = {
    "rounds": 12,
    "lr": 0.1,
    "participation": 0.8,
    "evaluate_every": 4,
    "checkpoint_every": 2,
    "workers": 2,
    "faults": "drop=0.1,nan=0.05",
}
SYSTEMS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedcedar": {"clusters": 2},
    "pflic": {"clusters": 2, "restarts": 2, "stable_rounds": 2},
    "pfedgat-v2": {},
    "dcpfl": {"tau": 1, "start_rounds": 2, "window": 1, "patience": 1},
    "ditto": {},  # private states
}


@pytest.fixture(scope="module")
def fed() -> fedkin.Federation:
    return fedkin.federate("digits", clients=6, samples_per_client=40, seed=2)


def forked(work: Callable[[], object]) -> int:
    """Do this in a copy of this process: to start a new one would take seconds."""
    pid = os.fork()
    if pid:
        return pid
    try:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        work()
        os._exit(0)
    except BaseException:
        os._exit(1)


def killed_in_a_write(number: int) -> None:
    """From now on, this process kills itself in its n-th write: before it, or after it, or with half of it done."""
    count = 0

    def dying(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count == number:
                if number % 2:
                    function(*args, **kwargs)
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    os.replace, os.fsync, os.ftruncate = dying(os.replace), dying(os.fsync), dying(os.ftruncate)
    os.unlink = dying(os.unlink)


def endure(name: str, fed: fedkin.Federation, folder: Path, kills: int, seed: int) -> dict[str, int]:
    """Kill runs so many times; returns how many there were of each kind. Raises if one goes on to other bits."""
    rng = random.Random(seed)
    made = fedkin.method(name, **SYSTEMS[name])

    def run(out: Path, before: Callable[[], None] = lambda: None) -> int:
        return forked(lambda: (before(), fedkin.run(made, fed, out=out, **SETTINGS)))

    begin = time.monotonic()
    assert os.waitpid(run(folder / "straight"), 0)[1] == 0
    seconds = time.monotonic() - begin
    expected = files(folder / "straight")
    done = {"run": 0, "write": 0, "worker": 0}
    number = 0
    while sum(done.values()) < kills:
        number += 1
        out = folder / f"run-{number}"
        for _ in range(4):  # a run that is killed again and again
            kind = rng.choice(list(done))
            nth = rng.randrange(1, 60)
            pid = run(out, (lambda nth=nth: killed_in_a_write(nth)) if kind == "write" else lambda: None)
            if kind != "write":
                time.sleep(rng.uniform(0, seconds))
                members = family(pid)
                victim = rng.choice(members[1:] or members) if kind == "worker" else pid
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                kind = "run" if victim == pid else kind
            status = os.waitpid(pid, 0)[1]
            assert status in (0, signal.SIGKILL), f"{name}, {kind}: it ended with {status}"
            done[kind] += status != 0 or kind == "worker"
            if status == 0:
                break
        pid = run(out)
        workers = family(pid)[1:]
        assert os.waitpid(pid, 0)[1] == 0, f"{name} cannot go on in {out}"
        wait_until_gone(workers)
        assert files(out) == expected, f"{name} went on to other bits in {out}"
        assert not [p for p in out.rglob(".*") if p.name != ".fedkin"], "something half-written was left"
    return done


def test_a_few_kills(fed, tmp_path):
    done = endure("ditto", fed, tmp_path, kills=6, seed=1)
    assert sum(done.values()) >= 6


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SYSTEMS)
def test_many_kills(fed, tmp_path, name):
    """20 for each of five systems and the method with private states, of every kind."""
    done = endure(name, fed, tmp_path, kills=20, seed=len(name))
    print(name, done)
    assert all(done.values())
