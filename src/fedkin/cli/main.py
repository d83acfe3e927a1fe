"""Dispatch: which command runs, and how errors reach the user."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from fedkin.cli.flags import UserError

HELP = """\
fedkin: personalized federated learning

  fedkin demo                        Compare methods on embedded data, in under a minute.
  fedkin run METHOD [flags]          Run one method; add --help to list its flags.
  fedkin compare METHOD METHOD …     Run several methods on the same clients, over seeds.
  fedkin report DIR [DIR …]          Write one page on runs: who learns from whom, who benefits.
  fedkin watch DIR                   Show the same page live while a run goes on.
  fedkin figures DIR                 Draw figures for papers (--format pdf, png or svg).
  fedkin list [KIND]                 List methods, datasets, partitions or models.
  fedkin reproduce PAPER/ITEM …      Rerun a table or figure of a paper; --list names them.
  fedkin bench                       Rank all methods at one fixed budget.
  fedkin cite METHOD …               Print the BibTeX entries of the methods' papers.
  fedkin verify [METHOD …]           Check methods, yours too (file.py:Class), against the contract.
  fedkin deploy init|keys DIR        Write an app for real sites over Flower, and trial keys.

In `compare`, options follow a method's name: fedkin compare local fedprox,mu=0.1 fedprox,mu=1
"""
COMMANDS = (
    "demo",
    "run",
    "compare",
    "report",
    "watch",
    "figures",
    "list",
    "verify",
    "cite",
    "reproduce",
    "bench",
    "deploy",
)


def main(arguments: Sequence[str] | None = None) -> None:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return
    if words[0] in ("--version", "-V"):
        import fedkin

        print(fedkin.__version__)
        return
    try:
        if words[0] not in COMMANDS:
            raise UserError(f"There is no command '{words[0]}'. Known: {', '.join(COMMANDS)}.")
        code: int = importlib.import_module(f"fedkin.cli.{words[0]}").command(words[1:])
    except KeyboardInterrupt:
        code = 130
        print("Stopped. The same command with the same --out goes on from the last checkpoint.", file=sys.stderr)
    except BrokenPipeError:  # `fedkin list | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except (UserError, ValueError, FileNotFoundError, ImportError) as error:
        code = 2
        print(f"fedkin: {error}", file=sys.stderr)
    sys.exit(code)
