"""`fedkin list`: what there is, by name."""

from __future__ import annotations

from fedkin.cli.flags import UserError

KINDS = ("methods", "datasets", "partitions", "models")


def command(words: list[str]) -> int:
    if words and words[0] in ("-h", "--help"):
        print("usage: fedkin list [methods|datasets|partitions|models]")
        return 0
    from fedkin.cli.terminal import console
    from fedkin.data import DATASETS
    from fedkin.data.partition import PARTITIONS
    from fedkin.methods import METHODS
    from fedkin.models import MODELS
    from fedkin.report.tables import terminal

    for kind in words:
        if kind not in KINDS:
            raise UserError(f"There is no list of '{kind}'. Known: {', '.join(KINDS)}.")
    screen = console()
    for kind in words or KINDS:
        if kind == "methods":
            rows = [(n, e.summary, e.paper, e.travels, e.stays) for n, e in METHODS.items()]
            table = terminal("Methods", ("name", "what it does", "paper", "travels", "stays at the client"), rows)
        elif kind == "partitions":
            table = terminal("Partitions", ("name", "what it does"), [(n, p.summary) for n, p in PARTITIONS.items()])
        else:
            entries = DATASETS if kind == "datasets" else MODELS
            table = terminal(kind.capitalize(), ("name", "what it is"), [(n, e.summary) for n, e in entries.items()])
        for column in table.columns:
            column.justify = "left"
        screen.print(table)
    return 0
