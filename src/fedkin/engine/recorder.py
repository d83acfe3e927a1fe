"""The recorder: everything that a run writes to its history, and how large it may become."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil, isfinite
from typing import Any

import numpy as np
from torch import Tensor

from fedkin.data.federation import Population
from fedkin.engine.costs import Device, Tally
from fedkin.maths.cluster import rand_index
from fedkin.protocol import Method, State
from fedkin.results.history import ALL, PARTICIPANTS, History

MIXING_LIMIT = 400  # with more clients than this, the matrix of who learns from whom is not written
MIXING_CELLS = 5_000  # with more numbers than this in a round, matrices are written every second, third, … round only
SHOWN = ("personal", "received", "personal_loss")  # scores whose means are shown while a run goes on


class Recorder:
    def __init__(self, history: History, federation: Population, device: Device) -> None:
        self.history = history
        self._federation, self._device = federation, device
        self._sums: dict[tuple[int, str], tuple[float, int]] = {}

    def facts(self) -> None:
        """Record what is known about the clients before round 1."""
        for client, metric, value in self._federation.facts():
            self.history.add(0, client, metric, value)

    def warning(self, text: str) -> None:
        """Record why the method cannot act in this run."""
        self.history.add(0, None, "warning", text)

    # ---- what clients did
    def participants(self, round: int, client: int, scores: Mapping[str, float]) -> None:
        """Scores of a participant of the next round: of the state after `round`, before that client's work."""
        self._scores(round, client, scores, PARTICIPANTS)

    def evaluated(self, round: int, client: int, scores: Mapping[str, float]) -> None:
        """Scores from an evaluation of all clients after `round`."""
        self._scores(round, client, scores, ALL)

    def _scores(self, round: int, client: int, scores: Mapping[str, float], scope: str) -> None:
        for metric, value in scores.items():
            self.history.add(round, client, metric, value, scope)
            if metric in SHOWN and isfinite(value):
                total, count = self._sums.get((round, metric), (0.0, 0))
                self._sums[round, metric] = total + value, count + 1

    def means(self, round: int) -> dict[str, float]:
        """Mean scores of the state after this round, over the measured clients. Earlier rounds are dropped."""
        out = {metric: total / count for (r, metric), (total, count) in self._sums.items() if r == round}
        self._sums = {key: value for key, value in self._sums.items() if key[0] > round}
        return out

    def one_class(self, round: int, client: int) -> None:
        """Record that the client's personal model predicts the same class for every test example."""
        self.history.add(round, client, "one_class", True, ALL)

    def unmeasured(self, round: int, client: int, why: str, scope: str = ALL) -> None:
        self.history.add(round, client, "unmeasured", why, scope)

    def notes(self, round: int, client: int, notes: Iterable[str], scope: str = "") -> None:
        for note in notes:
            self.history.add(round, client, "note", note, scope)

    def dropped(self, round: int, client: int, why: str) -> None:
        self.history.add(round, client, "dropped", why)

    def hostile(self, clients: Iterable[int]) -> None:
        """Record the clients whose attacks are simulated."""
        for client in sorted(clients):
            self.history.add(0, client, "hostile", True)

    def suspected(self, round: int, client: int, metric: str, why: str) -> None:
        """Record a reply that is unlike the others (`outlier`), or not used by the defense (`left_out`)."""
        self.history.add(round, client, metric, why)

    def released(self, round: int, client: int, count: int) -> None:
        """Record the number of noisy releases of a client's data."""
        if count:
            self.history.add(round, client, "released", count)

    def lost_round(self, round: int) -> None:
        self.history.add(round, None, "lost_round", True)

    # ---- what a round cost
    def costs(self, round: int, tally: Tally) -> None:
        for client in sorted(tally.down):
            self.history.add(round, client, "bytes_down", tally.down[client])
            self.history.add(round, client, "bytes_up", tally.up[client])
            self.history.add(round, client, "flops", tally.flops[client])
        compute, communication = tally.seconds(self._device)
        self.history.add(round, None, "compute_seconds", compute)
        self.history.add(round, None, "communication_seconds", communication)

    # ---- what the method shows
    def describe(self, round: int, method: Method, state: State) -> None:
        groups = self._federation.groups
        for metric, value in method.describe(state).items():
            self.history.add(round, None, metric, plain(value))
            if metric == "clusters" and groups is not None:
                pairs = [(t, c) for t, c in zip(groups.tolist(), plain(value)) if c is not None and c >= 0]
                if len(pairs) > 1:
                    self.history.add(round, None, "rand_index", rand_index(*zip(*pairs)))
        clients = len(self._federation)
        if clients <= MIXING_LIMIT and (mixing := method.mixing(state)) is not None:
            parts = len(mixing) if isinstance(mixing, dict) else 1
            if round == 1 or round % ceil(parts * clients**2 / MIXING_CELLS) == 0:
                self.history.add(round, None, "mixing", plain(mixing))


def plain(value: Any) -> Any:
    """For JSON: numbers and lists, rounded to six digits; what is not finite becomes null."""
    if isinstance(value, Tensor):
        value = value.detach().numpy()
    if isinstance(value, np.ndarray):
        if not np.issubdtype(value.dtype, np.floating) or not np.isfinite(value).all():
            return plain(value.tolist())
        with np.errstate(divide="ignore"):
            digits = 10.0 ** (5 - np.floor(np.log10(np.abs(value.astype(float)))))
        return np.where(value == 0, 0.0, np.round(value * np.where(value == 0, 1, digits)) / digits).tolist()
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, float):
        return float(f"{value:.6g}") if isfinite(value) else None
    return value
