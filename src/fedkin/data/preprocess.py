"""`Preprocessing`: from a table to the numbers a network takes. Fitted on training examples, stored with the run.

Number columns are standardized, and missing cells become the mean. Category columns become one 0/1 feature for each
level. A column with missing cells gets one more feature that says where. To agree on this, sites share
`ColumnStatistics` and nothing else: counts, means, variances and level sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkin.data.cells import Floats, Reading, level_order
from fedkin.data.encode import Column, codes
from fedkin.data.labels import TaskKind, labels
from fedkin.data.table import DataError, Problems, Table, from_frame, quoted, read_table

Fit = Literal["each", "sites"]
Scale = tuple[float, float]
"""Mean and factor of a number column: a value x becomes (x - mean) * factor."""
FEWEST = 3  # cells of which a mean and a variance may be shared: those of two numbers give both
ALL = ""  # key of the scales that all clients share
SHOWN = 8  # columns named in an error


class ColumnStatistics(NamedTuple):
    """Statistics of one column of a site's training examples: what a site shares with the others."""

    known: int
    """Number of examples in which the cell is not missing."""
    missing: int
    mean: float = 0.0
    variance: float = 0.0
    levels: tuple[str, ...] = ()


def statistics(table: Floats, columns: Sequence[Column]) -> tuple[ColumnStatistics, ...]:
    """Statistics of encoded training examples [examples, columns]."""
    out = []
    for column, cells in zip(columns, table.T):
        there = cells[~np.isnan(cells)]
        found = ColumnStatistics(len(there), len(cells) - len(there))
        if column.kind == "category":
            found = found._replace(levels=tuple(column.levels[int(i)] for i in np.unique(there)))
        elif len(there):
            found = found._replace(mean=float(there.mean()), variance=float(there.var()))
        out.append(found)
    return tuple(out)


def tellable(own: ColumnStatistics) -> ColumnStatistics:
    """What may be told of a number column: a mean and a variance of one or two cells would give them away, so these
    cells count as missing."""
    if own.levels or own.known >= FEWEST:
        return own
    return ColumnStatistics(0, own.known + own.missing)


def pooled(parts: Sequence[ColumnStatistics]) -> ColumnStatistics:
    """Statistics of all examples together, from those of each site."""
    count = sum(p.known for p in parts)
    mean = sum(p.known * p.mean for p in parts) / max(count, 1)
    squares = sum(p.known * (p.variance + (p.mean - mean) ** 2) for p in parts)
    levels = sorted({level for p in parts for level in p.levels}, key=level_order)
    return ColumnStatistics(count, sum(p.missing for p in parts), mean, squares / max(count, 1), tuple(levels))


