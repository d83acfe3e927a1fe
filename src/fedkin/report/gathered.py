"""One run's records, sorted by what they are about. Records can be added as the run writes them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from fedkin.report import compact
from fedkin.results.history import ALL, PARTICIPANTS, Record
from fedkin.results.summary import spread

MOST_NAMED = 20  # dropped replies, and outliers, that are listed one by one
PART = "model_weight_"  # metrics that say how much a client's model relies on each of its parts
SCORES = ("personal", "received", "personal_loss")
# Not shown as a chart of its own: it repeats other records, or another panel shows it.
SHOWN_ELSEWHERE = {"mixing", "attention", "compute_seconds", "communication_seconds", "mean_kld", "true_edges"}


class Gathered:
    def __init__(self) -> None:
        self.facts: dict[str, list[compact.Frame]] = {}
        self.mixing: list[compact.Frame] = []
        self.scores: dict[str, dict[int, dict[int, float]]] = {metric: {} for metric in SCORES}
        """By metric, round and client."""
        self.evaluated: set[int] = set()
        """Rounds after which all clients were evaluated."""
        self._evaluated: set[tuple[int, str]] = set()
        self.costs: dict[str, dict[int, float]] = {k: {} for k in ("down", "up", "flops", "compute", "communication")}
        self.dropped = 0
        self.dropped_first: list[list[Any]] = []
        self.outliers: Counter[int] = Counter()
        """In how many rounds the defense named a client."""
        self.about: dict[str, dict[int, Any]] = {}
        self.size = 0
        """Number of clients."""
        self.parts: dict[str, dict[int, float]] = {}
        """How much each client's model relies on each of its parts, at the last measurement."""
        self.edges: Any = None
        self.mean_kld: float | None = None
        self.done = 0
        self._records = 0

    def take(self, record: Record) -> None:
        round, client, metric, value, scope = record
        self._records += 1
        self.done = max(self.done, round)
        if metric in self.scores and client is not None:
            if scope not in (ALL, PARTICIPANTS) or not round:
                return  # it is not a score of the state after a round, so it does not belong on a curve
            table = self.scores[metric].setdefault(round, {})
            if scope == ALL and (round, metric) not in self._evaluated:
                table.clear()
                self._evaluated.add((round, metric))
                self.evaluated.add(round)
            if value is not None:
                table[client] = value
        elif metric.startswith(PART) and client is not None:
            if scope == ALL and value is not None:
                self.parts.setdefault(metric.removeprefix(PART), {})[client] = value
        elif round == 0 and client is not None:
            self.about.setdefault(metric, {})[client] = value
            self.size = max(self.size, client + 1)
        elif metric in ("bytes_down", "bytes_up", "flops") and client is not None:
            kind = metric.removeprefix("bytes_")
            self.costs[kind][round] = self.costs[kind].get(round, 0) + (value or 0)
        elif metric in ("compute_seconds", "communication_seconds"):
            self.costs[metric.removesuffix("_seconds")][round] = value or 0
        elif metric == "dropped":
            self.dropped += 1
            if self.dropped <= MOST_NAMED:
                self.dropped_first.append([round, client, str(value)])
        elif metric == "outlier" and client is not None:
            self.outliers[client] += 1
        elif metric == "mixing":
            self.mixing.append(compact.mixing_frame(round, value))
        elif metric == "true_edges":
            self.edges = value
        elif metric == "mean_kld":
            self.mean_kld = value
        elif client is None and metric not in SHOWN_ELSEWHERE:
            self.facts.setdefault(metric, []).append(compact.fact_frame(round, value))

    def federation(self) -> dict[str, Any]:
        names = self.about.get("name", {})

        def column(metric: str) -> list[Any] | None:
            table = self.about.get(metric)
            return [table.get(c) for c in range(self.size)] if table else None

        return {
            "names": [str(names.get(c, f"client {c}")) for c in range(self.size)],
            "train": column("train_examples"),
            "validation": column("validation_examples"),
            "test": column("test_examples"),
            "labels": column("labels"),
            "group": column("group"),
            "edges": self.edges,
            "mean_kld": self.mean_kld,
        }

    def check(self, folder: Path) -> None:
        """Raise if there are more clients or rounds than records: each of them has one."""
        if max(self.size, self.done) > self._records:
            raise ValueError(f"{folder / 'history.jsonl'} is damaged: it has clients or rounds that do not exist.")

    def outcome(self, planned: int, higher_is_better: bool) -> dict[str, Any]:
        """The results of a run: after its last round, or after the latest one if it is not finished."""
        out: dict[str, Any] = {
            "rounds": self.done,
            "planned": planned,
            "finished": self.done >= planned and planned in self.evaluated,
            **{kind: sum(table.values()) for kind, table in self.costs.items()},
            "dropped": self.dropped,
            "dropped_first": self.dropped_first,
            "outliers": [list(o) for o in sorted(self.outliers.items(), key=lambda o: (-o[1], o[0]))[:MOST_NAMED]],
        }
        for metric in ("personal", "received"):
            measured = self.scores[metric]
            if not measured:
                continue
            last = max(measured)
            if found := spread(measured[last], dict.fromkeys(measured[last], 1.0), higher_is_better):
                kept = {key: found[key] for key in ("mean", "std", "worst_decile")}
                out[metric] = {"round": last, **kept, "clients": len(measured[last])}
                out[f"last_{metric}"] = [compact.rounded(measured[last].get(c)) for c in range(self.size)]
        return out
