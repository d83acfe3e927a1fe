"""The leaderboard: ranks over tracks, significant differences, and losing clients. Pure functions of stored results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedkin.maths.fairness import tenth
from fedkin.report.tables import percent, size
from fedkin.results.verdict import MARGIN, judge

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Numbers = NDArray[np.float64]
ALONE, SIMPLE = "local", "fedavg-ft"
"""Every method is compared with training alone and with FedAvg whose clients fine-tune."""
LEVEL = 0.05
"""Significance level of the tests."""


@dataclass(frozen=True)
class Entry:
    """One method on one track: values [seeds, clients] and costs."""

    accuracy: Numbers
    tests: Numbers
    """Test examples behind each value."""
    megabytes: float
    """Traffic in both directions, per round and client."""
    seconds: float
    """Core seconds of one run."""
    lr: float
    """The learning rate chosen on validation."""
    redrawn: bool
    """Does each seed have other clients?"""

    @property
    def mean(self) -> float:
        return float(np.nanmean(self.accuracy))

    @property
    def worst_decile(self) -> float:
        """Mean accuracy of the worst-served tenth of the clients, over seeds."""
        return float(np.nanmean(np.sort(self.accuracy, axis=1)[:, : tenth(self.accuracy.shape[1])]))


@dataclass(frozen=True)
class Line:
    """One method on the leaderboard."""

    method: str
    rank: float
    """Mean over tracks of its rank by personal accuracy; tied methods share a rank."""
    accuracy: dict[str, float]
    worst_decile: float
    losers: float | None
    """Fraction of (seed, client) pairs that are decidedly worse off than alone, each judged by itself at 5 %."""
    sure_losers: int | None
    """Number of pairs that still are when Holm's correction accounts for how many pairs are judged."""
    behind: float | None
    """p-value of Wilcoxon's signed-rank test over tracks against the first method; None for the first itself."""
    above: int | None
    """Tracks on which it is decidedly above FedAvg fine-tuned …"""
    below: int | None
    """… and below."""
    megabytes: float
    seconds: float
    lr: dict[str, float]


