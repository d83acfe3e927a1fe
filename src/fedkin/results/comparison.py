"""What `compare` returns: a line for each method, the answer for each client, and the tables of both."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from fedkin.report import tables
from fedkin.results.sites import REFERENCE, Site

# Columns of the table for papers, where they have numbers; the CSV file has all.
PAPER = ("method", "personal", "received", "worst 10 %", "gain over local", "95 % interval", "gain/lose", "bytes/round")


@dataclass(frozen=True)
class Line:
    """One method's outcome: means over seeds, and standard deviations over seeds where there are several."""

    method: str
    seeds: int
    personal: float
    personal_std: float | None
    received: float | None
    client_std: float
    worst_decile: float
    gain: float | None
    """Mean over clients of how much better the personal model is than that of `local`, at the same client and seed."""
    gaining: int | None
    losing: int | None
    p_value: float | None
    """p-value of the Wilcoxon signed-rank test over clients: each client counts once, with its mean gain over seeds."""
    bytes_per_round: float
    simulated_seconds: float
    wall_seconds: float
    unmeasured: int = 0
    """Clients that could not be measured after the last round, over all seeds: the means leave them out."""
    validation: float | None = None
    """The personal models on validation examples: use these to choose, not the test scores."""
    gain_low: float | None = None
    gain_high: float | None = None
    """The 95 % interval of the gain for these clients, over draws of their test examples (and of seeds)."""
    one_class: tuple[str, ...] = ()
    """Clients whose personal model predicts one class for every test example, in at least one seed."""
    constant: int = 0
    """Number of such models, over all seeds."""


@dataclass(frozen=True)
class Comparison:
    """Several methods on the same clients: one line for each, and the answer for each client."""

    lines: tuple[Line, ...]
    setting: str
    metric: str = "accuracy"
    """The task's headline metric, in which all results are given."""
    higher_is_better: bool = True
    percent: bool = True
    sites: tuple[Site, ...] = ()
    """The answer for each client; none if the seeds have different clients."""
    named: bool = False
    """Does the data name its clients?"""
    majority_rate: float | None = None
    """Accuracy of always predicting each client's most frequent class, mean over clients."""
    reference: str = REFERENCE
    """The label of training alone, which gains are measured against."""
    no_interval: str = ""
    """Why the mean gains have no intervals; empty if they have."""

    @property
    def header(self) -> tuple[str, ...]:
        unit = " %" if self.percent else ""
        return (
            "method",
            f"personal{unit}",
            f"received{unit}",
            f"validation{unit}",
            "std",
            "worst 10 %",
            "gain over local",
            "95 % interval",
            "gain/lose",
            "p",
            "bytes/round",
            "simulated",
        )

    @property
    def rows(self) -> list[tuple[str, ...]]:
        out: list[tuple[str, ...]] = []
        for line in self.lines:
            compared = line.gain is not None
            out.append(
                (
                    line.method,
                    tables.with_spread(line.personal, line.personal_std, in_percent=self.percent)
                    + (f" ({line.unmeasured} clients missing)" if line.unmeasured else ""),
                    tables.score(line.received, in_percent=self.percent),
                    tables.score(line.validation, in_percent=self.percent),
                    tables.score(line.client_std, in_percent=self.percent),
                    tables.score(line.worst_decile, in_percent=self.percent),
                    self._signed(line.gain),
                    "–"
                    if line.gain_low is None
                    else f"{self._signed(line.gain_low)} to {self._signed(line.gain_high)}",
                    f"{line.gaining}/{line.losing}" if compared else "–",
                    f"{line.p_value:.2g}" if line.p_value is not None else "–",
                    tables.size(line.bytes_per_round),
                    tables.duration(line.simulated_seconds),
                )
            )
        return out

    def _signed(self, value: float | None) -> str:
        if value is None:
            return "–"
        return f"{100 * value:+.2f}" if self.percent else f"{value:+.3g}"

    @property
    def notes(self) -> list[str]:
        """Notes below the table: the majority rate, and models that predict one class."""
        out = []
        if self.metric == "accuracy" and self.majority_rate is not None:
            rate = tables.percent(self.majority_rate)
            out.append(f"Always predicting a client's most frequent class: {rate} %, mean over clients")
        if undefined := [s.name for s in self.sites if all(cell.test is None for cell in s.cells.values())]:
            out.append(f"The {self.metric} is not defined at {tables.some(undefined)}: the means leave them out")
        if any(line.gain is not None and line.gain_low is None for line in self.lines):
            out.append(f"No interval of the gain: {self.no_interval or 'the models of a client were not kept'}")
        constant = [line for line in self.lines if line.one_class]
        if self.named:
            for line in constant:
                where = tables.some(line.one_class)
                out.append(f"{line.method} predicts one class for every test example of {where}")
        elif constant:
            counts = ", ".join(f"{line.method} {line.constant}" for line in constant)
            out.append(f"Personal models that predict one class for every test example: {counts}")
        return out

    def markdown(self) -> str:
        from fedkin.results import sites_tables

        parts = [self.setting, tables.markdown(self.header, self.rows).rstrip()]
        if self.notes:
            parts.append("\n".join(f"- {note}" for note in self.notes))
        if self.sites:
            parts += [sites_tables.markdown(self).rstrip(), "\n".join(f"- {site.advice}" for site in self.sites)]
        return "\n\n".join(parts) + "\n"

    def csv(self) -> str:
        """One line for each method, in full precision."""
        names = [field.name for field in fields(Line)]
        rows = [{**asdict(line), "one_class": "; ".join(line.one_class)} for line in self.lines]
        return tables.csv(["metric", *names], [[self.metric, *(row[name] for name in names)] for row in rows])

    def latex(self) -> str:
        """A table for booktabs: one line for each method, the best in bold; ± is the standard deviation over seeds."""
        rows = self.rows
        kept = [
            i
            for i, name in enumerate(self.header)
            if name.removesuffix(" %") in PAPER or name in PAPER
            if any(row[i] != "–" for row in rows)
        ]
        sign = 1 if self.higher_is_better else -1
        best = max(sign * line.personal for line in self.lines)
        bold = [(i, 1) for i, line in enumerate(self.lines) if sign * line.personal == best]
        return tables.latex([self.header[i] for i in kept], [[row[i] for i in kept] for row in rows], bold)

    def __repr__(self) -> str:
        sign = 1 if self.higher_is_better else -1
        best = max(self.lines, key=lambda line: sign * line.personal)
        score = tables.score(best.personal, in_percent=self.percent) + ("%" if self.percent else "")
        count = "1 method" if len(self.lines) == 1 else f"{len(self.lines)} methods"
        return f"<Comparison of {count}: best {best.method}, {self.metric} {score}; print it for all>"

    def __str__(self) -> str:
        return self.markdown()

    def _repr_html_(self) -> str:
        """For notebooks."""
        from fedkin.report import notebook

        return notebook.comparison(self)

    def to_json(self) -> dict[str, Any]:
        headline = {"metric": self.metric, "higher_is_better": self.higher_is_better, "percent": self.percent}
        return {
            "setting": self.setting,
            "headline": headline,
            "methods": [asdict(line) for line in self.lines],
            "majority_rate": self.majority_rate,
            "clients": [asdict(site) for site in self.sites],
        }
