"""The table of docs/privacy.md: for each method what travels, what stays, what a saved model holds, what noise covers.

    python benchmarks/privacy_table.py docs/privacy.md

Whether a method can run under client-level and example-level privacy is found by running it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import fedkin
from fedkin.engine.runner import ClientError
from fedkin.methods import METHODS, method

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def covered(name: str, fed: fedkin.Federation, privacy: str) -> str:
    try:
        fedkin.run(name, fed, rounds=2, privacy=privacy, engine="serial", evaluate_every=0, save_models=False)
    except (ClientError, ValueError):
        return "refused"
    return "yes"


def saved(name: str, fed: fedkin.Federation) -> str:
    """The parts of a personal model."""
    run = fedkin.run(name, fed, rounds=2, engine="serial", evaluate_every=0)
    personal = run.model(0).personal
    return ", ".join(sorted(personal)) if isinstance(personal, dict) else "the network"


def main(path: str) -> None:
    fed = fedkin.federate("digits", clients=4, samples_per_client=24, seed=0)
    heads = ["method", "travels", "stays at the client", "a saved model holds", "client", "example", "mean alone"]
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    seen = set()
    for name, entry in METHODS.items():
        if entry.target in seen:
            continue  # the same class with other settings
        seen.add(entry.target)
        made = method(name)
        levels = (covered(name, fed, f"{level}:clip=1,noise=0.1") for level in ("client", "example"))
        cells = (name, made.travels, made.stays, saved(name, fed), *levels, "yes" if made.averages else "refused")
        rows.append(f"| {' | '.join(cells)} |")
        print(rows[-1], flush=True)
    page = Path(path).read_text()
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    Path(path).write_text(f"{before}{BEGIN}\n" + "\n".join(rows) + f"\n{END}{after}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "docs/privacy.md")
