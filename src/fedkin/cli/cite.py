"""`fedkin cite METHOD …`: BibTeX of the methods' papers."""

from __future__ import annotations

from dataclasses import dataclass

from fedkin.cli import flags as parsing


@dataclass(frozen=True)
class CiteFlags:
    pass


def command(words: list[str]) -> int:
    about = "Print the BibTeX entries of fedkin and of the methods' papers."
    _, names = parsing.parse_one(words, CiteFlags(), "fedkin cite METHOD …", about)
    from fedkin.methods import METHODS
    from fedkin.registry import lookup
    from fedkin.results.citation import citation

    for name in names:
        lookup(METHODS, name.split(",")[0], "method")
    print(citation(names), end="")
    return 0
