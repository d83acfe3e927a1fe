"""The command `fedkin`: one file for each command. Torch is imported only when something runs."""

from fedkin.cli.main import main

__all__ = ["main"]