@dataclass(frozen=True)
class Preprocessing:
    reading: Reading
    columns: tuple[Column, ...]
    """Columns with the levels that training examples have."""
    indicators: tuple[bool, ...]
    """Which columns have a feature that says whether the cell is missing."""
    scales: Mapping[str, tuple[Scale, ...]]
    """Scale of each column, by client; under "" those that all clients share."""
    classes: tuple[str, ...] = ()
    """What the classes are called in the data; empty in a regression."""
    task: TaskKind = "classification"
    targets: tuple[Scale, ...] = ()
    """Mean and standard deviation of each target of a regression, if separate sites shared them."""

    @property
    def fit(self) -> Fit:
        return "sites" if ALL in self.scales else "each"

    @property
    def feature_names(self) -> tuple[str, ...]:
        names = []
        for column, indicator in zip(self.columns, self.indicators):
            if column.kind == "number":
                names.append(column.name)
            names += [f"{column.name}={level}" for level in column.levels]
            names += [f"{column.name} missing"] if indicator else []
        return tuple(names)

    def transform(self, table: Table | str | Path | Any, client: str | None = None) -> NDArray[np.float32]:
        """Features [examples, features] of a table: a `Table`, a file, or a pandas frame.

        Columns are found by name, in any order. A level that no training example has is treated as missing. If every
        client has its own scales (`fit` is "each"), `client` says whose to use.
        """
        return self.features(self.encode(table), client)

    def encode(self, table: Table | str | Path | Any) -> Floats:
        problems = Problems()
        read = self.read(table)
        if absent := [column.name for column in self.columns if column.name not in (*read.columns, *read.unusable)]:
            raise DataError(f"{read.source}: there is no column {quoted(absent)}{self._needed}.")
        out = codes(read, self.columns, self.reading, problems)
        problems.check(read.source)
        return out

    def read(self, table: Table | str | Path | Any) -> Table:
        if isinstance(table, Table):
            return table
        if not isinstance(table, str | Path):
            return from_frame(table)
        problems = Problems()
        path = Path(table)
        if not path.is_file():
            raise DataError(f"There is no file {path}.")
        made = read_table(path, problems, required=[c.name for c in self.columns], advice=self._needed)
        problems.check(path.name)
        assert made is not None
        return made

    @property
    def _needed(self) -> str:
        names = [column.name for column in self.columns]
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        return (
            f"; the model needs its {len(names)} columns ({', '.join(names[:SHOWN])}{more}): rename "
            "a column, or add it with empty cells where a value is not known"
        )

    def labels(self, table: Table | str | Path | Any) -> NDArray[np.generic]:
        """The label column of a table: int64 classes, or float32 numbers in a regression."""
        problems = Problems()
        read = self.read(table)
        for name in self.reading.labels:
            if name not in read.columns:
                raise DataError(f"{read.source}: there is no column '{name}' (the label).")
        made = labels([read], self.reading, self.task, problems, known=self.classes)
        problems.check(read.source)
        return made.y

    def recoded(self, table: Floats, columns: Sequence[Column]) -> Floats:
        """Convert a table that was encoded with other or additional levels to the codes of these columns."""
        out = np.full((len(table), len(self.columns)), np.nan)
        where = {column.name: k for k, column in enumerate(columns)}
        for k, column in enumerate(self.columns):
            if column.name not in where:
                raise DataError(f"There is no column '{column.name}'.")
            cells = table[:, where[column.name]]
            if column.kind == "category":
                index = {level: i for i, level in enumerate(column.levels)}
                codes = np.array([index.get(level, np.nan) for level in columns[where[column.name]].levels] + [np.nan])
                cells = codes[np.where(np.isnan(cells), -1, cells).astype(int)]
            out[:, k] = cells
        return out

    def features(self, table: Floats, client: str | None = None) -> NDArray[np.float32]:
        """Features of encoded examples [examples, columns]."""
        out: list[NDArray[Any]] = []
        for column, indicator, (mean, factor), cells in zip(
            self.columns, self.indicators, self._scales(client), table.T
        ):
            missing = np.isnan(cells)
            if column.kind == "number":
                out.append(np.where(missing, 0.0, (cells - mean) * factor))
            out += [cells == i for i in range(len(column.levels))]
            out += [missing] if indicator else []
        return np.stack(out, axis=1).astype(np.float32)

    def _scales(self, client: str | None) -> tuple[Scale, ...]:
        if ALL in self.scales:
            return self.scales[ALL]
        if client is None or client not in self.scales:
            known = ", ".join(self.scales)
            raise ValueError(
                f"Each client has its own scales here: say whose (client=…, one of {known}), or add a newcomer's "
                "with with_client(name, table)."
            )
        return self.scales[client]

    def with_client(self, name: str, table: Table | str | Path | Any) -> Preprocessing:
        """A copy that knows a newcomer: its number columns are standardized by its own examples. Nothing changes if
        all clients share their scales."""
        return self.with_scales(name, self.encode(table))

    def with_scales(self, name: str, encoded: Floats) -> Preprocessing:
        """The same for encoded training examples [examples, columns]."""
        if self.fit == "sites":
            return self
        own = scales(statistics(encoded, self.columns), self.columns)
        return replace(self, scales={**self.scales, name: own})

    def to_json(self) -> dict[str, Any]:
        return {
            **{k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self.reading).items()},
            "task": self.task,
            "classes": list(self.classes),
            "columns": [
                {"name": c.name, "kind": c.kind, "levels": list(c.levels), "indicator": indicator}
                for c, indicator in zip(self.columns, self.indicators)
            ],
            "scales": {client: [list(scale) for scale in own] for client, own in self.scales.items()},
            **({"targets": [list(target) for target in self.targets]} if self.targets else {}),
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Preprocessing:
        return cls(
            Reading(
                stored["label"] if isinstance(stored["label"], str) else tuple(stored["label"]),
                tuple(stored["ignore"]),
                tuple(stored["categorical"]),
                tuple(stored["missing"]),
                stored["decimal"],
            ),
            tuple(Column(c["name"], c["kind"], tuple(c["levels"])) for c in stored["columns"]),
            tuple(bool(c["indicator"]) for c in stored["columns"]),
            {client: tuple((m, f) for m, f in own) for client, own in stored["scales"].items()},
            tuple(stored["classes"]),
            stored["task"],
            tuple((mean, deviation) for mean, deviation in stored.get("targets", ())),
        )


