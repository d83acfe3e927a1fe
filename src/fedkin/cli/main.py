"""Dispatch: which command runs, and how errors reach the user."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from typing import TextIO

from fedkin.cli.flags import UserError
from fedkin.engine import signals
from fedkin.registry import hint, own_line

# By heading: what is typed, and what it does. The first word is the module in this package.
COMMANDS: dict[str, dict[str, str]] = {
    "Run": {
        "demo": "Compare methods on local data, in under a minute.",
        "init FOLDER": "Look at tables of your own, and say how to read them.",
        "run METHOD": "Run one method; add --help for its flags.",
        "compare METHOD METHOD …": "Run several methods on the same clients.",
        "sweep METHOD --grid …": "Try settings, choose on validation examples.",
        "tune METHOD": "Search settings with Optuna, choose on validation.",
    },
    "Look": {
        "report DIR …": "Write a page: who learns from whom, who benefits.",
        "watch DIR": "Show that page live, during a run.",
        "figures DIR …": "Draw figures for papers.",
        "list [KIND …]": "List methods, datasets, partitions and models.",
        "cite METHOD …": "Print the BibTeX entries of the methods' papers.",
    },
    "Use": {
        "predict DIR": "Use a client's model on new examples.",
        "join DIR": "Make a model for a client that was not in the run.",
        "export DIR": "Write a client's model as ONNX or torch.export.",
    },
    "Papers": {
        "reproduce PAPER/ITEM …": "Rerun tables and figures of papers.",
        "bench": "Rank all methods at one fixed budget.",
    },
    "Extend and deploy": {
        "new method NAME": "Start a method: a file, a test and a page.",
        "verify [METHOD …]": "Check methods, yours too, against the contract.",
        "deploy init|keys|check": "Run at real sites over Flower.",
        "completion SHELL": "Print a completion script: bash, zsh or fish.",
    },
}
ASKED_FOR = ("run", "compare", "tune", "sweep")
"""Commands that keep what is done only with --out."""
RESUMED = (*ASKED_FOR, "bench", "reproduce", "demo")
NAMES = [usage.split()[0] for commands in COMMANDS.values() for usage in commands]


def main(arguments: Sequence[str] | None = None) -> None:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help(), end="")
        return
    if words[0] in ("--version", "-V"):
        import fedkin

        print(fedkin.__version__)
        return
    warnings.showwarning = _warned
    with signals.stoppable():
        sys.exit(_code(words))


def _code(words: list[str]) -> int:
    """Run a command. Returns its exit code, and has said what went wrong."""
    try:
        with signals.interruptible():
            if words[0] not in NAMES:
                raise UserError(f"There is no command '{words[0]}'.{hint(words[0], NAMES)} Known: {', '.join(NAMES)}.")
            code: int = importlib.import_module(f"fedkin.cli.{words[0]}").command(words[1:])
    except KeyboardInterrupt as stop:
        signals.ignore()
        code = 128 + getattr(stop, "number", 2)  # SIGTERM and SIGHUP end a run in the same way
        print(f"Stopped. {_how_to_go_on(words)}".rstrip(), file=sys.stderr)
    except BrokenPipeError:  # `fedkin list | head`: the reader closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except Exception as error:
        text = message(error)
        if text is None or os.environ.get("FEDKIN_TRACEBACK"):
            raise
        code = 2
        print(f"fedkin: {text}", file=sys.stderr)
    return code


def _how_to_go_on(words: list[str]) -> str:
    """What a user does after a stop. Only some commands keep anything."""
    if words[0] not in RESUMED:
        return ""
    if words[0] in ASKED_FOR and not any(word.startswith(("--out", "--config")) for word in words):
        return "Nothing is kept without --out: with --out FOLDER, the same command resumes."
    return "The same command with the same --out resumes from the last checkpoint."


_shown = warnings.showwarning


def _warned(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning about the user's data is a line like any other; others are shown as Python does."""
    if category.__name__ == "DataWarning":
        print("".join(f"fedkin: {text}\n" for text in str(message).splitlines()), end="", file=sys.stderr)
    else:
        _shown(message, category, filename, lineno, file, line)


def message(error: Exception) -> str | None:
    """What a user can do about an error; None for a bug in fedkin, which must not be hidden."""
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error)):
        return "There is not enough memory. Use fewer or smaller clients, a smaller model, or fewer --workers."
    if isinstance(error, RecursionError):
        return "The input is nested too deeply. Look for brackets that are opened again and again."
    if isinstance(error, OverflowError):
        return f"A number is too large ({error}). Use a smaller one."
    runner = sys.modules.get("fedkin.engine.runner")  # not imported here: torch takes seconds
    if runner is not None and isinstance(error, runner.ClientError):
        return f"{str(error).rstrip('.')}. Set FEDKIN_TRACEBACK=1 to see the traceback."
    if isinstance(error, (UserError, ValueError, OSError)):
        return str(error)
    where = own_line(error)
    if where:
        return (
            f"{where}: {type(error).__name__}: {error}. Correct the file, or set FEDKIN_TRACEBACK=1 for the traceback."
        )
    return str(error) if isinstance(error, ImportError) else None


def _help() -> str:
    lines = ["usage: fedkin COMMAND …", "", "Personalized federated learning.", ""]
    for heading, commands in COMMANDS.items():
        lines += [f"{heading}:", *(f"  {usage:24} {about}" for usage, about in commands.items()), ""]
    lines += [
        "A method's fields follow its name: fedkin compare local fedprox,mu=0.1",
        "fedkin COMMAND --help says more. FEDKIN_TRACEBACK=1 shows full tracebacks.",
    ]
    return "\n".join(lines) + "\n"
