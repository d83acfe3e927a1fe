"""`fedkin demo`: who gains from learning together? A comparison on embedded data, and its page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedkin.cli import compare, report
from fedkin.cli import flags as parsing
from fedkin.cli.flags import UserError

METHODS = ("local", "fedavg", "fedavg-ft", "fedcedar", "pflic", "pfedgat-v2", "dcpfl")
FLAGS = "--data digits --partition dirichlet --partition.alpha 0.2 --clients 20 --rounds 20 --epochs 2 --fresh"


@dataclass(frozen=True)
class DemoFlags:
    out: Path = Path("runs/demo")
    """Folder for the runs and the report."""


def command(words: list[str]) -> int:
    about = (
        "Compare seven methods on scikit-learn's digits, spread over 20 clients whose data differ, and write a report. "
        "It takes under a minute."
    )
    flags, extra = parsing.parse_one(words, DemoFlags(), "fedkin demo", about)
    if extra:
        raise UserError(f"demo takes no '{extra[0]}', only --out DIR.")
    out = str(flags.out)
    return compare.command([*METHODS, *FLAGS.split(), "--out", out]) or report.command([out])
