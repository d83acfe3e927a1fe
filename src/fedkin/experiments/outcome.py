"""Paper against ours: numbers with intervals, claims with verdicts; to read, and to keep as a small JSON file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Any, Literal

import numpy as np

from fedkin.experiments.declare import Cell, Claim, Item, Run, Scale
from fedkin.report.tables import markdown

Verdict = Literal["held", "not held", "undecided", "not measured"]


@dataclass(frozen=True)
class Number:
    """Of one measure in one cell: a value for each seed (None: never reached)."""

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
    if np.ptp(values) <= 1e-9 * abs(max(values)):  # else rounding shows as a tiny interval
        return 0.0
    from scipy.stats import t

    return float(t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / sqrt(len(values)))


@dataclass(frozen=True)
class Outcome:
    name: str
    item: Item
    scale: Scale
    runs: dict[tuple[str, str], list[Run]]
    """(row, column) to its runs, seed by seed."""
    missing: dict[tuple[str, str], str]
    """(row, column) to why there are none, or not for every seed."""
    seconds: float

    def values(self, row: str, column: str, measure: str) -> dict[int, float | None]:
        """Seed by seed; of a column of means only where all of its parts are there."""
        parts = self.item.means.get(column)
        if parts is None:
            return {run.seed: self.item.measures[measure](run) for run in self.runs.get((row, column), [])}
        found = [self.values(row, part, measure) for part in parts]
        out: dict[int, float | None] = {}
        for seed in found[0]:
            several = [one.get(seed) for one in found]
            known = [v for v in several if v is not None]
            if len(known) == len(several):
                out[seed] = float(np.mean(known))
        return out

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
        return f"fedkin reproduce {self.name} --scale {self.scale.name}" + (
            "" if self.seeds in (0, usual) else f" --seeds {self.seeds}"
        )

    def cell(self, row: str, column: str) -> Cell:
        return next(c for c in self.item.cells if (c.row, c.column) == (row, column))

    @property
    def columns(self) -> list[str]:
        return [*self.item.columns(), *self.item.means]

    def verdict(self, claim: Claim) -> tuple[Verdict, float | None, float | None]:
        """With the mean difference over seeds and its half interval: seeds share data and starts, so they pair up."""
        sides = [self.values(*place, claim.measure) for place in (claim.above, claim.below)]
        if claim.measure.startswith("rounds to"):  # never is later than the last round, if the other got there
            last = max((run.cell.setting.rounds for run in self.runs.get(claim.above, [])), default=0)
            for seed in sides[0].keys() & sides[1].keys():
                one, two = sides[0][seed], sides[1][seed]
                if (one is None) != (two is None):
                    sides[0][seed], sides[1][seed] = (last + 1 if v is None else v for v in (one, two))
        paired = [(sides[0][s], sides[1][s]) for s in sides[0] if s in sides[1]]
        differences = [a - b for a, b in paired if a is not None and b is not None and isfinite(a - b)]
        if not differences:
            return "not measured", None, None
        mean, half = float(np.mean(differences)), half_interval(differences)
        if half is None or abs(mean) <= half:
            return "undecided", mean, half
        return ("held" if mean > 0 else "not held"), mean, half

    def claims(self) -> list[tuple[Claim, Verdict, float | None, float | None]]:
        return [(claim, *self.verdict(claim)) for claim in self.item.claims]

    # ---- to read
    def table(self, measure: str) -> tuple[list[str], list[list[str]]]:
        style = self.item.formats.get(measure, "percent")
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
            return ("–" if reason is None else "failed" if reason.startswith("failed") else "no data") + paper
        if number.mean is None:
            return ("never" if measure.startswith("rounds to") else "–") + paper
        half = "" if number.interval is None else f" ± {written(number.interval, style)}"
        asked = len(number.values) if reason is None else self.seeds  # of a run that failed there is no value
        short = "" if len(number.known) == asked else f" [{len(number.known)} of {asked}]"
        return written(number.mean, style) + half + short + paper

    def markdown(self) -> str:
        parts = [f"### {self.name}: {self.item.title}", ""]
        seeds = self.seeds
        parts += [
            f"{self.item.place}. Scale {self.scale.name}, {seeds} {'seed' if seeds == 1 else 'seeds'}; ours"
            f"{' with the 95 % interval over seeds' if seeds > 1 else ''} (the paper's number, where it has one).",
            f"Command: `{self.command}`; the runs took {self.seconds / 60:.1f} minutes of computing.",
            "",
        ]
        if self.item.notes:
            parts += [self.item.notes, ""]
        for measure in self.item.measures:
            parts += [markdown(*self.table(measure))]
        for reason in dict.fromkeys(self.missing.values()):
            places = [place for place, why in self.missing.items() if why == reason]
            if reason.startswith("failed"):
                parts += [f"Not run: {'; '.join(', '.join(place) for place in places)}: {_brief(reason)}.", ""]
            else:
                which = dict.fromkeys(column for _, column in places)
                parts += [f"No data for {', '.join(which)}: {_brief(reason)}.", ""]
        if claims := self.claims():
            tally = {v: sum(1 for c in claims if c[1] == v) for v in ("held", "not held", "undecided", "not measured")}
            parts += ["Claims: " + ", ".join(f"{n} {v}" for v, n in tally.items() if n) + ".", ""]
            parts += [markdown(*self.claim_table())]
        return "\n".join(parts)

    def claim_table(self) -> tuple[list[str], list[list[str]]]:
        """A line for each pair that is compared, a column for each place it is compared in."""
        columns = list(dict.fromkeys(claim.above[1] for claim in self.item.claims))
        lines: dict[str, dict[str, str]] = {}
        for claim, verdict, mean, half in self.claims():
            style = self.item.formats.get(claim.measure, "percent")
            gap = "" if mean is None else f" {written(mean, style, sign=True)}"
            gap += f" ± {written(half, style)}" if half is not None else ""
            lines.setdefault(claim.text(), {})[claim.above[1]] = verdict + gap
        rows = [[text, *(found.get(column, "") for column in columns)] for text, found in lines.items()]
        return ["claim", *columns], rows

    def to_json(self) -> dict[str, Any]:
        return {
            "item": self.name,
            "title": self.item.title,
            "scale": self.scale.name,
            "scale_says": self.scale.says,
            "command": self.command,
            "seconds": round(self.seconds, 1),
            "cells": [
                {
                    "row": cell.row,
                    "column": cell.column,
                    "method": cell.method,
                    "seeds": [run.seed for run in self.runs.get((cell.row, cell.column), [])],
                    "runs": [run.folder.name for run in self.runs.get((cell.row, cell.column), [])],
                    **(
                        {"missing": _brief(self.missing[cell.row, cell.column])}
                        if (cell.row, cell.column) in self.missing
                        else {}
                    ),
                    "measures": {
                        name: {"values": [_short(v) for v in number.values], "paper": number.paper}
                        for name in self.item.measures
                        for number in [self.number(cell.row, cell.column, name)]
                    },
                }
                for cell in self.item.cells
            ],
            "claims": [
                {
                    "claim": claim.text(),
                    "column": claim.above[1],
                    "verdict": verdict,
                    "difference": _short(mean),
                    "half_interval": _short(half),
                }
                for claim, verdict, mean, half in self.claims()
            ],
        }


def _brief(reason: str) -> str:
    """Without what is of this machine and moment: the whole is on the terminal."""
    return re.sub(r" is not in \S+", " is not at hand", reason.splitlines()[0].split(" (")[0].removesuffix("."))


def _short(value: float | None) -> float | None:
    return None if value is None or not isfinite(value) else float(f"{value:.10g}")


def written(value: float | None, style: str, *, sign: bool = False) -> str:
    if value is None:
        return "–"
    plus = "+" if sign else ""
    if style == "percent":
        return f"{100 * value:{plus}.2f}"
    if value == round(value):
        return f"{value:{plus},.0f}"
    return f"{value:{plus},.1f}" if abs(value) >= 10 else f"{value:{plus}.3g}"
