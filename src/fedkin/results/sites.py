"""Which method is best for each client? It is chosen on validation examples and judged on test examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedkin.data.federation import Federation
from fedkin.report.tables import score
from fedkin.results.interval import CONFIDENCE, Numbers, Predictions, Resamples, interval, too_few
from fedkin.results.run import Run
from fedkin.task import Task

REFERENCE = "local"
NO_METHOD = "no method is shown to be better than training alone here"
MOST_CLIENTS = 50  # with more clients there are no answers one by one, and no intervals


@dataclass(frozen=True)
class Cell:
    """One method at one client: means over seeds."""

    test: float | None
    validation: float | None
    error: float | None = None
    """Standard error of the test score, over draws of the test examples and seeds."""
    gain: float | None = None
    """How much better it is than training alone on test examples, whichever direction is better."""
    low: float | None = None
    high: float | None = None
    """The interval of the gain."""
    one_class: bool = False
    """Whether its model predicts the same class for every test example, in at least one seed."""


@dataclass(frozen=True)
class Site:
    """One client: every method there, the one to use, and why."""

    name: str
    test_examples: int
    """Number of different test examples, over all seeds."""
    validation_examples: int
    majority_rate: float | None
    """Accuracy of always predicting its most frequent class; None in a regression."""
    cells: dict[str, Cell]
    use: str
    """The chosen method, if it is shown to be better than training alone; else training alone."""
    advice: str


@dataclass
class Collected:
    """Results of one method's runs: maps from client to value, one for each seed."""

    test: list[dict[int, float | None]] = field(default_factory=list)
    validation: list[dict[int, float | None]] = field(default_factory=list)
    one_class: list[dict[int, Any]] = field(default_factory=list)
    predictions: list[dict[int, Predictions]] = field(default_factory=list)

    def add(self, run: Run, federation: Federation) -> None:
        last = run.summary["rounds"]
        self.test.append(run.history.values("personal", round=last))
        self.validation.append(run.history.values("validation", round=last))
        self.one_class.append(run.history.values("one_class", round=last))
        kept = run.with_models if len(federation) <= MOST_CLIENTS else ()
        self.predictions.append({run.clients.index(name): _predictions(run, federation, name) for name in kept})

    def by_seed(self) -> list[Collected]:
        """The test scores of each seed by themselves."""
        return [Collected(test=[scores]) for scores in self.test]


def _predictions(run: Run, federation: Federation, name: str) -> Predictions:
    """A client's personal model on its test examples."""
    client = run.clients.index(name)
    test = federation.test(client)
    outputs = run.predict_scores(name, test.x)
    return Predictions(federation.splits[client].test, outputs.numpy(), test.y.numpy())


