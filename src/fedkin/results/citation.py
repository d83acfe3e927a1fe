"""BibTeX entries of fedkin and of the methods' papers."""

from __future__ import annotations

from collections.abc import Iterable

from fedkin import __version__

FEDKIN = f"""@software{{fedkin,
  title = {{fedkin: personalized federated learning}},
  author = {{{{The fedkin developers}}}},
  version = {{{__version__}}},
  year = {{2026}},
  url = {{https://github.com/fedkin/fedkin}}
}}"""


def citation(methods: Iterable[str]) -> str:
    """The entries for these methods, each once. Names that are not built in (a user's own methods) are skipped."""
    from fedkin.methods import METHODS

    found = [FEDKIN]
    for name in methods:
        base = name.split(",")[0]
        entry = METHODS[base].load().citation if base in METHODS else ""
        if entry and entry not in found:
            found.append(entry)
    return "\n\n".join(found) + "\n"
