"""`fedkin demo`: who gains from learning together? A comparison on local data, and its page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedkin.cli import compare, report
from fedkin.cli import flags as parsing
from fedkin.cli.flags import UserError

# what is compared, and on which data: the hospitals of `heart` if its files are present, else built-in data
HEART = (
    "local fedavg fedavg-ft fedper fedcedar-soft,clusters=2 pflic,clusters=2 pfedgat-v2 "
    "--data heart --metrics auc accuracy --rounds 20 --fresh"
)
DIGITS = (
    "local fedavg fedavg-ft fedcedar pflic pfedgat-v2 dcpfl "
    "--data digits --partition dirichlet --partition.alpha 0.2 --clients 20 --rounds 20 --epochs 2 --fresh"
)


@dataclass(frozen=True)
class DemoFlags:
    out: Path = Path("runs/demo")
    """Folder for the runs and the report."""


def command(words: list[str]) -> int:
    about = (
        "Compare seven methods and write a report in under a minute: on the four hospitals of UCI Heart Disease if the "
        "files are present, else on scikit-learn's digits, spread over 20 clients."
    )
    flags, extra = parsing.parse_one(words, DemoFlags(), "fedkin demo", about)
    if extra:
        raise UserError(f"demo does not take '{extra[0]}', only --out DIR.")
    out = str(flags.out)
    from fedkin.data import heart

    chosen = HEART if heart.at_hand() else DIGITS
    return compare.command([*chosen.split(), "--out", out]) or report.command([out])
