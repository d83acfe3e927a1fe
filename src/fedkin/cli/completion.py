"""`fedkin completion SHELL`: a script that completes commands, methods and flags.

The script is made once and holds all names, so that completing does not wait for Python.
"""

from __future__ import annotations

import contextlib
import io
import re
from dataclasses import dataclass, fields

from fedkin.cli import flags as parsing
from fedkin.cli.flags import UserError

SHELLS = {
    "bash": "fedkin completion bash >> ~/.bashrc",
    "zsh": "fedkin completion zsh >> ~/.zshrc",
    "fish": "fedkin completion fish > ~/.config/fish/completions/fedkin.fish",
}
METHODS_FIRST = ("run", "compare", "sweep", "tune", "verify", "cite")


@dataclass(frozen=True)
class CompletionFlags:
    pass


@dataclass(frozen=True)
class Words:
    """Everything that can be completed."""

    commands: dict[str, list[str]]
    """Flags by command."""
    methods: dict[str, list[str]]
    """Flags by method."""
    values: dict[str, list[str]]
    """Values by flag."""
    second: dict[str, list[str]]
    """What may follow a command."""


def command(words: list[str]) -> int:
    about = "Print a script that completes commands, methods and flags. To install it:\n\n" + "\n\n".join(
        SHELLS.values()
    )
    _, shells = parsing.parse_one(words, CompletionFlags(), "fedkin completion bash|zsh|fish", about)
    if len(shells) != 1 or shells[0] not in SHELLS:
        raise UserError(f"completion takes one shell, {', '.join(SHELLS)}; given: {' '.join(shells) or 'none'}.")
    print({"bash": bash, "zsh": zsh, "fish": fish}[shells[0]](collect()), end="")
    return 0


def collect() -> Words:
    from fedkin.cli.main import NAMES
    from fedkin.data import DATASETS
    from fedkin.data.partition import PARTITIONS
    from fedkin.methods import METHODS
    from fedkin.models import MODELS

    of_method = {name: [_flag(f.name) for f in fields(entry.load())] for name, entry in METHODS.items()}
    of_command = {name: _flags([name]) for name in NAMES}
    own = {word for flag in of_method["local"] for word in (flag, flag.replace("--", "--no-"))}
    of_command["run"] = [flag for flag in _flags(["run", "local"]) if flag not in own]
    values = {
        "--data": list(DATASETS),
        "--partition": list(PARTITIONS),
        "--model": list(MODELS),
        "--engine": ["pool", "serial", "ray"],
        "--format": ["pdf", "png", "svg"],
        "--scale": ["full", "desk", "smoke"],
    }
    second = {name: list(METHODS) for name in METHODS_FIRST}
    second |= {"list": ["methods", "datasets", "partitions", "models"], "completion": list(SHELLS)}
    second |= {"deploy": ["init", "keys"], "new": ["method"]}
    return Words(of_command, of_method, values, second)


def _flags(words: list[str]) -> list[str]:
    """The flags in a command's help text."""
    from fedkin.cli.main import main

    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    # at the beginning of a line: help texts mention other flags
    found = re.findall(r"^  (?:-h, )?(--[a-z][\w.-]*)(?:, (--no-[\w.-]+))?", text.getvalue(), re.MULTILINE)
    return [flag for pair in found for flag in pair if flag]


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def bash(words: Words) -> str:
    def cases(table: dict[str, list[str]]) -> str:
        return "\n".join(f'    {key}) echo "{" ".join(items)}" ;;' for key, items in table.items() if items)

    return f"""\
_fedkin_flags() {{
  case "$1" in
{cases(words.commands)}
  esac
}}
_fedkin_method_flags() {{
  case "$1" in
{cases(words.methods)}
  esac
}}
_fedkin_values() {{
  case "$1" in
{cases(words.values)}
  esac
}}
_fedkin_second() {{
  case "$1" in
{cases(words.second)}
  esac
}}
_fedkin() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" command="${{COMP_WORDS[1]}}"
  local found=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    found="{" ".join(words.commands)}"
  elif [[ "$word" == -* ]]; then
    found="$(_fedkin_flags "$command")"
    if [ "$command" = run ]; then found="$found $(_fedkin_method_flags "${{COMP_WORDS[2]}}")"; fi
  else
    found="$(_fedkin_values "$before")"
    if [ -z "$found" ] && [[ "$before" != -* ]]; then found="$(_fedkin_second "$command")"; fi
  fi
  COMPREPLY=($(compgen -W "$found" -- "$word"))
  if [ "${{#COMPREPLY[@]}}" -eq 0 ]; then COMPREPLY=($(compgen -f -- "$word")); fi
}}
complete -F _fedkin fedkin
"""


def zsh(words: Words) -> str:
    return "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n" + bash(words)


def fish(words: Words) -> str:
    lines = [f"complete -c fedkin -n __fish_use_subcommand -f -a '{' '.join(words.commands)}'"]
    for name, items in words.commands.items():
        seen = f"'__fish_seen_subcommand_from {name}'"
        lines += [f"complete -c fedkin -n {seen} -l {flag[2:]}{_fish_values(flag, words)}" for flag in items]
        if name in words.second:
            lines.append(f"complete -c fedkin -n {seen} -f -a '{' '.join(words.second[name])}'")
    for name, items in words.methods.items():
        seen = f"'__fish_seen_subcommand_from run; and __fish_seen_subcommand_from {name}'"
        lines += [f"complete -c fedkin -n {seen} -l {flag[2:]}" for flag in items]
    return "\n".join(lines) + "\n"


def _fish_values(flag: str, words: Words) -> str:
    return f" -x -a '{' '.join(words.values[flag])}'" if flag in words.values else ""
