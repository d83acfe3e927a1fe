"""The paper's numbers and ours: numbers with intervals, claims with verdicts, as text and as a small JSON file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedkin.experiments.declare import Cell, Claim, Item, Run
from fedkin.report.tables import markdown
from fedkin.results.verdict import Judgment, judge

Verdict = Literal["held", "level", "not held", "undecided", "one seed", "two seeds", "not measured"]
VERDICTS: tuple[Verdict, ...] = ("held", "level", "not held", "undecided", "one seed", "two seeds", "not measured")
DECIDED: tuple[Verdict, ...] = ("held", "level", "not held")
_WORDS: dict[str, Verdict] = {
    "above": "held",
    "below": "not held",
    "level": "level",
    "undecided": "undecided",
    "not measured": "not measured",
}


@dataclass(frozen=True)
class Number:
    """One measure in one cell: a value for each seed (None: never reached)."""

    values: tuple[float | None, ...]
    paper: float | None

    @property
    def known(self) -> list[float]:
        return [v for v in self.values if v is not None and isfinite(v)]

    @property
    def mean(self) -> float | None:
        return float(np.mean(self.known)) if self.known else None

    @property
    def interval(self) -> float | None:
        return half_interval(self.known)


def half_interval(values: Sequence[float]) -> float | None:
    """Half the width of the 95 % interval of the mean (Student's t over seeds); None for fewer than two values."""
    if len(values) < 2:
        return None
    if np.ptp(values) <= 1e-9 * abs(max(values)):  # otherwise rounding would show as a tiny interval
        return 0.0
    from scipy.stats import t

    return float(t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / sqrt(len(values)))


@dataclass(frozen=True)
class Judged:
    """A claim and its verdict."""

    claim: Claim
    verdict: Verdict
    judgment: Judgment
    reason: str = ""
    """Why it could not be measured."""
    at_least: bool = False
    """Some runs ended too early for a number: the difference is at least this far from zero."""


@dataclass(frozen=True)
class Outcome:
    name: str
    item: Item
    scale: str
    runs: dict[tuple[str, str], list[Run]]
    """(row, column) to its runs, seed by seed."""
    missing: dict[tuple[str, str], str]
    """(row, column) to why there are none, or not for every seed."""
    seconds: float

    def values(self, row: str, column: str, measure: str, *, at_least: bool = False) -> dict[int, float | None]:
        """The values, seed by seed; for a column of means only if all of its parts exist. With `at_least`, what the
        value would at least be where a run ended too early for one."""
        parts = self.item.means.get(column)
        if parts is None:
            chosen, runs = self.item.measures[measure], self.runs.get((row, column), [])
            exact = {run.seed: chosen.of(run) for run in runs}
            bound = chosen.at_least
            if not at_least or bound is None:
                return exact
            return {run.seed: bound(run) if exact[run.seed] is None else exact[run.seed] for run in runs}
        found = [self.values(row, part, measure, at_least=at_least) for part in parts]
        out: dict[int, float | None] = {}
        for seed in found[0]:
            known = [v for one in found if (v := one.get(seed)) is not None]
            if len(known) == len(found):
                out[seed] = float(np.mean(known))
        return out

    def clients(self, row: str, column: str, measure: str) -> dict[int, NDArray[np.float64]]:
        """The value of every client, seed by seed; a column of means has the clients of all its parts."""
        parts = self.item.means.get(column)
        if parts is None:
            function = self.item.measures[measure].clients
            assert function is not None
            return {run.seed: values for run in self.runs.get((row, column), []) if len(values := function(run))}
        found = [self.clients(row, part, measure) for part in parts]
        seeds = set.intersection(*(set(one) for one in found))
        return {seed: np.concatenate([one[seed] for one in found]) for seed in sorted(seeds)}

    def number(self, row: str, column: str, measure: str) -> Number:
        first = next(iter(self.item.measures))
        if column in self.item.means:
            paper = self.item.paper_means.get((row, column)) if measure == first else None
        else:
            paper = self.cell(row, column).paper.get(measure)
        return Number(tuple(self.values(row, column, measure).values()), paper)

    @property
    def seeds(self) -> int:
        return max((len(r) for r in self.runs.values()), default=0)

    @property
    def command(self) -> str:
        usual = self.item.seeds_at(self.scale)
        return f"fedkin reproduce {self.name} --scale {self.scale}" + (
            "" if self.seeds in (0, usual) else f" --seeds {self.seeds}"
        )

    def cell(self, row: str, column: str) -> Cell:
        return next(c for c in self.item.cells if (c.row, c.column) == (row, column))

    @property
    def columns(self) -> list[str]:
        return [*self.item.columns(), *self.item.means]

    # ---- claims
    def judged(self, claim: Claim) -> Judged:
        """Seeds and clients pair up, because methods share data and the initial model."""
        measure, early = self.item.measures[claim.measure], ""
        if measure.clients is not None:
            sides = [self.clients(*index, claim.measure) for index in (claim.above, claim.below)]
            shared = [s for s in sides[0] if s in sides[1] and len(sides[0][s]) == len(sides[1][s])]
            tables = [[side[s] for s in shared] for side in sides]
        else:
            numbers, early = self._numbers(claim)
            shared = [s for s in numbers[0] if s in numbers[1]]
            tables = [[np.array([np.nan if side[s] is None else side[s]], float) for s in shared] for side in numbers]
        if not shared:
            return Judged(claim, "not measured", Judgment("not measured"), self._reason(claim))
        redrawn = all(cell.setting.redrawn for cell in self.item.cells)
        found = judge(tables[0], tables[1], margin=measure.margin, statistic=measure.statistic, redrawn=redrawn)
        if early and found.word not in (early, "too few seeds"):  # a lower bound supports no other verdict
            return Judged(claim, "not measured", Judgment("not measured"), self._reason(claim))
        if found.word == "too few seeds":
            return Judged(claim, "one seed" if found.seeds == 1 else "two seeds", found)
        if found.word == "level" and self._all_least(claim):
            why = "both reached it before the first measurement"
            return Judged(claim, "not measured", Judgment("not measured"), why)
        verdict = _WORDS[found.word]
        reason = self._reason(claim) if verdict == "not measured" else ""
        return Judged(claim, verdict, found, reason, bool(early))

    def _numbers(self, claim: Claim) -> tuple[list[dict[int, float | None]], str]:
        """Both sides of a claim, seed by seed, and the only verdict that they can support, if there is but one.

        Where one side ended too early for a number, it has what the number would at least be: this can show that the
        side takes longer, and nothing else. Of seeds in which it happened to both, or now to one and now to the other,
        nothing can be said.
        """
        sides, bounds = (
            [self.values(*index, claim.measure, at_least=at_least) for index in (claim.above, claim.below)]
            for at_least in (False, True)
        )
        seeds = bounds[0].keys() & bounds[1].keys()
        early = [{s for s in seeds if sides[i].get(s) is None and sides[1 - i].get(s) is not None} for i in (0, 1)]
        if not any(early) or all(early):
            return sides, ""
        late = 0 if early[0] else 1
        sides[late] |= {s: bounds[late][s] for s in early[late]}
        known = any(bounds[late][s] is not None for s in early[late])
        return sides, ("above", "below")[late] if known else ""

    def _all_least(self, claim: Claim) -> bool:
        """Does every run of both sides have the smallest number that can be measured?"""
        measure = self.item.measures[claim.measure]
        runs = [run for index in (claim.above, claim.below) for run in self.runs.get(index, [])]
        return measure.least is not None and all(measure.of(run) == measure.least(run) for run in runs)

    def _reason(self, claim: Claim) -> str:
        for index in (claim.above, claim.below):
            for part in self.item.means.get(index[1], (index[1],)):
                if (index[0], part) in self.missing:
                    return brief(self.missing[index[0], part])
        for row, column in (claim.above, claim.below):
            if not any(v is not None for v in self.values(row, column, claim.measure).values()):
                if claim.measure == "received":
                    return f"{row} sends nothing"
                if claim.measure.startswith("rounds to"):
                    return "neither reached it"
                return f"{row} did not converge" if "curve" in self.item.measures[claim.measure].needs else "no number"
        return "no seed in which both have a number"

    def claims(self) -> list[Judged]:
        return [self.judged(claim) for claim in self.item.claims]

    # ---- to read
    def table(self, measure: str) -> tuple[list[str], list[list[str]]]:
        style = self.item.measures[measure].style
        there = {(c.row, c.column) for c in self.item.cells}
        rows = []
        for row in self.item.rows():
            line = [row]
            for column in self.columns:
                known = column in self.item.means or (row, column) in there
                line.append(self._entry(row, column, measure, style) if known else "")
            rows.append(line)
        return [f"{measure}: ours (paper)", *self.columns], rows

    def _entry(self, row: str, column: str, measure: str, style: str) -> str:
        number = self.number(row, column, measure)
        paper = f" ({written(number.paper, style)})" if number.paper is not None else ""
        reason = self.missing.get((row, column))
        if not number.values:
            if reason is None or reason.startswith("not run"):
                return "–" + paper
            return ("failed" if reason.startswith("failed") else "no data") + paper
        if number.mean is None:
            never = measure.startswith("rounds to")
            unfinished = "curve" in self.item.measures[measure].needs
            return ("never" if never else "not converged" if unfinished else "–") + paper
        half = "" if number.interval is None else f" ± {written(number.interval, style)}"
        asked = len(number.values) if reason is None else self.seeds  # a run that failed has no value
        few = "" if len(number.known) == asked else f" [{len(number.known)} of {asked}]"
        return written(number.mean, style) + half + few + paper

    def markdown(self) -> str:
        parts = [f"### {self.name}: {self.item.title}", ""]
        seeds = self.seeds
        parts += [
            f"{self.item.where}. Scale {self.scale}, {seeds} {'seed' if seeds == 1 else 'seeds'}; ours"
            f"{' with the 95 % interval over seeds' if seeds > 1 else ''} (the paper's number, where it has one).",
            f"Command: `{self.command}`; the runs took {self.seconds / 60:.1f} minutes of one core.",
            "",
        ]
        if self.item.desk and self.scale == "desk":
            parts += [f"Sizes: {self.item.desk}", ""]
        if self.item.notes:
            parts += [self.item.notes, ""]
        for measure in self.item.measures:
            parts += [markdown(*self.table(measure))]
        for reason in dict.fromkeys(self.missing.values()):
            where = [index for index, why in self.missing.items() if why == reason]
            columns = list(dict.fromkeys(column for _, column in where))
            whole = [c for c in columns if all((r.row, c) in where for r in self.item.cells if r.column == c)]
            rest = ["; ".join(", ".join(index) for index in where if index[1] not in whole)]
            parts += [f"{_capital(brief(reason))}: {'; '.join([*whole, *filter(None, rest)])}.", ""]
        if judged := self.claims():
            parts += [f"Claims: {tally(judged)}.", "", markdown(*self.claim_table())]
        return "\n".join(parts)

    def claim_table(self) -> tuple[list[str], list[list[str]]]:
        """A line for each pair of rows, a column for each column of the item."""
        columns = list(dict.fromkeys(claim.above[1] for claim in self.item.claims))
        lines: dict[str, dict[str, str]] = {}
        for one in self.claims():
            lines.setdefault(one.claim.text(), {})[one.claim.above[1]] = self.verdict_text(one)
        rows = [[text, *(found.get(column, "") for column in columns)] for text, found in lines.items()]
        return ["claim", *columns], rows

    def verdict_text(self, one: Judged) -> str:
        return verdict_text(
            one.verdict, one.judgment.mean, one.judgment.low, one.judgment.high,
            self.item.measures[one.claim.measure].style, one.reason, at_least=one.at_least,
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        return {
            "item": self.name,
            "title": self.item.title,
            "scale": self.scale,
            "command": self.command,
            "seconds": round(self.seconds, 1),
            "cells": [
                {
                    "row": cell.row,
                    "column": cell.column,
                    "method": cell.method,
                    "seeds": [run.seed for run in self.runs.get((cell.row, cell.column), [])],
                    **(
                        {"missing": brief(self.missing[cell.row, cell.column])}
                        if (cell.row, cell.column) in self.missing
                        else {}
                    ),
                    "measures": {
                        name: {"values": [_digits(v) for v in number.values], "paper": number.paper}
                        for name in self.item.measures
                        for number in [self.number(cell.row, cell.column, name)]
                    },
                }
                for cell in self.item.cells
            ],
            "claims": [
                {
                    "claim": one.claim.pair,
                    "measure": one.claim.measure,
                    **({"ours": True} if one.claim.ours else {}),
                    "column": one.claim.above[1],
                    "verdict": one.verdict,
                    **({"reason": one.reason} if one.reason else {}),
                    **({"at_least": True} if one.at_least else {}),
                    "difference": _digits(one.judgment.mean),
                    "interval": [_digits(one.judgment.low), _digits(one.judgment.high)],
                    "style": self.item.measures[one.claim.measure].style,
                }
                for one in self.claims()
            ],
        }


def tally(judged: Sequence[Judged]) -> str:
    """12 held, 3 not held, …"""
    counts = {v: sum(1 for one in judged if one.verdict == v) for v in VERDICTS}
    return ", ".join(f"{n} {v}" for v, n in counts.items() if n)


def verdict_text(
    verdict: str,
    mean: float | None,
    low: float | None,
    high: float | None,
    style: str,
    reason: str = "",
    *,
    at_least: bool = False,
) -> str:
    if mean is None:
        return f"{verdict}: {reason}" if reason else verdict
    gap = f"{' at least' if at_least else ''} {written(mean, style, sign=True)}"
    if low is None or high is None:
        return verdict + gap
    return f"{verdict}{gap} [{written(low, style, sign=True)}, {written(high, style, sign=True)}]"


def brief(reason: str) -> str:
    """A reason without details of this machine and moment. The terminal shows all of it."""
    return re.sub(r" is not in \S+", " is not available", reason.splitlines()[0].split(" (")[0].removesuffix("."))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _digits(value: float | None) -> float | None:
    return None if value is None or not isfinite(value) else float(f"{value:.6g}")


def written(value: float | None, style: str, *, sign: bool = False) -> str:
    if value is None:
        return "–"
    plus = "+" if sign else ""
    if style == "percent":
        return f"{100 * value:{plus}.2f}"
    if value == round(value):
        return f"{value:{plus},.0f}"
    return f"{value:{plus},.1f}" if abs(value) >= 10 else f"{value:{plus}.3g}"
