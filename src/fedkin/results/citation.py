"""BibTeX entries of fedkin and of the methods' papers."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from fedkin import __version__

FEDKIN = f"""@software{{fedkin,
  title = {{fedkin: personalized federated learning}},
  author = {{{{The fedkin developers}}}},
  version = {{{__version__}}},
  year = {{2026}},
  url = {{https://github.com/fedkin/fedkin}}
}}"""


def citation(methods: Iterable[str], *, own: bool = False) -> str:
    """The entries for these methods, each once. Names that are not built in are skipped, unless `own` methods, named as
    `file.py:Class`, are to be loaded: this runs their file, which a report must not do."""
    from fedkin.methods import METHODS
    from fedkin.registry import load_path

    found = [FEDKIN]
    for name in methods:
        base = name.split(",")[0]
        kind = METHODS[base].load() if base in METHODS else load_path(base) if own and ":" in base else None
        entry = inspect.cleandoc(getattr(kind, "citation", ""))
        if entry and entry not in found:
            found.append(entry)
    return "\n\n".join(found) + "\n"
