"""The parts from which a paper's experiments are declared. Nothing here runs anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedkin.experiments.outcome import Outcome

SCALES: dict[str, str] = {
    "full": "exactly the paper's setting, as far as the paper states it",
    "desk": "sizes chosen for each item so that FedAvg comes close to its plateau; some columns are left out",
    "smoke": "2 rounds of 1 epoch, at most 20 clients of 20 examples, networks of a quarter of the width, 1 seed",
}


@dataclass(frozen=True)
class Setting:
    """A federation and how it is trained.

    Only fields that differ from their defaults enter a cell's key, so a new field with a default keeps every stored
    result valid. Never change a default.
    """

    data: str
    partition: str
    clients: int
    rounds: int
    model: str
    partition_options: Mapping[str, Any] = field(default_factory=dict)
    width: float = 1.0
    """Multiplies the units of each layer."""
    examples: int = 0
    """Maximum number of examples per client, before they are split; 0: all that the partition gives it."""
    test: float = 0.2
    """Fraction of a client's examples used for testing."""
    validation: float = 0.0
    """Fraction of a client's examples used for validation."""
    train_examples: int = 0
    """Training examples of each client, drawn for each client by itself with the partition's labels, so that two
    clients may hold the same image (rotated: no two of one rotation). 0: the partition's own, which are disjoint."""
    official_test: int = 0
    """Test examples of each client, drawn from the official test part with the client's labels. 0: the client's own."""
    participation: float = 1.0
    lr: float = 0.01
    epochs: int = 1
    batch_size: int = 32
    batches: int = 0
    """Instead of batch_size: the number of batches in an epoch."""
    evaluate_every: int = 0
    """Rounds between evaluations of all clients; 0: only after the last round. Does not change any result."""
    level: Literal["", "Low", "Mid", "High"] = ""
    """Of 100 draws of the partition, use one from this third of the range of mean KLD (DC-PFL, sec. V-D)."""
    arrive_share: float = 0.0
    """Fraction of the clients, counted from the last, that joins late: …"""
    arrive_rounds: int = 3
    """… for this many rounds at the end."""

    def changed(self) -> dict[str, Any]:
        """The fields that are required or differ from their defaults."""
        out: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            default = f.default if f.default_factory is MISSING else f.default_factory()
            if value != default:
                out[f.name] = dict(value) if isinstance(value, Mapping) else value
        return out

    @property
    def redrawn(self) -> bool:
        """Does each seed have other clients? Groups that the data name are the same in all seeds."""
        return self.partition != "by_group"


def tiny(setting: Setting) -> Setting:
    """The setting at the scale `smoke`, which only checks that it runs."""
    return replace(
        setting,
        clients=min(setting.clients, 20),
        examples=20,
        train_examples=0,
        official_test=0,
        test=0.2,
        validation=0.1,
        rounds=2,
        epochs=1,
        lr=0.05,
        width=0.25 * setting.width,
        evaluate_every=1 if setting.evaluate_every else 0,
    )


@dataclass(frozen=True)
class Cell:
    """One method in one setting: an entry of a table, a curve of a figure."""

    row: str
    column: str
    method: str
    """As `fedkin compare` takes it, with options after commas; {epochs} stands for the setting's local epochs."""
    setting: Setting
    """The paper's setting."""
    desk: Setting | None = None
    """The setting at the scale `desk`; None: not run there."""
    paper: Mapping[str, float] = field(default_factory=dict)
    """The paper's own number for each measure."""

    def at(self, scale: str) -> Setting | None:
        if scale == "full":
            return self.setting
        return self.desk if scale == "desk" else tiny(self.desk or self.setting)


@dataclass(frozen=True)
class Run:
    """A finished run of a cell with one seed. `result` is what `cells.extract` keeps of it."""

    cell: Cell
    setting: Setting
    seed: int
    result: Mapping[str, Any]

    def clients(self, metric: str) -> NDArray[np.float64]:
        """The value of each client after the last round; NaN where it was not measured."""
        return np.array([np.nan if v is None else v for v in self.result.get(metric) or ()], float)


@dataclass(frozen=True)
class Measure:
    """One number of a run."""

    of: Callable[[Run], float | None]
    clients: Callable[[Run], NDArray[np.float64]] | None = None
    """The values of the clients that it summarizes: verdicts then use pairs (seed, client)."""
    statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None
    """How it summarizes them; None: the mean."""
    margin: float = 0.0
    """Differences within this margin count as level."""
    style: Literal["percent", "number"] = "number"
    needs: tuple[str, ...] = ()
    """What must be kept of a run's history: "curve", "time", "mixing", "labels", or a metric that the method writes."""
    at_least: Callable[[Run], float | None] | None = None
    """If the run ended too early for a number: what the number would at least be."""
    least: Callable[[Run], float] | None = None
    """The smallest number that can be measured: if all have it, they cannot be told apart."""


@dataclass(frozen=True)
class Claim:
    """The paper says that `above` has a larger `measure` than `below`; both are (row, column), of one column."""

    above: tuple[str, str]
    below: tuple[str, str]
    measure: str
    ours: bool = False
    """The claim is ours, not the paper's."""

    @property
    def pair(self) -> str:
        return f"{self.above[0]} above {self.below[0]}"

    def text(self) -> str:
        return f"{self.pair} ({self.measure}{', our claim' if self.ours else ''})"


@dataclass(frozen=True)
class Item:
    """A table or figure of a paper."""

    title: str
    where: str
    """Its number and section in the paper."""
    cells: tuple[Cell, ...]
    measures: Mapping[str, Measure]
    """What is read from each run; the first is the headline."""
    claims: tuple[Claim, ...] = ()
    figure: Callable[[Outcome], Figure] | None = None
    figure_needs: tuple[str, ...] = ()
    """Like Measure.needs, for the figure."""
    seeds: int = 3
    notes: str = ""
    """What the paper leaves open here, and how it is read."""
    desk: str = ""
    """The sizes at scale desk, in words."""
    means: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Further columns: means over these others."""
    paper_means: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """Maps (row, column of means) to the paper's headline number."""

    def columns(self) -> list[str]:
        """The columns, without columns of means."""
        return list(dict.fromkeys(cell.column for cell in self.cells))

    def rows(self) -> list[str]:
        return list(dict.fromkeys(cell.row for cell in self.cells))

    def seeds_at(self, scale: str) -> int:
        return 1 if scale == "smoke" else self.seeds

    @property
    def keep(self) -> frozenset[str]:
        return frozenset(self.figure_needs).union(*(m.needs for m in self.measures.values()))


def best_of(
    row: str, others: tuple[str, ...], columns: tuple[str, ...], *measures: str, ours: bool = False
) -> tuple[Claim, ...]:
    """`row` is above each of `others` in each of these columns, by each of these measures (default: accuracy)."""
    return tuple(
        Claim((row, column), (other, column), measure, ours)
        for column in columns
        for other in others
        for measure in measures or ("accuracy",)
    )
