"""`fedkin verify METHOD …`: check methods against the contract."""

from __future__ import annotations

from dataclasses import dataclass

from fedkin.cli import flags as parsing
from fedkin.cli import settings


@dataclass(frozen=True)
class VerifyFlags:
    ray: bool = False
    """Also check that the Ray engine gives the same bits. Starting Ray takes a few seconds."""


def command(words: list[str]) -> int:
    about = (
        "Check methods against the contract that the engines rely on, property by property. METHOD is a name, "
        "or your own as file.py:Class; by default all built-in methods are checked. The exit code is 1 if a property "
        "does not hold."
    )
    flags, names = parsing.parse_one(words, VerifyFlags(), "fedkin verify [METHOD …]", about)
    from fedkin.cli.terminal import console
    from fedkin.conformance import verify
    from fedkin.methods import METHODS
    from fedkin.registry import lookup

    for name in names:  # a typing error is not a broken property
        if ":" not in name:
            lookup(METHODS, name.split(",")[0], "method")
    screen = console()
    failures = 0
    with settings.ray_cluster(flags.ray):
        for name in names or METHODS:
            screen.print(f"[bold]{name}[/bold]")
            for outcome in verify(name, ray=flags.ray):
                failures += not outcome.passed
                mark = "[green]✓[/green]" if outcome.passed else "[red]✗[/red]"
                screen.print(f"  {mark} {outcome.name} ({outcome.seconds:.1f} s)", highlight=False)
                if not outcome.passed:
                    screen.print(f"      {outcome.detail}", markup=False, highlight=False)
    broken = "1 property does not hold." if failures == 1 else f"{failures} properties do not hold."
    screen.print(broken if failures else "All properties hold.")
    return 1 if failures else 0
