"""`fedkin cite METHOD …`: BibTeX of the methods' papers."""

from __future__ import annotations


def command(words: list[str]) -> int:
    from fedkin.methods import METHODS
    from fedkin.registry import lookup
    from fedkin.results.citation import citation

    for name in words:
        lookup(METHODS, name.split(",")[0], "method")
    print(citation(words), end="")
    return 0
