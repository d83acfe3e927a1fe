"""Words for readers of charts and tables: what classes are called, and how examples are spread over clients."""

from __future__ import annotations

from typing import Any

# Data sets whose files hold numbers only; their authors name them.
KNOWN = {
    "cifar10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    "fashion-mnist": (
        "T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
    ),
    "har": ("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "laying"),
}  # fmt: skip


def class_names(config: dict[str, Any]) -> list[str] | None:
    """The names in the order of the classes; None if the classes only have numbers."""
    federation = config["federation"]
    inputs, prepared = config.get("inputs") or {}, federation.get("preprocessing") or {}
    found = inputs.get("class_names") or prepared.get("classes") or KNOWN.get(str(federation.get("data")), ())
    names = [str(name) for name in found]
    return names if names and names != [str(k) for k in range(len(names))] else None


def partition_words(partition: object) -> str:
    """How the examples are spread over clients. `by_group` says nothing to a reader."""
    return "the data's own clients" if partition in (None, "own", "by_group") else str(partition)