class Draws:
    """Every method's score at every client, on the same draws of the client's test examples."""

    def __init__(self, methods: Mapping[str, Collected], clients: int, task: Task, reference: str = REFERENCE) -> None:
        self.reference = reference
        metric = task.known[task.headline]
        self.sign = 1 if task.higher_is_better else -1
        self.examples: dict[int, int] = {}
        self.too_few: dict[int, str] = {}
        self.scores: dict[tuple[str, int], Numbers] = {}
        for client in range(clients):
            found = {name: _in_all_seeds(m.predictions, client) for name, m in methods.items()}
            some = next((p for p in found.values() if p), None)
            if some is None:
                continue
            resamples = Resamples([p.examples for p in some], seed=client)
            self.examples[client] = resamples.examples
            self.too_few[client] = too_few(metric, some, classes=task.has_classes)
            self.scores |= {(name, client): resamples.scores(metric, p) for name, p in found.items() if p}

    def error(self, method: str, client: int) -> float | None:
        draws = self.scores.get((method, client))
        return None if draws is None or np.isnan(draws).all() else float(np.nanstd(draws))

    def gain(self, method: str, client: int, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
        """The interval of a client's gain over training alone."""
        one, other = self.scores.get((method, client)), self.scores.get((self.reference, client))
        if one is None or other is None:
            return None
        return interval(self.sign * (one - other), self.examples[client], confidence)

    def mean_gain(self, method: str, clients: int) -> tuple[float, float] | None:
        """The interval of the mean gain of these clients: their examples are drawn, the clients are not. None if one of
        them has too few examples."""
        pairs = [(self.scores.get((method, c)), self.scores.get((self.reference, c))) for c in range(clients)]
        there = [one - other for one, other in pairs if one is not None and other is not None]
        if len(there) < clients or any(self.too_few.values()):
            return None
        return interval(self.sign * np.mean(there, axis=0), sum(self.examples.values()))

    def no_interval(self, names: Sequence[str]) -> str:
        """Why the mean gain of these clients has no interval; empty if it may have one."""
        if len(names) > MOST_CLIENTS:
            return f"there are more than {MOST_CLIENTS} clients"
        for client, why in self.too_few.items():
            if why:
                others = sum(map(bool, self.too_few.values())) - 1
                return f"{names[client]}{f' and {others} more' if others else ''}: {why}"
        return ""


def answers(
    methods: Mapping[str, Collected], federations: Sequence[Federation], task: Task, draws: Draws
) -> tuple[Site, ...]:
    """The answer for each client. The federations, one for each seed, have the same clients."""
    return tuple(_site(client, methods, federations, task, draws) for client in range(len(federations[0])))


def _site(
    client: int, methods: Mapping[str, Collected], federations: Sequence[Federation], task: Task, draws: Draws
) -> Site:
    first = federations[0]
    test = {name: _mean([seed.get(client) for seed in m.test]) for name, m in methods.items()}
    validation = {name: _mean([seed.get(client) for seed in m.validation]) for name, m in methods.items()}
    on_test = all(value is None for value in validation.values())
    chosen = _best(test if on_test else validation, draws.sign, draws.reference)
    # a method chosen on the same examples that judge it is one of several comparisons: the interval is widened for all
    confidence = 1 - (1 - CONFIDENCE) / max(1, len(methods) - 1) if on_test else CONFIDENCE
    cells = {}
    for name, m in methods.items():
        alone = name == draws.reference
        low, high = (None if alone else draws.gain(name, client, confidence)) or (None, None)
        gain = None if alone else gain_of(m, methods.get(draws.reference), client, draws.sign)
        constant = any(client in seed for seed in m.one_class)
        cells[name] = Cell(test[name], validation[name], draws.error(name, client), gain, low, high, constant)
    examples = len({int(i) for fed in federations for i in fed.splits[client].test})
    said = Advice(cells, chosen, task, examples, on_test, draws.too_few.get(client, ""), draws.reference)
    majority = _mean([fed.majority_rate(client) for fed in federations]) if first.classes else None
    held = round(float(np.mean([len(fed.splits[client].validation) for fed in federations])))
    return Site(first.names[client], examples, held, majority, cells, said.use, f"{first.names[client]}: {said.text}")


def _best(values: Mapping[str, float | None], sign: int, reference: str) -> str:
    """The method with the best score; among equals, training alone, else the first."""
    order = sorted(values, key=lambda name: name != reference)
    return max(order, key=lambda name: -np.inf if (value := values[name]) is None else sign * value)


def gain_of(method: Collected, reference: Collected | None, client: int, sign: int) -> float | None:
    """A client's gain over the reference: mean over the seeds in which both were measured."""
    if reference is None:
        return None
    pairs = [(a.get(client), b.get(client)) for a, b in zip(method.test, reference.test)]
    return _mean([sign * (a - b) for a, b in pairs if a is not None and b is not None])


@dataclass(frozen=True)
class Advice:
    """What a client should use, in one line."""

    cells: Mapping[str, Cell]
    chosen: str
    task: Task
    examples: int
    on_test: bool
    too_few: str
    reference: str = REFERENCE
    """The label of training alone."""

    @property
    def _decided(self) -> bool:
        low = self.cells[self.chosen].low
        return not self.too_few and low is not None and low > 0

    @property
    def use(self) -> str:
        return self.chosen if self._decided or self.reference not in self.cells else self.reference

    @property
    def text(self) -> str:
        cell = self.cells[self.chosen]
        constant = "; this model predicts one class only" if cell.one_class else ""
        how = "chosen on test examples: there is no validation score" if self.on_test else "chosen on validation"
        if all(c.test is None for c in self.cells.values()):
            return (
                f"not decided, the {self.task.headline} of its {self.examples} test examples is not defined{constant}"
            )
        if self.reference not in self.cells:
            return f"{self._score} ({self.examples} test examples; {how}){constant}"
        if self.chosen == self.reference:
            verdict = f"not decided, {self.too_few}" if self.too_few else NO_METHOD
            return f"{verdict}: {self._score} ({how}){constant}"
        if cell.gain is None:
            return f"not decided, the {self.task.headline} cannot be measured: {self.chosen} ({how})"
        gain = f"{self._score}, {self._signed(cell.gain)} over training alone"
        if cell.low is None or cell.high is None or self.too_few:
            no_interval = f"no interval (no models were kept, or there are more than {MOST_CLIENTS} clients)"
            return f"not decided, {self.too_few or no_interval}: {gain} ({how}){constant}"
        ends = f"95 % interval {self._signed(cell.low)} to {self._signed(cell.high)}"
        end = f"{gain} ({ends}, {self.examples} test examples; {how}){constant}"
        return end if self._decided else f"{NO_METHOD}: {end}"

    @property
    def _percent(self) -> bool:
        return self.task.known[self.task.headline].percent

    @property
    def _score(self) -> str:
        value = score(self.cells[self.chosen].test, in_percent=self._percent)
        return f"{self.chosen}, {self.task.headline} {value}{' %' if self._percent else ''}"

    def _signed(self, value: float) -> str:
        return f"{100 * value:+.2f}" if self._percent else f"{value:+.3g}"


def _in_all_seeds(predictions: Sequence[Mapping[int, Predictions]], client: int) -> list[Predictions]:
    """A client's predictions, one entry for each seed; none where one is missing."""
    found = [seed[client] for seed in predictions if client in seed]
    return found if len(found) == len(predictions) else []


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return float(np.mean(there)) if there else None
