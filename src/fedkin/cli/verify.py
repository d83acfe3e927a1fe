"""`fedkin verify METHOD …`: check methods against the contract."""

from __future__ import annotations

from fedkin.cli import flags as parsing

HELP = """\
usage: fedkin verify [METHOD …] [--ray]

METHOD: a name, or your own as file.py:Class; none: all built-in ones.
--ray: also check that the Ray engine gives the same bits.
"""


def command(words: list[str]) -> int:
    if words and words[0] in ("-h", "--help"):
        print(HELP, end="")
        return 0
    from fedkin.cli.terminal import console
    from fedkin.conformance import verify
    from fedkin.methods import METHODS

    names, ray = [word for word in words if word != "--ray"], "--ray" in words
    screen = console()
    failures = 0
    with parsing.ray_cluster(ray):
        for name in names or METHODS:
            screen.print(f"[bold]{name}[/bold]")
            for outcome in verify(name, ray=ray):
                failures += not outcome.passed
                mark = "[green]✓[/green]" if outcome.passed else "[red]✗[/red]"
                screen.print(f"  {mark} {outcome.name} ({outcome.seconds:.1f} s)", highlight=False)
                if not outcome.passed:
                    screen.print(f"      {outcome.detail}", markup=False, highlight=False)
    screen.print("All properties hold." if not failures else f"{failures} properties do not hold.")
    return 1 if failures else 0
