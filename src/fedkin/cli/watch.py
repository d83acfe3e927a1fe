"""`fedkin watch DIR`: the report's page, live during a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedkin.cli import flags as parsing
from fedkin.cli.report import bibtex


@dataclass(frozen=True)
class WatchFlags:
    port: int = 8642
    """Port of the server, which only this machine can reach; another one if it is taken."""


def command(words: list[str]) -> int:
    folders, flags = parsing.folders(
        words, WatchFlags(), "watch", "Show the report's page live, during a run. Ctrl-C ends it."
    )
    from fedkin.report.watch import server

    try:
        with server(folders, flags.port, lambda labels: bibtex(folders)) as made:
            print(f"http://127.0.0.1:{made.server_port}/ shows {', '.join(folders)}. Ctrl-C ends it.", flush=True)
            if absent := [folder for folder in folders if not Path(folder).exists()]:
                print(f"Not there yet: {', '.join(absent)}. The page waits for a run with this --out.", flush=True)
            made.serve_forever()
    except KeyboardInterrupt:
        print()
    return 0
