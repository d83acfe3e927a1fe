"""What the declarations of a paper's experiments are made of. Nothing here runs anything."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedkin.experiments.outcome import Outcome
    from fedkin.results.history import History

Size = Literal["full", "half", "tenth", "smoke"]


@dataclass(frozen=True)
class Setting:
    """A federation and how it is trained, as the paper has it (the scale `full`)."""

    data: str
    partition: str
    clients: int
    rows: int
    """Rows of a client before they are split, as the paper has it: its training set over its clients."""
    rounds: int
    model: str
    partition_options: Mapping[str, Any] = field(default_factory=dict)
    test: float = 0.2
    """Share of a client's rows to test on; a further tenth is for validation."""
    participation: float = 1.0
    lr: float = 0.01
    epochs: int = 1
    batch_size: int = 32
    batches: int = 0
    """Instead of batch_size: so many batches in an epoch."""
    evaluate_every: int = 0
    """Of this many rounds one is measured at all clients, at scale full; 0: the last alone."""
    clients_matter: bool = False
    """Their number is what the experiment is about, or belongs to its partition: smaller scales keep it."""
    least_rounds: int = 10
    """Below so many rounds the method does not get to do what it is about: smaller scales keep them (not smoke)."""
    level: Literal["", "Low", "Mid", "High"] = ""
    """Of 100 draws of the partition, one of this third of the range of mean KLD (DC-PFL, sec. V-D)."""
    arrive_share: float = 0.0
    """This share of the clients, from the last, joins late: …"""
    arrive_rounds: int = 3
    """… for so many rounds at the end, at every scale."""


@dataclass(frozen=True)
class Scale:
    """The same experiment, smaller, in a fixed way."""

    name: Size
    rows: float
    rounds: float
    seeds: int
    """At most; the paper's own number where that is smaller."""
    width: float
    lr: float
    """Factor on the learning rate: there are fewer steps to get anywhere."""
    says: str
    least_rows: int = 40
    """Of a client, where the paper has more: to hold every class it should, and test rows."""
    most_rows: int = 10**9
    rows_in_all: int = 10**9
    """Of all clients together, where that leaves `least_rows` to each."""
    test: float = 0.2
    """Share of a client's rows to test on. They cost little: with few clients or rows, more of them say more."""
    most_clients: int = 10**9
    """Where their number is not what the experiment is about."""
    most_rounds: int = 10**9
    most_epochs: int = 10**9
    most_batch: int = 10**9
    """Smaller batches with fewer rows: so that there remain steps to take."""
    most_runs: int = 10**9
    """Of an item, in as many seeds as that leaves (at least one)."""
    network: str = ""
    """In place of deeper convolutional networks: those are still at chance after so few steps (measured)."""


SCALES: dict[str, Scale] = {
    "full": Scale("full", 1, 1, 99, 1, 1, "the paper's setting"),
    "half": Scale("half", 0.5, 0.5, 3, 1, 1, "half the rows, half the rounds"),
    "tenth": Scale(
        "tenth",
        0.2,
        0.1,
        3,
        0.5,
        5,
        "at most 50 clients (where their number is not the subject) of a fifth of the rows (80 to 120 a client, at "
        "most 4,000 in all if that leaves 80), 40 % of them to learn from, 10 % to validate, 50 % to test; a tenth of "
        "the rounds (10 to 20), at most 2 local epochs, batches of at most 16; networks of half the width, cnn2 in "
        "place of deeper convolutional ones; 5 times the learning rate; at most 3 seeds and 200 runs",
        least_rows=80,
        most_rows=120,
        rows_in_all=4000,
        test=0.5,
        most_clients=50,
        most_rounds=20,
        most_epochs=2,
        most_batch=16,
        most_runs=200,
        network="cnn2",
    ),
    "smoke": Scale(
        "smoke",
        0,
        0,
        1,
        0.25,
        5,
        "2 rounds of 1 epoch, at most 20 clients of 20 rows, networks of a quarter of the width, 1 seed",
        20,
        most_clients=20,
    ),
}

