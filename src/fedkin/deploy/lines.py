"""Progress of a deployed run in the server's log."""

from __future__ import annotations

from typing import Any

from fedkin.engine.trackers import Tracker


class Lines(Tracker):
    """Progress in the server's log."""

    def __init__(self) -> None:
        self._scores = "nothing measured"

    def start(self, config: dict[str, Any], done: int) -> None:
        self._rounds, self._metric = config["options"]["rounds"], config["task"]["headline"]
        say(f"{config['label']}: {done} of {self._rounds} rounds are done" if done else f"{config['label']}: starting")

    def round(self, round: int, metrics: dict[str, float]) -> None:
        self.participants(round, metrics)
        say(
            f"round {round} of {self._rounds}: {metrics['clients']:.0f} answers, {metrics['seconds']:.1f} s; "
            f"{self._scores}"
        )

    def participants(self, round: int, metrics: dict[str, float]) -> None:
        if scores := ", ".join(f"{name} {metrics[name]:.3f}" for name in ("personal", "received") if name in metrics):
            self._scores = f"after round {round}: {self._metric}: {scores}"

    def warn(self, text: str) -> None:
        say(text)

    def finish(self, summary: dict[str, Any]) -> None:
        mean = f"{self._metric}: personal {summary['personal']['mean']:.3f}"
        say(f"finished: {mean}, {summary['dropped']} replies dropped")


def say(text: str) -> None:
    print(f"fedkin: {text}", flush=True)