def scales(measured: Sequence[ColumnStatistics], columns: Sequence[Column]) -> tuple[Scale, ...]:
    """A column without a value becomes 0 everywhere; one that never changes is only centered."""
    out: list[Scale] = []
    for column, s in zip(columns, measured):
        if column.kind == "category" or not s.known:
            out.append((0.0, 0.0))
            continue
        deviation = float(np.sqrt(s.variance))
        # rounding leaves a constant column with a tiny variance
        constant = deviation <= 1e-12 * max(abs(s.mean), 1e-30)
        out.append((s.mean, 1.0 if constant else 1 / deviation))
    return tuple(out)


def fitted(
    columns: Sequence[Column],
    by_client: Mapping[str, Sequence[ColumnStatistics]],
    how: Fit,
    *,
    reading: Reading,
    classes: Sequence[str] = (),
    task: TaskKind = "classification",
    one_of_several: bool = False,
) -> Preprocessing:
    """Preprocessing from every client's statistics. Either way, all clients have the same features; with "each" a
    client's numbers are scaled by its own mean and variance, with "sites" by those of all sites together."""
    if how not in ("each", "sites"):
        raise ValueError(
            f"fit='{how}' must be 'each' (a site scales by its own statistics) or 'sites' (by pooled ones)."
        )
    whole = [pooled(parts) for parts in zip(*by_client.values())]
    if how == "sites":  # what separate sites would tell; in a simulation of tiny tables all of it
        shared = [pooled([tellable(own) for own in parts]) for parts in zip(*by_client.values())]
        whole = [a if a.known else b for a, b in zip(shared, whole)]
    problems = Problems()
    for column, s in zip(columns, whole):
        if not s.known and not one_of_several:
            problems.add(f"column '{column.name}' is missing in every training example; ignore it")
    problems.check("This data")
    kept = tuple(replace(c, levels=s.levels) for c, s in zip(columns, whole))
    own = {client: scales(parts, kept) for client, parts in by_client.items()}
    return Preprocessing(
        reading,
        kept,
        tuple(s.missing > 0 for s in whole),
        {ALL: scales(whole, kept)} if how == "sites" else own,
        tuple(classes),
        task,
    )