DEEP = ("cnn3", "cnn6", "cnn3fc3", "lenet")


def scaled(setting: Setting, scale: Scale) -> Setting:
    if scale.name == "full":
        return setting
    if scale.name == "smoke":
        setting = replace(setting, epochs=1, least_rounds=2)
    rounds = min(setting.rounds, scale.most_rounds, max(round(setting.rounds * scale.rounds), setting.least_rounds))
    clients = setting.clients if setting.clients_matter else min(setting.clients, scale.most_clients)
    wanted = min(round(setting.rows * scale.rows), scale.rows_in_all // clients)
    rows = min(setting.rows, scale.most_rows, max(scale.least_rows, wanted))
    every = ceil(setting.evaluate_every * rounds / setting.rounds) if setting.evaluate_every else 0
    return replace(
        setting,
        clients=clients,
        model=scale.network if scale.network and setting.model in DEEP else setting.model,
        rows=rows,
        test=scale.test,
        rounds=rounds,
        lr=setting.lr * scale.lr,
        evaluate_every=every,
        epochs=min(setting.epochs, scale.most_epochs),
        batch_size=min(setting.batch_size, scale.most_batch),
    )


@dataclass(frozen=True)
class Cell:
    """One method in one setting: an entry of a table, a curve of a figure."""

    row: str
    column: str
    method: str
    """As `fedkin compare` takes it, with options after commas; {epochs} stands for the local epochs, {eighth}
    for such a part of the rounds, but at least 8 of them."""
    setting: Setting
    paper: Mapping[str, float] = field(default_factory=dict)
    """The paper's own number for each measure."""


@dataclass(frozen=True)
class Run:
    """A finished run of a cell with one seed."""

    cell: Cell
    seed: int
    folder: Path

    @cached_property
    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return found

    @cached_property
    def history(self) -> History:
        from fedkin.results.history import History

        return History.load(self.folder)


Measure = Callable[[Run], float | None]


@dataclass(frozen=True)
class Claim:
    """The paper says that `above` has a larger `measure` than `below`; both are (row, column), of one column."""

    above: tuple[str, str]
    below: tuple[str, str]
    measure: str
    ours: bool = False
    """Not the paper's: we say it."""

    def text(self) -> str:
        return f"{self.above[0]} above {self.below[0]} ({self.measure}{', our claim' if self.ours else ''})"


@dataclass(frozen=True)
class Item:
    """A table or figure of a paper."""

    title: str
    place: str
    """Where it stands in the paper."""
    cells: tuple[Cell, ...]
    measures: Mapping[str, Measure]
    """What is read from each run; the first is the headline."""
    claims: tuple[Claim, ...] = ()
    figure: Callable[[Outcome], Figure] | None = None
    seeds: int = 3
    formats: Mapping[str, str] = field(default_factory=dict)
    """How a measure is written: "percent" (default), "number", "seconds"."""
    notes: str = ""
    """What the paper leaves open here, and how it is read."""
    means: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Further columns: means over these others."""
    paper_means: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """(row, such a column) to the paper's headline number."""

    def columns(self) -> list[str]:
        """Without means."""
        return list(dict.fromkeys(cell.column for cell in self.cells))

    def rows(self) -> list[str]:
        return list(dict.fromkeys(cell.row for cell in self.cells))

    def seeds_at(self, scale: Scale) -> int:
        return min(self.seeds, scale.seeds, max(1, scale.most_runs // len(self.cells)))


def best_of(
    row: str, others: tuple[str, ...], columns: tuple[str, ...], measure: str = "accuracy"
) -> tuple[Claim, ...]:
    """`row` is above each of `others` in each of these columns."""
    return tuple(Claim((row, column), (other, column), measure) for column in columns for other in others)


def key(value: Any) -> str:
    """The same text for equal declarations."""
    return json.dumps(asdict(value) if hasattr(value, "__dataclass_fields__") else value, sort_keys=True)
