"""Ctrl-C, SIGTERM and SIGHUP: a clean stop that says how to go on. Nothing is left behind but the run's folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedkin.results.history import History
from tests.engine.test_resume import files
from tests.processes import family, needs_linux, wait_until_gone

pytestmark = [pytest.mark.processes, needs_linux]

# `fedkin run` with a line for each round, so that the test knows where the run is
SCRIPT = """
import sys
from fedkin.cli import main
from fedkin.engine.progress import Terminal

def said(self, round, metrics):
    print("round", round, flush=True)

Terminal.round = said
main(sys.argv[1:])
"""
FLAGS = [
    "ditto",
    "--data",
    "digits",
    "--clients",
    "6",
    "--samples-per-client",
    "40",
    "--workers",
    "2",
    "--checkpoint-every",
    "1",
]


@pytest.fixture
def start(spawn, tmp_path) -> Callable[..., subprocess.Popen[str]]:
    """A run, with the flags given and a folder of its own for temporary files."""
    (tmp_path / "tmp").mkdir()

    def start(
        *words: object, before: tuple[str, ...] = (), script: str = SCRIPT, **options: Any
    ) -> subprocess.Popen[str]:
        return spawn(
            [*before, sys.executable, "-c", script, "run", *FLAGS, *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
            # a run started by nohup or in the background goes on after SIGHUP or Ctrl-C; these are not, even where the
            # tests are
            preexec_fn=_default_signals,
            **options,
        )

    return start


def _default_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def wait_for(process: subprocess.Popen[str], round: int) -> None:
    assert process.stdout is not None
    while (line := process.stdout.readline()) != f"round {round}\n":
        assert line, process.stderr.read() if process.stderr else ""


def shared_memory(pids: list[int]) -> set[Path]:
    """Named shared memory that these processes use."""
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    return {Path(line.split(maxsplit=5)[5]) for line in lines if "/dev/shm/" in line}


def unfinished(folder: Path) -> list[Path]:
    """What somebody was writing in a run's folder, and did not finish."""
    return [path for path in folder.rglob(".*") if path.name != ".fedkin"]


@pytest.mark.parametrize(
    ("number", "keep"),
    [(signal.SIGINT, True), (signal.SIGTERM, True), (signal.SIGHUP, True), (signal.SIGTERM, False)],
    ids=lambda value: value.name if isinstance(value, signal.Signals) else "in a folder" if value else "without one",
)
def test_a_clean_stop(start, tmp_path, number, keep):
    process = start("--rounds", 2000, *(["--out", tmp_path / "run"] if keep else []))
    wait_for(process, 3)
    workers = family(process.pid)[1:]
    assert len(workers) >= 2
    used = shared_memory([process.pid, *workers])
    process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode == 128 + number
    resumes = "Stopped. The same command with the same --out resumes from the last checkpoint."
    assert (resumes if keep else "Stopped. Nothing is kept without --out: with --out FOLDER,") in err
    assert "Traceback" not in err
    wait_until_gone(workers)
    assert not list((tmp_path / "tmp").glob("*fedkin*"))
    assert not [path for path in used if path.exists()]
    if keep:
        assert not unfinished(tmp_path / "run")


# A worker that writes a client's state stops just before the file gets its name, and says so
WRITING = """
import os, time
from fedkin.results import files

parent, replace = os.getpid(), os.replace

def stuck(source, target):
    if os.getpid() != parent:
        os.write(1, b"writing\\n")
        time.sleep(3600)
    replace(source, target)

files.os.replace = stuck
"""


def test_a_stop_while_workers_write(start, tmp_path):
    """Ctrl-C reaches every process of the terminal, and whoever is impatient presses it again and again."""
    process = start("--rounds", 2000, "--out", tmp_path / "run", script=WRITING + SCRIPT, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    workers = family(process.pid)[1:]
    assert unfinished(tmp_path / "run"), "a worker is writing"
    os.killpg(process.pid, signal.SIGINT)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) * 20:
        process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode - 128 in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP), err  # they come in any order
    assert "Stopped. The same command with the same --out resumes from the last checkpoint." in err
    assert "Traceback" not in err
    wait_until_gone(workers)
    assert not unfinished(tmp_path / "run")


def test_a_stopped_run_goes_on_with_the_same_bits(start, tmp_path):
    process = start("--rounds", 12, "--out", tmp_path / "stopped")
    wait_for(process, 3)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    for name in ("stopped", "straight"):
        process = start("--rounds", 12, "--out", tmp_path / name)
        process.communicate()
        assert process.returncode == 0
    assert files(tmp_path / "stopped") == files(tmp_path / "straight")


def test_nohup_stays_in_force(start):
    process = start("--rounds", 8, before=("nohup",))
    wait_for(process, 2)
    process.send_signal(signal.SIGHUP)
    process.communicate()
    assert process.returncode == 0


def test_two_processes_at_once(start, tmp_path):
    """The second is refused and the first is not disturbed."""
    first = start("--rounds", 100_000, "--out", tmp_path / "run")
    wait_for(first, 1)
    for flags in ([], ["--fresh"]):
        second = start("--rounds", 100_000, "--out", tmp_path / "run", *flags)
        _, err = second.communicate()
        assert second.returncode == 2
        assert f"is in use by another fedkin (process {first.pid} on" in err
    assert first.stdout is not None
    assert first.stdout.readline().startswith("round "), "the first goes on"
    first.send_signal(signal.SIGTERM)
    first.communicate()
    assert first.returncode == 128 + signal.SIGTERM
    records = [*History.load(tmp_path / "run")]
    rounds = [record.round for record in records if record.metric == "bytes_up" and record.client == 0]
    assert rounds == list(range(1, max(rounds) + 1)), "nobody else has written to its history"


ORPHAN = """
import os, sys, time
from dataclasses import dataclass
import fedkin
from fedkin.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Slow(FedAvg):
    def local(self, client, message):
        print(os.getpid(), flush=True)
        time.sleep(3600)

fed = fedkin.federate("digits", clients=2, samples_per_client=40)
fedkin.run(Slow(), fed, rounds=1, workers=1, out=sys.argv[1])
"""


def test_a_worker_does_not_outlive_its_killed_parent(spawn, tmp_path):
    """Not even in the middle of a client's work: it would write into the folder of the next run."""
    process = spawn([sys.executable, "-c", ORPHAN, tmp_path / "run"], stdout=subprocess.PIPE, text=True)
    worker = int(process.stdout.readline())
    process.kill()
    wait_until_gone([worker])
