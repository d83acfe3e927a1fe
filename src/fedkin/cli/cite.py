"""`fedkin cite METHOD …`: BibTeX of the methods' papers."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from fedkin.cli import flags as parsing


@dataclass(frozen=True)
class CiteFlags:
    pass


def command(words: list[str]) -> int:
    about = "Print the BibTeX entries of fedkin and of the methods' papers."
    _, names = parsing.parse_one(words, CiteFlags(), "fedkin cite METHOD …", about)
    from fedkin.methods import METHODS
    from fedkin.registry import load_path, lookup
    from fedkin.results.citation import citation

    for name in names:
        base = name.split(",")[0]
        if ":" not in base:
            lookup(METHODS, base, "method")
        elif not getattr(load_path(base), "citation", ""):
            print(f"{base} has no entry: give the class a text `citation`.", file=sys.stderr)
    print(citation(names, own=True), end="")
    return 0
