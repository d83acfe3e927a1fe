"""`fedkin deploy init|keys DIR` and `fedkin deploy check SITE_FILE`: real sites over Flower."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedkin.cli import config
from fedkin.cli import flags as parsing
from fedkin.cli.flags import Part, UserError

USAGE = """\
usage: fedkin deploy init DIR [flags]
       fedkin deploy keys DIR [flags]
       fedkin deploy check SITE_FILE

init  Write an app for Flower, a file for each site, and the commands to start
      them, into a new folder.
keys  Make a CA, a certificate and a key for each site, to try TLS with.
check Read a site's file and data on its own machine, and show what the server
      would learn. Nothing is sent.
"""


def command(words: list[str]) -> int:
    if find_spec("flwr") is None:
        raise UserError("fedkin deploy needs Flower: pip install 'fedkin[flower]'.")
    if not words or words[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0 if words else 2
    if words[0] == "init":
        from fedkin.deploy.scaffold import Init, init

        init(_parse("init", words[1:], Init, Part("file", ConfigFlags(), "options")))
    elif words[0] == "keys":
        from fedkin.deploy.keys import Keys, keys

        keys(_parse("keys", words[1:], Keys))
    elif words[0] == "check":
        if len(words) != 2 or parsing.wants_help(words[1:]):
            print(USAGE, end="")
            return 0 if parsing.wants_help(words[1:]) else 2
        from fedkin.deploy.check import check

        print("\n".join(check(Path(words[1]))))
    else:
        raise UserError(f"There is no 'fedkin deploy {words[0]}'. Known: init, keys, check.")
    return 0


@dataclass(frozen=True)
class ConfigFlags:
    config: Path | None = None
    """A file of `fedkin init`: each of its tables becomes a site, and is read in the same way."""


def _parse(action: str, words: list[str], kind: Any, *parts: Part) -> Any:
    folders, rest = parsing.split_words(words)
    if not parsing.wants_help(rest) and len(folders) != 1:
        example = "federation" if action == "init" else ".  (in the folder that deploy init made)"
        raise UserError(
            f"deploy {action} takes one folder; given: {' '.join(folders) or 'none'}. "
            f"For example: fedkin deploy {action} {example}"
        )
    default = kind(Path(folders[0] if folders else "DIR"))
    part = Part("own", default, "options", without=("folder",))
    values = config.read(rest).values if parts else {}
    flags, extra = parsing.parse(rest, [part, *parts], f"fedkin deploy {action} DIR", kind.__doc__, values)
    if extra:
        raise UserError(f"'{extra[0]}' is not expected here: DIR comes first, then flags with their values.")
    return flags.own
