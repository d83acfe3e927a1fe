"""Figures of the papers from our runs, in one style that is readable in gray and by the color-blind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from fedkin.experiments import measures
from fedkin.experiments.declare import Cell, Measure, Run
from fedkin.report.figures import COLORS, DASHES, STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedkin.experiments.outcome import Outcome

BLACK, BLUE, RED, GREEN = COLORS[:4]
GRID: dict[Any, Any] = {"axes.grid": True, "axes.axisbelow": True, "grid.alpha": 0.25}


@contextmanager
def page(columns: int = 1, rows: int = 1, *, width: float = 4.2, height: float = 3.1) -> Iterator[tuple[Figure, Any]]:
    """A figure with its axes, without pyplot, so that no global state remains."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**STYLE, **GRID}):
        figure = Figure(figsize=(width * columns, height * rows))
        FigureCanvasAgg(figure)
        axes = figure.subplots(rows, columns, squeeze=False)
        yield figure, axes
        figure.canvas.draw()


def _there(outcome: Outcome) -> list[Cell]:
    return [c for c in outcome.item.cells if outcome.runs.get((c.row, c.column))]


def _columns(outcome: Outcome) -> list[str]:
    return list(dict.fromkeys(c.column for c in _there(outcome)))


def _runs(outcome: Outcome, cell: Cell) -> list[Run]:
    return outcome.runs[cell.row, cell.column]


def _empty(ax: Axes, why: str) -> None:
    ax.text(0.5, 0.5, why, ha="center", va="center", transform=ax.transAxes)
    ax.set_axis_off()


