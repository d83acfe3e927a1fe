"""`fedkin list`: what there is, by name."""

from __future__ import annotations

from dataclasses import dataclass

from fedkin.cli import flags as parsing
from fedkin.cli.flags import UserError

KINDS = ("methods", "datasets", "partitions", "models")


@dataclass(frozen=True)
class ListFlags:
    wide: bool = False
    """Show each method's paper too, and what travels and what stays at the clients."""


def command(words: list[str]) -> int:
    about = "List what there is. KIND is methods, datasets, partitions or models; by default all four."
    flags, kinds = parsing.parse_one(words, ListFlags(), "fedkin list [KIND …]", about)
    for kind in kinds:
        if kind not in KINDS:
            raise UserError(f"There is no list of '{kind}'. Known: {', '.join(KINDS)}.")
    from fedkin.cli.terminal import console
    from fedkin.data import DATASETS
    from fedkin.data.partition import PARTITIONS
    from fedkin.methods import METHODS
    from fedkin.models import MODELS
    from fedkin.report.tables import terminal

    screen = console(160 if flags.wide else None)
    for kind in kinds or KINDS:
        header: tuple[str, ...] = ("name", "what it does" if kind in ("methods", "partitions") else "what it is")
        rows: list[tuple[str, ...]]
        if kind == "methods" and flags.wide:
            header += ("paper", "travels", "stays at the client")
            # these are in the methods' own files, which import torch
            loaded = {name: entry.load() for name, entry in METHODS.items()}
            rows = [(n, METHODS[n].summary, m.paper, m.travels, m.stays) for n, m in loaded.items()]
        elif kind == "partitions":
            rows = [(n, p.summary) for n, p in PARTITIONS.items()]
        else:
            entries = {"methods": METHODS, "datasets": DATASETS, "models": MODELS}[kind]
            rows = [(n, e.summary) for n, e in entries.items()]
        table = terminal(kind.capitalize(), header, rows)
        for column in table.columns:
            column.justify = "left"
        screen.print(table)
    return 0