# ---- separate sites
def shared(
    columns: Sequence[Column],
    measured: Sequence[ColumnStatistics],
    how: Fit,
    *,
    classes: Sequence[str] = (),
    task: TaskKind = "classification",
    targets: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """A site's statistics as plain data to send. With "each" they say of a number column only whether it has cells and
    whether some are missing, and of a target only its name."""
    out = []
    for column, s in zip(columns, measured):
        entry: dict[str, Any] = {"name": column.name, "kind": column.kind, "levels": list(s.levels)}
        if how == "sites":
            s = tellable(s)
            entry |= {"known": s.known, "missing": s.missing, "mean": s.mean, "variance": s.variance}
        else:
            entry |= {"known": int(s.known > 0), "missing": int(s.missing > 0)}
        out.append(entry)
    sent = [dict(target) if how == "sites" else {"name": target["name"]} for target in targets]
    return {"columns": out, "classes": list(classes), "task": task, "targets": sent}


def target_statistics(y: NDArray[Any], names: Sequence[str], task: TaskKind) -> list[dict[str, Any]]:
    """Statistics of the targets of training examples: of a regression their means and variances, of several labels
    their names alone."""
    columns = y.reshape(len(y), -1).astype(np.float64).T
    if task != "regression":
        return [{"name": name} for name in names]
    if len(y) < FEWEST:  # as in `tellable`
        return [{"name": name, "known": 0, "mean": 0.0, "variance": 0.0} for name in names]
    return [
        {"name": name, "known": len(column), "mean": float(column.mean()), "variance": float(column.var())}
        for name, column in zip(names, columns)
    ]


def agreed(by_site: Mapping[str, Mapping[str, Any]], how: Fit, *, reading: Reading) -> Preprocessing:
    """The preprocessing of all sites from what each has `shared`. With "each" it has no scales: every site adds its own
    when it applies it."""
    problems = Problems()
    first = next(iter(by_site.values()))
    names = [entry["name"] for entry in first["columns"]]
    kinds: dict[str, str] = {}
    for site, own in by_site.items():
        entries = {entry["name"]: entry for entry in own["columns"]}
        for name in sorted(set(names) ^ set(entries)):
            lacking = site if name in names else next(iter(by_site))
            problems.add(f"it lacks the column '{name}' of other sites", source=lacking)
        for name, entry in entries.items():
            if entry["known"] and kinds.setdefault(name, entry["kind"]) != entry["kind"]:
                problems.add("it is numbers at one site and texts at another", source=site, column=name)
        if own["task"] != first["task"]:
            problems.add(f"its task is {own['task']}, that of others {first['task']}", source=site)
        if (count := len(own["targets"])) != len(first["targets"]):
            problems.add(f"it has {count} targets, others {len(first['targets'])}", source=site)
        elif count > 1 and [t["name"] for t in own["targets"]] != [t["name"] for t in first["targets"]]:
            problems.add("its targets have other names or another order than those of others", source=site)
    classes = _all_classes([tuple(own["classes"]) for own in by_site.values()], problems)
    problems.check("The sites' data")
    columns = [Column(name, "category" if kinds.get(name) == "category" else "number") for name in names]
    statistics = {
        site: [
            ColumnStatistics(e["known"], e["missing"], e.get("mean", 0.0), e.get("variance", 0.0), tuple(e["levels"]))
            for e in sorted(own["columns"], key=lambda e: names.index(e["name"]))
        ]
        for site, own in by_site.items()
    }
    made = fitted(columns, statistics, how, reading=reading, classes=classes, task=first["task"])
    if how == "each":
        return replace(made, scales={})
    return replace(made, targets=_pooled_targets([own["targets"] for own in by_site.values()], first["task"]))


def _pooled_targets(by_site: Sequence[Sequence[Mapping[str, Any]]], task: TaskKind) -> tuple[Scale, ...]:
    if task != "regression":
        return ()
    whole = [
        pooled([ColumnStatistics(t["known"], 0, t["mean"], t["variance"]) for t in parts]) for parts in zip(*by_site)
    ]
    return tuple((s.mean, float(np.sqrt(s.variance)) or 1.0) for s in whole)


def _all_classes(parts: Sequence[tuple[str, ...]], problems: Problems) -> tuple[str, ...]:
    """Classes of all sites: numbered from 0, or texts in sorted order."""
    numbered = [own == tuple(map(str, range(len(own)))) for own in parts]
    if all(numbered):
        return max(parts, key=len)
    if any(numbered):
        problems.add("the labels are numbers at some sites and texts at others; use one form everywhere")
    return tuple(sorted({name for own in parts for name in own}, key=level_order))
