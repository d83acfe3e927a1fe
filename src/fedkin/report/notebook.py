"""How results are displayed in a notebook: small tables and pictures as HTML and SVG, without scripts.

Text is escaped, colors follow the notebook's theme, and nothing is loaded from anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from fedkin.report import tables
from fedkin.report.words import partition_words
from fedkin.results.history import ALL, PARTICIPANTS, History

BLUE, ORANGE = "#0072B2", "#D55E00"
MOST_ROWS = 20  # lines of a table; the rest is counted
MOST_CLIENTS = 100  # clients of a heat map
SHADES = 16
Matrix = Sequence[Sequence[float | None]]

KEEP = "not kept; to keep it, run it with <code>out=FOLDER</code>"


# ---- building blocks
def table(header: Sequence[str], rows: Sequence[Sequence[object]], *, best: int | None = None) -> str:
    """A table; `best` is the index of a row to print in bold."""
    head = "".join(f'<th style="text-align:{_side(i)}">{escape(name)}</th>' for i, name in enumerate(header))
    body = []
    for number, row in enumerate(rows[:MOST_ROWS]):
        weight = ";font-weight:bold" if number == best else ""
        cells = (f'<td style="text-align:{_side(i)}{weight}">{escape(str(cell))}</td>' for i, cell in enumerate(row))
        body.append(f"<tr>{''.join(cells)}</tr>")
    more = len(rows) - MOST_ROWS
    if more > 0:
        body.append(f'<tr><td colspan="{len(header)}" style="text-align:left">and {more} more</td></tr>')
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _side(column: int) -> str:
    return "left" if column == 0 else "right"


def heat_map(matrix: Matrix, title: str, *, across: str, down: str, size: int = 240) -> str:
    """Cells from white to blue; the largest value is the darkest. Cells of one shade are one path, to stay small."""
    largest = max((value or 0.0 for row in matrix for value in row), default=0.0) or 1.0
    shades: dict[int, list[str]] = {}
    for y, row in enumerate(matrix):
        for x, value in enumerate(row):
            if shade := round(SHADES * (value or 0.0) / largest):
                shades.setdefault(shade, []).append(f"M{x} {y}h1v1h-1z")
    paths = "".join(
        f'<path d="{"".join(cells)}" fill="{BLUE}" fill-opacity="{shade / SHADES:.3g}"/>'
        for shade, cells in sorted(shades.items())
    )
    columns, lines = len(matrix[0]) if matrix else 1, len(matrix) or 1
    wide = size if columns >= lines else round(size * columns / lines)
    high = max(40, round(wide * lines / columns))
    return (
        f'<figure style="display:inline-block;margin:4px 16px 4px 0"><svg role="img" aria-label="{escape(title)}" '
        f'width="{wide}" height="{high}" viewBox="0 0 {columns} {lines}" preserveAspectRatio="none" '
        f'style="border:1px solid currentColor">{paths}</svg>'
        f"<figcaption>{escape(title)}: {escape(down)} down, {escape(across)} across</figcaption></figure>"
    )


def curves(series: Mapping[str, Mapping[int, float]], title: str, *, percent: bool) -> str:
    """Lines by round, with the range of both axes."""
    points = {name: dict(sorted(line.items())) for name, line in series.items() if line}
    if not points:
        return ""
    rounds = [r for line in points.values() for r in line]
    values = [v for line in points.values() for v in line.values()]
    (first, last), (low, high) = (min(rounds), max(rounds)), (min(values), max(values))
    width, height = 300, 130

    def point(round: int, value: float) -> str:
        x = 40 + (width - 50) * (round - first) / max(1, last - first)
        y = height - 22 - (height - 34) * (value - low) / ((high - low) or 1)
        return f"{x:.1f},{y:.1f}"

    lines, names = [], []
    for (name, line), (color, dash) in zip(points.items(), ((BLUE, "none"), (ORANGE, "5 3")), strict=False):
        corners = " ".join(point(r, v) for r, v in line.items())
        style = f'stroke="{color}" stroke-width="1.5" stroke-dasharray="{dash}"'
        lines.append(f'<polyline points="{corners}" fill="none" {style}/>')
        names.append(f'<span style="color:{color}">{"━" if dash == "none" else "╍"} {escape(name)}</span>')

    def word(x: int, y: int, text: str, anchor: str = "start") -> str:
        return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="currentColor" font-size="10">{escape(text)}</text>'

    def number(value: float) -> str:
        return tables.percent(value) if percent else f"{value:.4g}"

    axes = f'<path d="M40 8V{height - 20}H{width - 8}" fill="none" stroke="currentColor" stroke-width="0.8"/>'
    words = word(36, 14, number(high), "end") + word(36, height - 22, number(low), "end")
    words += word(40, height - 6, f"round {first}") + word(width - 8, height - 6, str(last), "end")
    return (
        f'<figure style="display:inline-block;margin:4px 16px 4px 0"><svg role="img" aria-label="{escape(title)}" '
        f'width="{width}" height="{height}" viewBox="0 0 {width} {height}">{axes}{"".join(lines)}{words}</svg>'
        f"<figcaption>{escape(title)}: {' '.join(names)}</figcaption></figure>"
    )


def _line(text: str) -> str:
    return f"<div>{text}</div>"


# ---- what is displayed
def comparison(found: Any) -> str:
    """A comparison: its table, the best method in bold."""
    scores = [line.personal if found.higher_is_better else -line.personal for line in found.lines]
    best = scores.index(max(scores)) if scores else None
    return _line(escape(found.setting)) + table(found.header, found.rows, best=best)


def federation(found: Any) -> str:
    """A federation: its clients and, where there are classes, their labels."""
    about = found.description
    spread = partition_words(about.get("partition"))
    facts = [f"{len(found)} clients", f"data {about.get('data', 'own')}", f"partition: {spread}"]
    if found.mean_kld is not None:
        facts.append(f"mean pairwise KLD of labels {found.mean_kld:.2f}")
    rows = [
        (name, len(split.train), len(split.validation), len(split.test))
        for name, split in zip(found.names, found.splits)
    ]
    out = _line(escape(", ".join(facts))) + table(("client", "train", "validation", "test"), rows)
    if found.classes:
        counts = found.counts[:MOST_CLIENTS].tolist()
        title = f"training examples by label (darkest: {max(map(max, counts))})"
        out += heat_map(counts, title, across="labels", down="clients")
    return out


def history(found: History, *, percent: bool | None = None) -> str:
    """A history: what is in it, and the mean scores by round."""
    records, rounds, means = _read(found)
    facts = f"{records:,} records" + (f", rounds {min(rounds)} to {max(rounds)}" if rounds else "")
    lines = {name: {r: value for r, (value, _) in means[name].items()} for name in ("personal", "received")}
    if percent is None:  # the history does not say what kind its scores are
        percent = all(0 <= value <= 1 for line in lines.values() for value in line.values())
    evaluated = sorted(set().union(*means.values()), reverse=True)
    rows = [
        (r, *(_score(means[name].get(r), percent) for name in lines), _score(means["personal_loss"].get(r), False),
         "all" if _everybody(means["personal"].get(r)) else "some")
        for r in evaluated
    ]  # fmt: skip
    header = ("round", "personal", "received", "loss", "clients")
    return _line(facts) + curves(lines, "mean over clients", percent=percent) + table(header, rows)


def run(found: Any) -> str:
    """A run: headline numbers, learning curve, and who learned from whom at the end."""
    summary = found.summary
    if not summary:  # the folder of a newcomer
        joined = found.config["joined"].items()
        expected = [(name, f"{value:.4g}" if isinstance(value, float) else str(value)) for name, value in joined]
        return _line(escape(repr(found).strip("<>"))) + table(("metric", "expected"), expected)
    headline = summary["headline"]
    percent = headline["percent"]
    name = f"{headline['metric']} %" if percent else headline["metric"]
    kinds = [(kind, summary[kind]) for kind in ("personal", "received") if kind in summary]
    columns = ("mean", "weighted", "std", "worst_decile")
    rows = [(kind, *(tables.score(s[key], in_percent=percent) for key in columns)) for kind, s in kinds]
    facts = [
        f"<b>{escape(str(summary['method']))}</b>",
        f"{summary['clients']} clients",
        f"{summary['rounds']} rounds",
        f"{tables.size(summary['bytes_down'])} down, {tables.size(summary['bytes_up'])} up",
    ]
    if summary.get("dropped"):
        facts.append(f"{summary['dropped']} replies dropped")
    kept = f"kept in <code>{escape(str(found.folder))}</code>" if found.folder is not None else KEEP
    _, _, means = _read(found.history)
    lines = {kind: {r: value for r, (value, _) in means[kind].items()} for kind in ("personal", "received")}
    out = _line(", ".join(facts)) + table((name, "mean", "weighted", "std", "worst 10 %"), rows)
    out += curves(lines, f"mean {headline['metric']} by round", percent=percent)
    return out + relation(found.history, len(found.clients)) + _line(kept)


def relation(found: History, clients: int) -> str:
    """The mixing matrix of the last round that has one, ordered by cluster; empty if the method has none."""
    if clients > MOST_CLIENTS:
        return ""
    last = _last(found.select("mixing"))
    if last is None:
        return ""
    value = last.value
    part, matrix = next(iter(value.items())) if isinstance(value, dict) else ("", value)
    labels = _last(found.select("clusters"))
    order = list(range(len(matrix)))
    if labels is not None and isinstance(labels.value, list) and len(labels.value) == len(order):
        order.sort(key=lambda c: (labels.value[c] is None, labels.value[c] or 0, c))
    title = f"who learns from whom, round {last.round}" + (f", {part}" if part else "")
    ordered = [[matrix[i][j] for j in order] for i in order]
    return heat_map(ordered, title, across="from client", down="client")


def _last(records: Iterable[Any]) -> Any:
    last = None
    for record in records:
        last = record if last is None or record.round >= last.round else last
    return last


def _read(found: History) -> tuple[int, set[int], dict[str, dict[int, tuple[float, str]]]]:
    """Number of records, their rounds, and mean scores by round with their scope, in one pass. Scores of all
    clients win over those of participants."""
    count, rounds = 0, set()
    values: dict[str, dict[tuple[int, str], list[float]]] = {"personal": {}, "received": {}, "personal_loss": {}}
    for record in found:
        count += 1
        rounds.add(record.round)
        if record.metric in values and record.scope in (ALL, PARTICIPANTS) and isinstance(record.value, float | int):
            values[record.metric].setdefault((record.round, record.scope), []).append(float(record.value))
    means: dict[str, dict[int, tuple[float, str]]] = {}
    for metric, by_scope in values.items():
        ordered = sorted(by_scope.items(), key=lambda item: item[0][1] == ALL)
        means[metric] = {r: (sum(v) / len(v), scope) for (r, scope), v in ordered}
    return count, rounds, means


def _score(found: tuple[float, str] | None, percent: bool) -> str:
    if found is None:
        return "–"
    return tables.percent(found[0]) if percent else f"{found[0]:.4g}"


def _everybody(found: tuple[float, str] | None) -> bool:
    return found is not None and found[1] == ALL
