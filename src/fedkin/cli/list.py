"""`fedkin list`: what there is, by name."""

from __future__ import annotations

from fedkin.cli.flags import UserError

KINDS = ("methods", "datasets", "partitions", "models")


def command(words: list[str]) -> int:
    if words and words[0] in ("-h", "--help"):
        print(
            "usage: fedkin list [methods|datasets|partitions|models] [--wide]\n\n"
            "--wide: also the methods' papers, and what travels."
        )
        return 0
    from fedkin.cli.terminal import console
    from fedkin.data import DATASETS
    from fedkin.data.partition import PARTITIONS
    from fedkin.methods import METHODS
    from fedkin.models import MODELS
    from fedkin.report.tables import terminal

    wide, wanted = "--wide" in words, [word for word in words if word != "--wide"]
    for kind in wanted:
        if kind not in KINDS:
            raise UserError(f"There is no list of '{kind}'. Known: {', '.join(KINDS)}.")
    screen = console()
    for kind in wanted or KINDS:
        if kind == "methods":
            rows: list[tuple[str, ...]] = [(n, e.summary) for n, e in METHODS.items()]
            header: tuple[str, ...] = ("name", "what it does")
            if wide:  # these stand in the methods' own files, which import torch
                loaded = [entry.load() for entry in METHODS.values()]
                rows = [(*row, kind.paper, kind.travels, kind.stays) for row, kind in zip(rows, loaded)]
                header = (*header, "paper", "travels", "stays at the client")
            table = terminal("Methods", header, rows)
        elif kind == "partitions":
            table = terminal("Partitions", ("name", "what it does"), [(n, p.summary) for n, p in PARTITIONS.items()])
        else:
            entries = DATASETS if kind == "datasets" else MODELS
            table = terminal(kind.capitalize(), ("name", "what it is"), [(n, e.summary) for n, e in entries.items()])
        for column in table.columns:
            column.justify = "left"
        screen.print(table)
    return 0
