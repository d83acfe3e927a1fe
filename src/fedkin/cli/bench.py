"""`fedkin bench`: our own leaderboard."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedkin.cli import flags as parsing


@dataclass(frozen=True)
class Bench:
    data: str = ""
    """Data sets, separated by commas; by default all: fashion-mnist, cifar10, har."""
    partitions: str = ""
    """Partitions, separated by commas; by default all: iid, pathological, dirichlet, and natural for har."""
    methods: str = ""
    """Methods, separated by commas; by default all."""
    seeds: int = 1
    """Number of seeds."""
    out: Path = Path("runs/bench")
    """Folder for the runs and the leaderboard."""
    workers: int = 0
    """Number of runs side by side; 0 means one for each core."""


def command(words: list[str]) -> int:
    about = "Rank all methods at one fixed budget. Finished runs are not repeated."
    flags = parsing.parse_one(words, Bench, "fedkin bench", about)
    from fedkin.cli.terminal import console
    from fedkin.experiments.bench import bench

    bench(
        data=_names(flags.data),
        partitions=_names(flags.partitions),
        methods=_names(flags.methods),
        seeds=flags.seeds,
        out=flags.out,
        workers=flags.workers,
        console=console(),
    )
    return 0


def _names(given: str) -> list[str]:
    return [word for word in given.split(",") if word]