@dataclass(frozen=True)
class Board:
    lines: tuple[Line, ...]
    tracks: tuple[str, ...]
    friedman: float | None
    """p-value of the hypothesis that all methods are alike (ranks over tracks)."""
    critical: float | None
    """Nemenyi's critical difference of mean ranks at 5 %."""
    winners: dict[str, tuple[str, ...]]
    """The best method of each track, and those that are not decidedly below it."""
    failures: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        return {
            "tracks": list(self.tracks),
            "friedman_p": self.friedman,
            "critical_difference": self.critical,
            "winners": {k: list(v) for k, v in self.winners.items()},
            "failures": list(self.failures),
            "methods": [vars(line) for line in self.lines],
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Board:
        return cls(
            tuple(Line(**line) for line in found["methods"]),
            tuple(found["tracks"]),
            found["friedman_p"],
            found["critical_difference"],
            {k: tuple(v) for k, v in found["winners"].items()},
            tuple(found["failures"]),
        )

    # ---- to read
    def table(self) -> tuple[list[str], list[list[str]]]:
        header = [
            "method",
            "mean rank",
            *(f"{t} %" for t in self.tracks),
            "worst 10 %",
            "losers %",
            "sure losers",
            "p against first",
            "above/below fedavg-ft",
            "traffic",
            "seconds",
        ]
        rows = [
            [
                line.method,
                f"{line.rank:.1f}",
                *(f"{100 * line.accuracy[t]:.1f}" for t in self.tracks),
                f"{100 * line.worst_decile:.1f}",
                "–" if line.losers is None else f"{100 * line.losers:.1f}",
                "–" if line.sure_losers is None else str(line.sure_losers),
                "–" if line.behind is None else f"{line.behind:.2g}",
                "–" if line.above is None else f"{line.above}/{line.below}",
                size(1e6 * line.megabytes),
                f"{line.seconds:.1f}",
            ]
            for line in self.lines
        ]
        return header, rows

    def winner_table(self) -> tuple[list[str], list[list[str]]]:
        by_name = {line.method: line for line in self.lines}
        rows = []
        for track, (best, *near) in self.winners.items():
            rows.append([track, best, percent(by_name[best].accuracy[track]), ", ".join(near) or "nobody"])
        return ["track", "best", "accuracy %", "not decidedly below it"], rows

    def words(self) -> str:
        """The result of the tests, in a sentence."""
        if self.friedman is None or self.critical is None:
            return "Too few tracks or methods for a test over ranks."
        word = "differ" if self.friedman < 0.05 else "cannot be told apart"
        return (
            f"Over {len(self.tracks)} tracks the {len(self.lines)} methods {word} (Friedman, p = {self.friedman:.2g}); "
            f"two mean ranks differ decidedly if they are {self.critical:.1f} apart (Nemenyi, 5 %)."
        )


def board(entries: Mapping[tuple[str, str], Entry], failures: Sequence[str] = ()) -> Board:
    """Rank methods by mean rank over tracks; `entries` maps (method, track). A method that lacks a track is not
    ranked."""
    from scipy.stats import friedmanchisquare, rankdata, wilcoxon

    tracks = tuple(dict.fromkeys(track for _, track in entries))
    names = list(dict.fromkeys(name for name, _ in entries))
    whole = [name for name in names if all((name, track) in entries for track in tracks)]
    means = np.array([[entries[name, track].mean for track in tracks] for name in whole])
    ranks = rankdata(-means.round(6), axis=0) if whole else np.empty((0, len(tracks)))
    first = min(range(len(whole)), key=lambda i: (ranks[i].mean(), whole[i])) if whole else 0
    lines = []
    for i, name in enumerate(whole):
        own = [entries[name, track] for track in tracks]
        against = None
        if name != SIMPLE and SIMPLE in whole:
            against = [_word(entries[name, track], entries[SIMPLE, track]) for track in tracks]
        losses, sure = None, None
        if name != ALONE and ALONE in whole:
            pairs = np.concatenate([losing(entries[name, track], entries[ALONE, track]).ravel() for track in tracks])
            losses, sure = float(np.mean(pairs < LEVEL)), holm(pairs)
        gaps = (means[first] - means[i]).round(6)
        differs = float(wilcoxon(gaps).pvalue) if gaps.any() else 1.0
        lines.append(
            Line(
                name,
                float(ranks[i].mean()),
                {track: float(means[i, j]) for j, track in enumerate(tracks)},
                float(np.mean([e.worst_decile for e in own])),
                losses,
                sure,
                None if i == first else differs,
                None if against is None else against.count("above"),
                None if against is None else against.count("below"),
                float(np.mean([e.megabytes for e in own])),
                float(np.mean([e.seconds for e in own])),
                {track: e.lr for track, e in zip(tracks, own)},
            )
        )
    enough = len(tracks) > 1 and len(whole) > 2
    p = float(friedmanchisquare(*means.round(6)).pvalue) if enough else None
    return Board(
        tuple(sorted(lines, key=lambda line: (line.rank, line.method))),
        tracks,
        p,
        nemenyi(len(whole), len(tracks)) if enough else None,
        {track: _winners(whole, track, entries) for track in tracks} if whole else {},
        tuple(failures),
    )


def nemenyi(methods: int, tracks: int) -> float:
    """Critical difference of mean ranks at 5 % (Demšar, JMLR 2006)."""
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(0.95, methods, inf)) / sqrt(2)
    return q * sqrt(methods * (methods + 1) / (6 * tracks))


def losing(entry: Entry, alone: Entry) -> Numbers:
    """p-value of each (seed, client) pair for being no worse off than alone: one-sided test of two proportions."""
    from scipy.stats import norm

    p, q, n = entry.accuracy, alone.accuracy, entry.tests
    error = np.sqrt((p * (1 - p) + q * (1 - q)) / n)
    with np.errstate(divide="ignore", invalid="ignore"):
        out: Numbers = norm.sf((q - p) / error)
    return np.where(p == q, 0.5, np.where(np.isnan(out), 1.0, out))  # not measured: nothing is known against it


def holm(values: Numbers) -> int:
    """How many hypotheses Holm's step-down procedure rejects at 5 %, given their p-values."""
    left = len(values)
    for value in np.sort(values):
        if value > LEVEL / left:
            break
        left -= 1
    return len(values) - left


def _word(one: Entry, other: Entry) -> str:
    return judge(one.accuracy, other.accuracy, margin=MARGIN, redrawn=one.redrawn).word


def _winners(names: Sequence[str], track: str, entries: Mapping[tuple[str, str], Entry]) -> tuple[str, ...]:
    order = sorted(names, key=lambda name: -entries[name, track].mean)
    best = order[0]
    near = [n for n in order[1:] if _word(entries[n, track], entries[best, track]) != "below"]
    return (best, *near)


