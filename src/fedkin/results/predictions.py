"""Predictions as a table: columns of the input that are kept, then what the model says of each example."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedkin.results.joining import is_numeric

if TYPE_CHECKING:
    from fedkin.results.run import Run


def predictions(run: Run, client: str | int, x: Any, keep: Sequence[str]) -> dict[str, list[Any]]:
    """`Run.predictions`."""
    made: dict[str, list[Any]] = {}
    names = (keep,) if isinstance(keep, str) else tuple(keep)
    if names:
        if run.config["federation"].get("preprocessing") is None or is_numeric(x):
            raise ValueError("keep names columns; these examples are an array, which has none.")
        from fedkin.data.keep import kept

        made = kept(x, names)
    found = run.predict(client, x)
    inputs = run.config["inputs"]
    numbers = [str(i) for i in range(inputs["outputs"])]
    named = inputs["class_names"] if run.task.has_classes else inputs.get("targets")
    own: dict[str, list[Any]] = {"prediction": found.tolist()}
    if found.ndim == 2:  # several labels, or several numbers
        named = named if named and len(named) == found.shape[1] else numbers
        own = {f"prediction of {name}": column for name, column in zip(named, found.T.tolist())}
    if run.task.has_classes or run.task.kind == "multilabel":
        chances = run.predict_proba(client, x)
        own |= {f"probability of {name}": column for name, column in zip(named or numbers, chances.T.tolist())}
    if both := [name for name in own if name in made]:
        raise ValueError(f"keep names a column '{both[0]}', as the predictions have one: rename it in the table.")
    return {**made, **own}
