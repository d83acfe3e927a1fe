"""Does a change keep the results? Runs ten methods with the code of a commit and with the code here, and compares.

    python scripts/same_histories.py 98adfb7

Every record of `history.jsonl` must be the same to the bit: times are not in it. The exit code is 1 if one differs.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
METHODS = ("local", "fedavg", "fedprox", "ditto", "fedrep", "ifca", "fedcedar", "pflic", "pfedgat", "dcpfl")
FLAGS = ("--data", "digits", "--clients", "8", "--participation", "0.7", "--evaluate-every", "2", "--quiet", "--fresh")


def code_of(commit: str, folder: Path) -> Path:
    """The folder `src` of a commit, unpacked."""
    packed = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


def history(source: Path, method: str, rounds: int, out: Path) -> list[str]:
    """The records of a run with this code."""
    command = [sys.executable, "-m", "fedkin", "run", method, *FLAGS, "--rounds", str(rounds), "--out", str(out)]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return (out / "history.jsonl").read_text().splitlines()


def difference(before: list[str], after: list[str]) -> str:
    """The first difference of two histories in words; empty if there is none."""
    for number, (old, new) in enumerate(zip(before, after), 1):
        if old != new:
            return f"record {number} was {old} and is {new}"
    return f"{len(before)} records became {len(after)}" if len(before) != len(after) else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("methods", nargs="*", default=METHODS)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    different = 0
    with tempfile.TemporaryDirectory() as name:
        old = code_of(given.commit, Path(name))
        for method in given.methods:
            before = history(old, method, given.rounds, Path(name) / "before")
            after = history(ROOT / "src", method, given.rounds, Path(name) / "after")
            found = difference(before, after)
            different += bool(found)
            print(f"{method}: {found or f'{len(after)} records, all the same'}", flush=True)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
