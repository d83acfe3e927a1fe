"""`fedkin demo`: who gains from learning together? A comparison on embedded data, and its page."""

from __future__ import annotations

from fedkin.cli import compare, report
from fedkin.cli import flags as parsing

METHODS = ("local", "fedavg", "fedavg-ft", "fedcedar", "pflic", "pfedgat-v2", "dcpfl")
FLAGS = "--data digits --partition dirichlet --partition.alpha 0.2 --clients 20 --rounds 20 --epochs 2 --fresh"


def command(words: list[str]) -> int:
    if words and words[0] in ("-h", "--help"):
        print(
            "usage: fedkin demo [--out DIR]\n\nCompare methods on scikit-learn's digits, 20 clients, in under a minute."
        )
        return 0
    out = parsing.given(words, "out", "runs/demo")
    return compare.command([*METHODS, *FLAGS.split(), "--out", out]) or report.command([out])
