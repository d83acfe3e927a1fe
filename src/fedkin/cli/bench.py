"""`fedkin bench`: fedkin's leaderboard."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedkin.cli import flags as parsing
from fedkin.cli.flags import UserError


@dataclass(frozen=True)
class BenchFlags:
    tracks: str = ""
    """Tracks, separated by commas; by default all."""
    methods: str = ""
    """Methods, separated by commas; by default all but variants such as fedcedar-as1."""
    out: Path = Path("runs/bench")
    """Folder for the runs and the leaderboard."""
    cells: Path | None = None
    """Folder of stored results; by default docs/results/cells if docs/results exists, else OUT/cells."""
    workers: int = 0
    """Number of parallel runs; 0 means one for each core."""
    status: bool = False
    """Show which runs are done and how many hours the others will take."""
    wide: bool = False
    """Show all columns of the table side by side, however wide it gets."""


def command(words: list[str]) -> int:
    about = "Rank all methods with one budget. Finished runs are not repeated."
    flags, extra = parsing.parse_one(words, BenchFlags(), "fedkin bench", about)
    if extra:
        raise UserError(f"bench does not take '{extra[0]}'. To choose methods: --methods {','.join(extra)}")
    from fedkin.cli.terminal import console
    from fedkin.experiments.bench import bench, known, show_status, store_of

    methods, tracks = _names(flags.methods), _names(flags.tracks)
    if flags.status:
        show_status(*known(methods, tracks), store_of(flags.cells, flags.out), console())
        return 0
    bench(
        tracks=tracks,
        methods=methods,
        out=flags.out,
        cells=flags.cells,
        workers=flags.workers,
        console=console(),
        wide=flags.wide,
    )
    return 0


def _names(given: str) -> list[str]:
    return [word for word in given.split(",") if word]
