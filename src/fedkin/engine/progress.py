"""Progress on the terminal: a bar with round, loss, headline metric, clients per second and time left."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from importlib import import_module
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedkin.engine.trackers import Tracker
from fedkin.results.summary import ACCURACY

WARNINGS = 5  # a run with many lost replies must not hide its own progress


class Terminal(Tracker):
    def __init__(self, label: str, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=self._console, disable=not self._console.is_terminal)
        self._label, self._warned, self._scores = label, 0, ""
        self._headline = ACCURACY

    def start(self, config: dict[str, Any], done: int) -> None:
        total = config["options"]["rounds"]
        self._headline = config.get("task", ACCURACY)
        self._task = self._progress.add_task(self._label, total=total, completed=done, text="")
        self._progress.start()

    def participants(self, round: int, metrics: dict[str, float]) -> None:
        if "personal" in metrics:
            loss, score = metrics["personal_loss"], metrics["personal"]
            shown = f"{score:.1%}" if self._headline["percent"] else f"{score:.4g}"
            self._scores = f"after round {round}: loss {loss:.3f}, {self._headline['headline']} {shown}, "

    def round(self, round: int, metrics: dict[str, float]) -> None:
        self.participants(round, metrics)
        speed = f"{metrics['clients'] / max(metrics['seconds'], 1e-9):.0f} clients/s"
        self._progress.update(self._task, completed=round, text=self._scores + speed)

    def warn(self, text: str) -> None:
        self._warned += 1
        if self._warned <= WARNINGS:
            more = " (further warnings are only in the history)" if self._warned == WARNINGS else ""
            self._console.print(f"{self._label}: {text}{more}", highlight=False, markup=False)

    def finish(self, summary: dict[str, Any]) -> None:
        self._progress.stop()


class Notebook(Tracker):
    """A bar in a notebook, drawn by the browser. It needs IPython, which a notebook has, and no widgets."""

    def __init__(self, label: str) -> None:
        display = import_module("IPython.display")
        self._html, self._label, self._total, self._warned = display.HTML, label, 1, 0
        self._shown = display.display(display.HTML(""), display_id=True)

    def start(self, config: dict[str, Any], done: int) -> None:
        self._total = config["options"]["rounds"]
        self._draw(done)

    def round(self, round: int, metrics: dict[str, float]) -> None:
        loss = f", loss {metrics['personal_loss']:.3f}" if "personal_loss" in metrics else ""
        self._draw(round, loss)

    def warn(self, text: str) -> None:
        self._warned += 1
        if self._warned <= WARNINGS:
            print(f"{self._label}: {text}")

    def _draw(self, done: int, text: str = "") -> None:
        bar = f'<progress value="{done}" max="{self._total}"></progress>'
        self._shown.update(self._html(f"<div>{escape(self._label)} {bar} {done} of {self._total} rounds{text}</div>"))


def automatic(label: str) -> list[Tracker]:
    """The default trackers: a bar in a notebook, nothing elsewhere."""
    if "IPython" not in sys.modules:
        return []
    kernel = (
        type(sys.modules["IPython"].get_ipython()).__name__ == "ZMQInteractiveShell"
    )  # a notebook, not IPython in a terminal
    return [Notebook(label)] if kernel else []


@contextmanager
def counting(label: str, console: Console) -> Iterator[Callable[[int, int, str], None]]:
    """A bar over many runs, with the time left. Without a terminal: a line for each finished run."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(label)

        def on_progress(done: int, total: int, ended: str) -> None:
            progress.update(task, completed=done, total=total)
            if not console.is_terminal and ended:
                console.print(f"{label}: {done} of {total}, {ended}", markup=False, highlight=False)

        yield on_progress
