"""What goes wrong, and what fedkin does then: counts and outcomes for docs/reliability.md.

    python benchmarks/reliability.py [kills | drops | fuzz | load] ... [--quick]

Each part is measured, and what it found is stored in docs/results/reliability/PART.json. The page is then made from
what is stored, so that parts can be measured one by one. Without a part, only the page is made.

- kills: SIGKILL at random instants, of the run, of a worker and inside a write; each run goes on to the same bits.
- drops: accuracy with 30 % of the replies lost and with bad replies, beside the clean run.
- fuzz: random input to the command line, config files, data files, the wire codec, checkpoints and the report.
- load: memory and file handles over 2,000 rounds, 10,000 clients, 1,000 sites, the page of 10,000 rounds.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # the parts are the slow tests

import torch  # noqa: E402

import fedkin  # noqa: E402

STORED = ROOT / "docs" / "results" / "reliability"
PAGE = ROOT / "docs" / "reliability.md"
Found = dict[str, Any]


def kills(folder: Path, quick: bool) -> Found:
    from tests.engine.test_kills import CLIENTS, KILLS, SETTINGS, SYSTEMS, endure

    federation = fedkin.federate(**CLIENTS)
    methods = {}
    for name in SYSTEMS:
        methods[name] = endure(name, federation, folder / name, kills=2 if quick else KILLS, seed=len(name))
        print(name, methods[name], flush=True)
    return {"methods": methods, "clients": CLIENTS, "settings": SETTINGS}


def fuzz(folder: Path, quick: bool) -> Found:
    """A case that fails raises, and nothing is stored: so what is stored are cases that worked or were refused."""
    from tests.fuzz.harness import hunt
    from tests.fuzz.targets import TARGETS
    from tests.fuzz.test_fuzz import MANY

    tempfile.tempdir = str(folder)
    targets = {}
    for name, (about, target, values, share) in TARGETS.items():
        found = hunt(target, values, max(1, round(share * (100 if quick else MANY))))
        targets[name] = {"about": about, **found}
        print(name, dict(found), flush=True)
    return {"targets": targets}


PARTS: dict[str, Callable[[Path, bool], Found]] = {"kills": kills, "fuzz": fuzz}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART")
    parser.add_argument("--quick", action="store_true", help="a few cases of each part, to see that they work")
    flags = parser.parse_args()
    torch.set_num_threads(1)  # a copy of a process must not wait for threads that were not copied
    for part in flags.parts:
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="fedkin-reliability-") as folder:
            found = PARTS[part](Path(folder), flags.quick)
        found |= {
            "seconds": round(time.monotonic() - start),
            "fedkin": fedkin.__version__,
            "python": platform.python_version(),
            "date": time.strftime("%Y-%m-%d"),
        }
        if not flags.quick:
            STORED.mkdir(parents=True, exist_ok=True)
            (STORED / f"{part}.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
