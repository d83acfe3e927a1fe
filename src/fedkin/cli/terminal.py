"""What commands print to: a console, and tables that fit it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console


def console(width: int | None = None) -> Console:
    made = Console()
    if width is not None and not made.is_terminal:
        return Console(width=width)  # a pipe has no width: do not squeeze tables that cannot be narrowed
    return made


def fitting(
    header: Sequence[str], rows: Sequence[Sequence[str]], importance: Sequence[str], width: int
) -> tuple[list[str], list[list[str]]]:
    """The columns that fit into this width, in their order; the most important ones are taken first."""
    sizes = [max(cell_len(cell) for cell in column) for column in zip(header, *rows)]
    left = width - 1
    kept = set()
    for name in importance:
        at = header.index(name)
        needed = sizes[at] + 3  # a space on both sides and a border
        if needed <= left or at == 0:
            kept.add(at)
            left -= needed
    order = [i for i in range(len(header)) if i in kept]
    return [header[i] for i in order], [[row[i] for i in order] for row in rows]
