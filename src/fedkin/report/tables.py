"""Format numbers and tables for the terminal, and as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv as csv_module
import io
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

LATEX = {"\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"} | {
    c: f"\\{c}" for c in "&%$#_"
}
LATEX |= {"±": r"$\pm$", "–": "--", "−": "$-$", "·": r"$\cdot$", "×": r"$\times$", "≤": r"$\leq$", "≥": r"$\geq$"}
LATEX |= {"…": r"\ldots{}"}
GREEK = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu"
GREEK += " nu xi pi rho sigma tau upsilon phi chi psi omega"
LATEX |= {letter: f"$\\{name}$" for letter, name in zip("αβγδεζηθικλμνξπρστυφχψω", GREEK.split(), strict=True)}
TILDE = re.compile(r"\$(\\\w+)\$\u0303|(\w)\u0303")  # a combining tilde after a letter
WIDE = 70  # characters in a line of a page; in a wider table, titles longer than their cells are set in lines of …
NARROW = 9  # … characters
MINUS = re.compile(r"(?<![\w.-])-(?=\d)")


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


def stacked(
    header: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> list[tuple[list[str], list[list[str]]]]:
    """A table too wide for the terminal as several that fit, one below the other, each with the first column."""
    first, *sizes = [max(map(cell_len, column)) + 3 for column in zip(header, *rows)]  # two spaces and a border
    groups: list[list[int]] = []
    left = 0
    for i, size in enumerate(sizes, 1):
        if not groups or size > left:
            groups.append([])
            left = width - 1 - first
        groups[-1].append(i)
        left -= size
    return [([header[0], *(header[i] for i in g)], [[r[0], *(r[i] for i in g)] for r in rows]) for g in groups]


def show(
    console: Console,
    title: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    caption: str = "",
    *,
    wide: bool = False,
) -> None:
    """Print a table: stacked where the console is too narrow for it, or with `wide` however wide it gets."""
    parts = [(header, rows)] if wide else stacked(header, rows, console.width)
    for i, part in enumerate(parts, 1):
        last = i == len(parts)
        table = terminal(f"{title} ({i} of {len(parts)})" if len(parts) > 1 else title, *part, caption if last else "")
        before = console.width
        if wide:
            console.width = max(before, console.measure(table, options=console.options.update(width=10_000)).maximum)
        console.print(table)
        console.width = before


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [list(header), ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table for other programs. Give numbers in full precision; None is an empty cell."""
    file = io.StringIO()
    writer = csv_module.writer(file, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return file.getvalue()


def latex(header: Sequence[str], rows: Sequence[Sequence[str]], bold: Collection[tuple[int, int]] = ()) -> str:
    """A tabular for the package booktabs; `bold` holds (row, column) of the cells to stand out."""
    widest = [max((len(row[i]) for row in rows), default=0) for i in range(len(header))]
    broken = sum(max(len(title), cells) + 2 for title, cells in zip(header, widest)) > WIDE
    titles = [_title(t, "r" if i else "l", widest[i]) if broken else escaped(t) for i, t in enumerate(header)]
    lines = [r"\begin{tabular}{l" + "r" * (len(header) - 1) + "}", r"\toprule"]
    lines += [" & ".join(titles) + r" \\", r"\midrule"]
    lines += [latex_line(row, [j for at, j in bold if at == i]) for i, row in enumerate(rows)]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def latex_line(cells: Sequence[str], bold: Collection[int] = ()) -> str:
    texts = [MINUS.sub("$-$", escaped(cell)) for cell in cells]
    return " & ".join(rf"\textbf{{{text}}}" if j in bold else text for j, text in enumerate(texts)) + r" \\"


def _title(text: str, side: str, cells: int) -> str:
    """A column's title; a long one is broken at spaces and after hyphens and slashes, but not in parentheses."""
    limit = max(NARROW, cells)
    if len(text) <= limit:
        return escaped(text)
    lines = [""]
    for part in re.findall(r"\([^)]*\)\s?|[^\s/-]+(?:\s%\s?|[\s/-])?|[\s/-]", text):
        if lines[-1] and len(lines[-1] + part.rstrip()) > limit:
            lines.append("")
        lines[-1] += part
    if len(lines) == 1:
        return escaped(text)
    return rf"\shortstack[{side}]{{\strut " + r"\\".join(escaped(line.strip()) for line in lines) + "}"


def escaped(text: str) -> str:
    """Text as pdflatex shows it: special characters, signs and Greek letters."""
    plain = "".join(LATEX.get(character, character) for character in text)
    return TILDE.sub(lambda found: rf"$\tilde{{{found[1] or found[2]}}}$", plain)