def _rounds(ax: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    ax.set_xlabel("round")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def bars(outcome: Outcome) -> Figure:
    """The headline measure: a panel for each column, ours as bars with intervals, the paper's as a tick."""
    measure = next(iter(outcome.item.measures))
    factor = 100 if outcome.item.measures[measure].style == "percent" else 1
    columns = _columns(outcome) or [""]
    wide = 2 if len(columns) == 4 else min(3, len(columns))
    rows = -(-len(columns) // wide)
    most = max((sum(c.column == column for c in _there(outcome)) for column in columns), default=1)
    with page(wide, rows, height=max(1.6, 0.26 * most + 0.9)) as (figure, axes):
        for ax in axes.flat[len(columns) :]:
            ax.set_axis_off()
        for ax, column in zip(axes.flat, columns):
            found = [c for c in _there(outcome) if c.column == column]
            if not found:
                _empty(ax, "nothing was run")
                continue
            numbers = [outcome.number(c.row, c.column, measure) for c in found]
            height = np.arange(len(found))[::-1]
            means = [factor * (n.mean if n.mean is not None else np.nan) for n in numbers]
            halves = [factor * (n.interval or 0.0) for n in numbers]
            ax.barh(height, means, xerr=halves, color="#9ecae1", error_kw={"lw": 1, "capsize": 2}, label="ours")
            papers = [(p, factor * n.paper) for p, n in zip(height, numbers) if n.paper is not None]
            if papers:
                ax.plot([v for _, v in papers], [p for p, _ in papers], "|", color="black", ms=9, mew=2, label="paper")
            ax.set_yticks(height, [c.row for c in found])
            ax.set_title(column)
            ax.set_xlabel(f"{measure} %" if factor == 100 else measure)
            ax.set_xlim(left=0)
            ax.grid(axis="y", visible=False)
        figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="upper right", ncols=2)
    return figure


def curves(outcome: Outcome, also: str = "", reduce: str = "mean", over: str = "rounds") -> Figure:
    """Over rounds, or over simulated time: mean over seeds as a line, their range as a band. A panel for each column;
    with `also`, a second row of panels for that metric."""
    columns = _columns(outcome) or [""]
    metrics = ["personal", *([also] if also else [])]
    with page(len(columns), len(metrics)) as (figure, axes):
        for line, metric in enumerate(metrics):
            for ax, column in zip(axes[line], columns):
                _curves(ax, outcome, column, metric, reduce, over)
                ax.set_title(column if line == 0 else "")
        legends = [ax.get_legend_handles_labels() for ax in axes[0]]
        alike = all(names == legends[0][1] for _, names in legends)
        if alike and len(columns) > 1:  # one legend for all panels: there is room beside the title
            figure.legend(*legends[0], loc="upper right", ncols=max(1, len(legends[0][1])), fontsize=8)
        else:
            for ax, (handles, names) in zip(axes[0], legends):
                ax.legend(handles, names, loc="best", fontsize=8)
    return figure


def _curves(ax: Axes, outcome: Outcome, column: str, metric: str, reduce: str, over: str) -> None:
    accuracy = metric == "personal"
    for cell, color, line in zip([c for c in _there(outcome) if c.column == column], cycle(COLORS), cycle(DASHES)):
        name = metric if reduce == "mean" else f"{metric}_std"
        drawn = [measures.curve(run, name) for run in _runs(outcome, cell)]
        x: Any = drawn[0][0]
        if over == "time":
            x = np.mean([measures.simulated_time(run) for run in _runs(outcome, cell)], 0)
        values = np.array([v for _, v in drawn]) * (100 if accuracy else 1)
        ax.plot(x, values.mean(0), linestyle=line, color=color, label=cell.row)
        if len(values) > 1:
            ax.fill_between(x, values.min(0), values.max(0), color=color, alpha=0.15, lw=0)
    if over == "time":
        ax.set_xlabel("simulated seconds")
    else:
        _rounds(ax)
    what = "accuracy %" if accuracy else "loss"
    ax.set_ylabel(what if reduce == "mean" else f"std over clients of {what}")


def events(outcome: Outcome, metric: str, label: str) -> Figure:
    """A metric that the method writes each round."""
    with page(width=5.5) as (figure, axes):
        ax = axes[0][0]
        for cell, color, line in zip(_there(outcome), cycle(COLORS), cycle(DASHES)):
            series = [dict(zip(*measures.events(run, metric))) for run in _runs(outcome, cell)]
            rounds = sorted(set.intersection(*(set(s) for s in series)))
            values = np.array([[s[r] for r in rounds] for s in series], float)
            ax.plot(rounds, values.mean(0), linestyle=line, color=color, label=cell.row)
            ax.fill_between(rounds, values.min(0), values.max(0), color=color, alpha=0.15, lw=0)
        _rounds(ax)
        ax.set_ylabel(label)
        ax.legend()
    return figure


def heat(outcome: Outcome) -> Figure:
    """Rows by columns, colored by the headline measure; columns named "panel, x" make one panel for each name."""
    measure = next(iter(outcome.item.measures))
    cells = _there(outcome)
    panels = list(dict.fromkeys(c.column.split(", ")[0] for c in cells)) or [""]
    with page(len(panels)) as (figure, axes):
        for ax, panel in zip(axes[0], panels):
            own = [c for c in cells if c.column.split(", ")[0] == panel]
            if not own:
                _empty(ax, "nothing was run")
                continue
            rows, columns = list(dict.fromkeys(c.row for c in own)), list(dict.fromkeys(c.column for c in own))
            table = np.full((len(rows), len(columns)), np.nan)
            for cell in own:
                mean = outcome.number(cell.row, cell.column, measure).mean
                table[rows.index(cell.row), columns.index(cell.column)] = np.nan if mean is None else 100 * mean
            drawn = ax.imshow(table, cmap="cividis", aspect="auto")
            for (i, j), value in np.ndenumerate(table):
                light = drawn.norm(value) < 0.5
                ax.text(j, i, f"{value:.1f}", ha="center", va="center", color="white" if light else "black", fontsize=8)
            ax.set_xticks(range(len(columns)), [c.split(", ")[1] for c in columns])
            ax.set_yticks(range(len(rows)), rows)
            ax.set_title(f"{panel}: {measure} %")
            ax.grid(visible=False)
    return figure


def lines(outcome: Outcome) -> Figure:
    """The headline measure over the rows (numbers after "="), a line for each column."""
    measure = next(iter(outcome.item.measures))
    with page(width=5.5) as (figure, axes):
        ax = axes[0][0]
        for column, color, line in zip(_columns(outcome), cycle(COLORS), cycle(DASHES)):
            own = [c for c in _there(outcome) if c.column == column]
            x = [float(c.row.split("=")[1]) for c in own]
            y = [100 * (outcome.number(c.row, c.column, measure).mean or np.nan) for c in own]
            ax.plot(x, y, linestyle=line, marker="o", color=color, label=column)
        ax.set_xlabel(outcome.item.cells[0].row.split("=")[0].strip())
        ax.set_ylabel(f"{measure} %")
        ax.legend()
    return figure


def scatter(outcome: Outcome, x: Measure, y: Measure, xlabel: str, ylabel: str) -> Figure:
    """A point for each run, with the spread over its clients."""
    with page(width=5.5) as (figure, axes):
        ax = axes[0][0]
        for cell, color in zip(_there(outcome), cycle(COLORS)):
            runs = _runs(outcome, cell)
            spread = [100 * (measures.spread_over_clients.of(run) or np.nan) for run in runs]
            values = [100 * (y.of(run) or np.nan) for run in runs]
            ax.errorbar([x.of(run) for run in runs], values, spread, fmt="o", color=color, capsize=2, label=cell.row)
        ax.set_xlabel(xlabel)
        ax.set_ylabel(f"{ylabel} %, std over clients")
        figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=8)
    return figure


def labels(outcome: Outcome) -> Figure:
    """Labels by clients, a disc for each share of examples."""
    cells = _there(outcome)
    with page(max(1, len(cells)), width=2.9, height=2.9) as (figure, axes):
        for ax, cell in zip(axes[0], cells):
            counts = measures.label_counts(_runs(outcome, cell)[0])
            clients, classes = np.nonzero(counts)
            ax.scatter(clients, classes, s=120 * counts[clients, classes] / counts.max(), color=BLUE, alpha=0.8)
            ax.set_title(cell.column)
            ax.set_xlabel("client")
            ax.set_ylabel("class")
    return figure


