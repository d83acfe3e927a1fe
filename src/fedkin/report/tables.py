"""Format numbers and tables for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"


def score(value: float | None, *, in_percent: bool = True) -> str:
    """A value of the headline metric: a fraction in percent, another number with four digits."""
    if value is None or in_percent:
        return percent(value)
    return f"{value:.4g}"


def with_spread(mean: float | None, std: float | None, *, in_percent: bool = True) -> str:
    if mean is None or std is None:
        return score(mean, in_percent=in_percent)
    return f"{score(mean, in_percent=in_percent)} ± {score(std, in_percent=in_percent)}"


def some(names: Sequence[str], limit: int = 8) -> str:
    """The first names, and how many more there are."""
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")


def size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def terminal(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> Table:
    table = Table(title=title, caption=caption or None, title_justify="left", caption_justify="left")
    for i, name in enumerate(header):
        table.add_column(name, justify="left" if i == 0 else "right", no_wrap=i == 0)
    for row in rows:
        table.add_row(*row)
    return table


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [list(header), ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"