# ---- figures
def critical_difference(found: Board) -> Figure:
    """Mean ranks on a line; a bar joins methods that Nemenyi's test does not tell apart."""
    from fedkin.experiments.draw import page

    names = [line.method for line in found.lines]
    ranks = [line.rank for line in found.lines]
    bars = cliques(ranks, found.critical or inf)
    half = (len(names) + 1) // 2
    high = len(bars) + 1
    with page(width=9, height=0.9 + 0.19 * half + 0.12 * high) as (figure, axes):
        ax = axes[0][0]
        ax.set_axis_off()
        low, top = min(ranks) - 1, max(ranks) + 1
        ax.set_xlim(low - 0.45 * (top - low), top + 0.45 * (top - low))
        ax.set_ylim(-half - 1.5, high + 1.5)
        ax.plot([low, top], [high, high], color="black", lw=1)
        for tick in range(int(np.ceil(low)), int(top) + 1, max(1, len(names) // 12)):
            ax.plot([tick, tick], [high, high + 0.25], color="black", lw=1)
            ax.text(tick, high + 0.4, str(tick), ha="center", va="bottom", fontsize=7)
        for i, (first, last) in enumerate(bars):
            ax.plot([ranks[first] - 0.1, ranks[last] + 0.1], [high - 0.5 - i] * 2, color="0.35", lw=2.5)
        for i, (name, rank) in enumerate(zip(names, ranks)):
            left = i < half
            y = -1 - (i if left else len(names) - 1 - i)
            side = low - 0.02 * (top - low) if left else top + 0.02 * (top - low)
            ax.plot([rank, rank, side], [high, y, y], color="0.6", lw=0.6)
            ax.text(side, y, f"{name} {rank:.1f}", ha="right" if left else "left", va="center", fontsize=7)
    return figure


def cliques(ranks: Sequence[float], critical: float) -> list[tuple[int, int]]:
    """First and last index of each longest stretch of sorted ranks within the critical difference."""
    out: list[tuple[int, int]] = []
    for first in range(len(ranks)):
        last = max(j for j in range(first, len(ranks)) if ranks[j] - ranks[first] < critical)
        if last > first and (not out or last > out[-1][1]):
            out.append((first, last))
    return out


def pareto(found: Board) -> Figure:
    """Mean accuracy over traffic; the line joins the methods that no other method beats in both."""
    from fedkin.experiments.draw import BLUE, RED, page

    points = [(line.megabytes, 100 * float(np.mean(list(line.accuracy.values()))), line.method) for line in found.lines]
    best = front([(m, a) for m, a, _ in points])
    with page(width=8, height=5) as (figure, axes):
        ax = axes[0][0]
        ax.plot([m for m, _, _ in points], [a for _, a, _ in points], "o", ms=4, color=BLUE, alpha=0.6)
        chosen = sorted(points[i] for i in best)
        ax.plot([m for m, _, _ in chosen], [a for _, a, _ in chosen], "-", color=RED, lw=1)
        ax.set_xscale("symlog", linthresh=1e-3)
        ax.set_xlabel("megabytes per round and client, both directions")
        ax.set_ylabel("mean accuracy over tracks %")
        figure.canvas.draw()  # so that the axes know their scale
        for i, shift in enumerate(_label_shifts([ax.transData.transform(point[:2]) for point in points], figure.dpi)):
            m, a, name = points[i]
            ax.annotate(
                name,
                (m, a),
                xytext=(4, shift),
                textcoords="offset points",
                fontsize=6,
                va="center",
                color="black" if i in best else "0.5",
                arrowprops={"arrowstyle": "-", "color": "0.8", "lw": 0.5} if abs(shift) > 4 else None,
            )
    return figure


def _label_shifts(pixels: Sequence[NDArray[np.float64]], dpi: float) -> list[float]:
    """How far each label must move up, in points, so that labels of neighbors do not overlap. From the top down."""
    height, width = 7.0, 45.0
    at = [(x * 72 / dpi, y * 72 / dpi) for x, y in pixels]
    placed: list[tuple[float, float]] = []
    shifts = [0.0] * len(at)
    for i in sorted(range(len(at)), key=lambda i: -at[i][1]):
        x, y = at[i]
        for other_x, other_y in sorted(placed, key=lambda p: -p[1]):
            if abs(x - other_x) < width and abs(y - other_y) < height:
                y = other_y - height
        placed.append((x, y))
        shifts[i] = y - at[i][1]
    return shifts


def front(points: Sequence[tuple[float, float]]) -> set[int]:
    """Indices of the points with the highest accuracy for their cost or less."""
    return {
        i
        for i, (cost, value) in enumerate(points)
        if not any(c <= cost and v >= value and (c, v) != (cost, value) for j, (c, v) in enumerate(points) if j != i)
    }
