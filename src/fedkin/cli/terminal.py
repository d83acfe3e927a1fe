"""The console that commands print tables to."""

from __future__ import annotations

from rich.console import Console


def console() -> Console:
    made = Console()
    return made if made.is_terminal else Console(width=160)  # a pipe has no width: do not squeeze tables into 80