def mixing(outcome: Outcome) -> Figure:
    """Who learns from whom after the last round of the first seed; clients are ordered by their labels."""
    rows, columns = outcome.item.rows(), outcome.item.columns()
    with page(len(rows), len(columns), width=2.6, height=2.5) as (figure, axes):
        for (i, column), (j, row) in ((a, b) for a in enumerate(columns) for b in enumerate(rows)):
            ax = axes[i][j]
            runs = outcome.runs.get((row, column))
            if not runs:
                _empty(ax, "nothing was run")
                continue
            counts = measures.label_counts(runs[0])
            order = np.lexsort(counts.T[::-1])[::-1]
            matrix = measures.last_mixing(runs[0])[np.ix_(order, order)]
            drawn = ax.imshow(matrix, cmap="cividis", vmin=0)
            figure.colorbar(drawn, ax=ax, shrink=0.8)
            ax.set_title(f"{row}\n{column}", fontsize=8)
            ax.grid(visible=False)
            ax.set_xticks([])
            ax.set_yticks([])
    return figure


def discrepancy(outcome: Outcome) -> Figure:
    """Fig. 5: pairs of clients, KLD against discrepancy; and the tree of the first seed."""
    from scipy.cluster.hierarchy import dendrogram

    cells = _there(outcome)
    with page(max(1, len(cells)), 2, width=3.2, height=2.7) as (figure, axes):
        for column, cell in enumerate(cells):
            top, bottom = axes[0][column], axes[1][column]
            run = _runs(outcome, cell)[0]
            pairs = measures.discrepancy_pairs(run)
            if pairs is None:  # a smoke run ends before there is a tree
                _empty(top, "no tree yet")
                bottom.set_axis_off()
                continue
            top.plot(*pairs, ".", ms=3, alpha=0.4, color=BLUE)
            top.set_title(f"{cell.row}\n{cell.column}, r = {np.corrcoef(*pairs)[0, 1]:.2f}", fontsize=8)
            top.set_xlabel("KLD of the labels")
            top.set_ylabel("model discrepancy")
            tree = np.array(measures.events(run, "tree")[1][0], float)
            dendrogram(tree, ax=bottom, no_labels=True, color_threshold=0, above_threshold_color=BLUE)
            bottom.set_ylabel("discrepancy")
            bottom.grid(visible=False)
    return figure


def rapid_decrease(outcome: Outcome) -> Figure:
    """Fig. 6: the loss clients report, r(t), ends of rapid decrease periods, and trials of a split."""
    cells = _there(outcome)
    with page(max(1, len(cells)), 2) as (figure, axes):
        for column, cell in enumerate(cells):
            run = _runs(outcome, cell)[0]
            top, bottom = axes[0][column], axes[1][column]
            top.plot(*measures.events(run, "loss"), color=BLUE)
            top.set_title(cell.column)
            top.set_ylabel("training loss l(t)")
            rounds, radii = measures.events(run, "radius")
            found = [(r, v) for r, v in zip(rounds, radii) if v is not None]
            if found:
                bottom.semilogy([r for r, _ in found], [v for _, v in found], ".-", color=RED)
            bottom.set_xlim(top.get_xlim())
            _rounds(top)
            _rounds(bottom)
            bottom.set_ylabel("radius of curvature r(t)")
            for ax in (top, bottom):
                for end in measures.events(run, "rdp_end")[1]:
                    ax.axvline(end, color=BLACK, ls="--", lw=1)
            for at, trial in zip(*measures.events(run, "trial")):
                accepted = trial["outcome"] == "accepted"
                top.plot(at, top.get_ylim()[1], "v" if accepted else "x", color=GREEN if accepted else RED)
    return figure


def stacked_time(outcome: Outcome) -> Figure:
    """Simulated compute and communication time until convergence."""
    columns = _columns(outcome) or [""]
    with page(len(columns)) as (figure, axes):
        for ax, column in zip(axes[0], columns):
            found = [c for c in _there(outcome) if c.column == column]
            send = np.array([outcome.number(c.row, c.column, "communication s").mean or 0.0 for c in found])
            total = np.array([outcome.number(c.row, c.column, "total s").mean or 0.0 for c in found])
            height = np.arange(len(found))[::-1]
            ax.barh(height, total - send, color="#9ecae1", label="computing")
            ax.barh(
                height, send, left=total - send, color="#08519c", hatch="//", edgecolor="white", label="communicating"
            )
            for y, seconds in zip(height, total):
                if not seconds:
                    ax.text(0, y, " not converged", va="center", fontsize=8)
            ax.set_yticks(height, [c.row for c in found])
            ax.set_title(column)
            ax.set_xlabel("simulated seconds until convergence")
            ax.grid(axis="y", visible=False)
        figure.legend(*axes[0][0].get_legend_handles_labels(), loc="upper right", ncols=2)
    return figure
