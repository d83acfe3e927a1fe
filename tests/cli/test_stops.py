"""Ctrl-C, SIGTERM and SIGHUP end tune, sweep, bench and watch: a word on how to go on, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes import family, needs_linux, wait_until_gone

pytestmark = [pytest.mark.processes, needs_linux]

# a fedkin command with a line on the real standard output for each round, so that the test knows where it is
SCRIPT = """
import os, sys
from fedkin.cli import main
from fedkin.engine.loop import Loop
from fedkin.experiments import bench
from fedkin.experiments.declare import Setting

bench.TRACKS = {"digits": bench.Track(Setting("digits", "iid", 4, 500, "mlp", examples=40))}
ordinary, count = Loop.round, [0]

def said(self, state, round):
    after = ordinary(self, state, round)
    count[0] += 1
    os.write(1, f"round {count[0]}\\n".encode())
    return after

Loop.round = said
main(sys.argv[1:])
"""
SMALL = ["--data", "digits", "--clients", "4", "--samples-per-client", "30", "--workers", "2", "--rounds", "2"]
SMALL += ["--checkpoint-every", "1"]
COMMANDS = {
    "tune": ["tune", "fedprox", "--budget", "4", *SMALL],
    "sweep": ["sweep", "fedprox", "--grid", "mu=0.1,0.5,1", *SMALL],
    "bench": ["bench", "--methods", "fedavg,local", "--tracks", "digits", "--workers", "1"],
}
RESUMES = "Stopped. The same command with the same --out resumes from the last checkpoint."
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def start(spawn, tmp_path) -> Callable[..., subprocess.Popen[str]]:
    (tmp_path / "tmp").mkdir()

    def start(*words: object) -> subprocess.Popen[str]:
        return spawn(
            [sys.executable, "-c", SCRIPT, *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
            preexec_fn=_default_signals,
        )

    return start


def _default_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def wait_for(process: subprocess.Popen[str], wanted: str) -> str:
    assert process.stdout is not None
    while wanted not in (line := process.stdout.readline()):
        assert line, process.stderr.read() if process.stderr else ""
    return line


def stopped(process: subprocess.Popen[str], number: signal.Signals) -> str:
    """Send the signal. When nothing of the process is left, return what it said at the end."""
    members = family(process.pid)[1:]
    process.send_signal(number)
    _, err = process.communicate()
    assert "Traceback" not in err
    wait_until_gone(members)
    return err


def left_over(folder: Path) -> list[Path]:
    """Files that somebody was writing, and locks."""
    hidden = [path for path in folder.rglob(".*") if path.name != ".fedkin"]
    return hidden + list(folder.rglob("*.lock"))


@pytest.mark.parametrize(
    ("command", "number"),
    [*(("tune", number) for number in SIGNALS), ("sweep", signal.SIGINT), ("bench", signal.SIGTERM)],
)
def test_a_clean_stop(start, tmp_path, command, number):
    """In the first run and, for commands with several small ones, in a later one."""
    process = start(*COMMANDS[command], "--out", tmp_path / "out")
    wait_for(process, "round 1\n" if command == "bench" else "round 3\n")
    err = stopped(process, number)
    assert process.returncode == 128 + number
    assert RESUMES in err
    assert not list((tmp_path / "tmp").iterdir())
    assert not left_over(tmp_path / "out")


@pytest.mark.parametrize(("command", "rounds"), [("tune", 8), ("sweep", 6)])
def test_a_stopped_search_goes_on_where_it_was(start, tmp_path, command, rounds):
    process = start(*COMMANDS[command], "--out", tmp_path / "stopped")
    wait_for(process, "round 3\n")
    stopped(process, signal.SIGTERM)
    done = {}
    for name in ("stopped", "straight"):
        process = start(*COMMANDS[command], "--out", tmp_path / name)
        out, err = process.communicate()
        assert process.returncode == 0, err
        done[name] = sum(line.startswith("round ") for line in out.splitlines())
    assert done["straight"] == rounds
    assert done["stopped"] <= rounds - 2, "what was finished is not repeated"
    tables = [(tmp_path / name / f"{command}.json").read_bytes() for name in ("stopped", "straight")]
    assert tables[0] == tables[1]


def test_without_a_folder_nothing_is_kept_and_that_is_said(start, tmp_path):
    process = start(*COMMANDS["tune"])
    wait_for(process, "round 3\n")
    err = stopped(process, signal.SIGTERM)
    assert "Stopped. Nothing is kept without --out: with --out FOLDER, the same command resumes." in err
    assert not list((tmp_path / "tmp").iterdir())


def test_watch_ends(start, tmp_path):
    process = start("run", "fedavg", *SMALL, "--out", tmp_path / "run")
    process.communicate()
    assert process.returncode == 0
    for number in SIGNALS:
        process = start("watch", tmp_path / "run", "--port", 0)
        wait_for(process, "http://127.0.0.1:")
        assert stopped(process, number) == ""
        assert process.returncode == 0
    assert not list((tmp_path / "tmp").iterdir())


def test_runs_in_processes_of_their_own_end_with_bench(start, tmp_path):
    words = [word if word != "1" else "2" for word in COMMANDS["bench"]]
    process = start(*words, "--out", tmp_path / "out")
    wait_for(process, "0")  # how many of the runs are done
    err = stopped(process, signal.SIGINT)
    assert process.returncode == 128 + signal.SIGINT
    assert RESUMES in err
    assert not list((tmp_path / "tmp").iterdir())
