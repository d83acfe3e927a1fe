"""Runs killed by SIGKILL at random instants: in a round, in the middle of a write, by a dying worker.

Each of them goes on to the bits of the run that was never killed.
"""

from __future__ import annotations

import contextlib
import io
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
from fedkin.results import history, store
from tests.engine.test_resume import files
from tests.processes import family, needs_linux, wait_until_gone

pytestmark = [pytest.mark.processes, needs_linux]

CLIENTS: dict[str, Any] = {"data": "digits", "clients": 6, "samples_per_client": 40, "seed": 2}
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
    "pfedgat": {},
    "dcpfl": {"tau": 1, "start_rounds": 2, "window": 1, "patience": 1},
    "kin": {},
    "ditto": {},  # private states
}
KILLS = 18  # of each method


@pytest.fixture(scope="module")
def fed() -> fedkin.Federation:
    return fedkin.federate(**CLIENTS)


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


def killed_in_a_write(number: int, died: Path) -> None:
    """From now on, this process or one of its workers kills itself in its n-th write: before it, or after it, or with
    half of it done. `died` is a file that is there afterwards: workers count by themselves, and only one may die."""
    count = 0

    def due() -> bool:
        nonlocal count
        count += 1
        if count != number:
            return False
        try:
            os.close(os.open(died, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    class Half(io.FileIO):
        """A file that dies with half of the n-th content written."""

        def write(self, content: Any) -> int:
            if due():
                super().write(bytes(content)[: len(content) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return super().write(content)

    def opened(path: Path, mode: str = "r") -> Any:
        if "b" not in mode or ("w" not in mode and "+" not in mode):
            return open(path, mode)
        return io.BufferedRandom(Half(path, mode)) if "+" in mode else io.BufferedWriter(Half(path, mode))

    def dying(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if due():
                if number % 2:
                    function(*args, **kwargs)
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    os.replace, os.fsync, os.ftruncate = dying(os.replace), dying(os.fsync), dying(os.ftruncate)
    os.unlink = dying(os.unlink)
    store.open = history.open = opened  # type: ignore[attr-defined]


def endure(name: str, fed: fedkin.Federation, folder: Path, kills: int, seed: int) -> dict[str, int]:
    """Kill runs so many times, at least once in each way; returns how many there were of each, and of runs.

    Raises if one goes on to other bits.
    """
    rng = random.Random(seed)
    made = fedkin.method(name, **SYSTEMS[name])

    def run(out: Path, before: Callable[[], None] = lambda: None) -> int:
        return forked(lambda: (before(), fedkin.run(made, fed, out=out, **SETTINGS)))

    folder.mkdir(exist_ok=True)
    fedkin.run(
        made, fed, **{**SETTINGS, "rounds": 1, "engine": "serial", "faults": ""}
    )  # what it imports, once for all
    begin = time.monotonic()
    assert os.waitpid(run(folder / "straight"), 0)[1] == 0
    seconds = time.monotonic() - begin
    expected = files(folder / "straight")
    done = {"run": 0, "write": 0, "worker": 0}
    number = 0
    while sum(done.values()) < kills or not all(done.values()):
        number += 1
        out = folder / f"run-{number}"
        for _ in range(4):  # a run that is killed again and again
            kind = rng.choice(list(done))
            nth = rng.randrange(1, 90)
            died = folder / "died"
            died.unlink(missing_ok=True)
            pid = run(
                out, (lambda nth=nth, died=died: killed_in_a_write(nth, died)) if kind == "write" else lambda: None
            )
            if kind != "write":
                time.sleep(rng.uniform(0, seconds))
                members = family(pid)
                victim = rng.choice(members[1:] or members) if kind == "worker" else pid
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                kind = "run" if victim == pid else kind
            status = os.waitpid(pid, 0)[1]
            assert status in (0, signal.SIGKILL), f"{name}, {kind}: it ended with {status}"
            done[kind] += status != 0 or kind == "worker" or died.exists()
            if status == 0:
                break
        pid = run(out)
        workers = family(pid)[1:]
        assert os.waitpid(pid, 0)[1] == 0, f"{name} cannot go on in {out}"
        wait_until_gone(workers)
        assert files(out) == expected, f"{name} went on to other bits in {out}"
        assert not [p for p in out.rglob(".*") if p.name != ".fedkin"], "something half-written was left"
    return {**done, "runs": number}


def test_a_few_kills(fed, tmp_path):
    done = endure("ditto", fed, tmp_path, kills=6, seed=1)
    assert done["run"] + done["write"] + done["worker"] >= 6


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SYSTEMS)
def test_many_kills(fed, tmp_path, name):
    """More than 100 in all, of every kind: FedAvg, the four systems, kin, and a method with private states."""
    done = endure(name, fed, tmp_path, kills=KILLS, seed=len(name))
    assert done["run"] + done["write"] + done["worker"] >= KILLS
