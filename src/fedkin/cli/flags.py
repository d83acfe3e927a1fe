"""Flags made from dataclass fields: a field's name, type, default and docstring are the flag and its help."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import re
import shutil
import textwrap
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NoReturn

from fedkin.registry import convert, field_types, hint

METAVAR = {int: "INT", float: "NUMBER", str: "TEXT", Path: "PATH"}


class UserError(Exception):
    """A mistake that the user can fix. It is shown as one line, without a traceback."""


@dataclass(frozen=True)
class Part:
    """One dataclass of flags."""

    name: str
    """Attribute of the parsed result that holds the values."""
    default: Any
    """An instance that holds the defaults."""
    group: str
    """Heading in the help text."""
    prefix: str = ""
    """Prefix of the flags: `partition` gives --partition.alpha."""
    about: Mapping[str, str] = field(default_factory=dict)
    """Help texts of fields that have no docstring."""
    without: tuple[str, ...] = ()
    """Fields that are not flags."""

    def flag(self, name: str) -> str:
        word = name.replace("_", "-")
        return f"{self.prefix}.{word}" if self.prefix else word


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split words into the leading names and the flags after them."""
    at = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    return list(words[:at]), list(words[at:])


def given(words: Sequence[str], flag: str) -> str | None:
    """The value of a flag that must be known early, because it decides which other flags exist."""
    found = None
    for i, word in enumerate(words):
        if word == f"--{flag}" and i + 1 < len(words):
            found = words[i + 1]
        elif word.startswith(f"--{flag}="):
            found = word.split("=", 1)[1]
    return found


def wants_help(words: Sequence[str]) -> bool:
    return bool({"-h", "--help"} & set(words))


def parse_one(
    words: Sequence[str], default: Any, prog: str, about: str, group: str = "options"
) -> tuple[Any, list[str]]:
    """Parse the flags of one dataclass. Return them and the remaining words."""
    made, names = parse(words, [Part("own", default, group)], prog, about)
    return made.own, names


def folders(words: Sequence[str], default: Any, command: str, about: str) -> tuple[list[str], Any]:
    """Parse folders of runs and flags."""
    flags, found = parse_one(words, default, f"fedkin {command} DIR …", about)
    if not found:
        raise UserError(f"{command} needs a folder: the --out of a run or of a comparison.")
    return found, flags


def parse(
    words: Sequence[str], parts: Sequence[Part], prog: str, about: str, config: Mapping[str, Any] | None = None
) -> tuple[Any, list[str]]:
    """Parse flags. Return an object with an attribute for each part, and the remaining words.

    `config` maps flags to values; flags in `words` override it. `prog` is the command with its arguments, for the help.
    """
    command = " ".join(word for word in prog.split() if word.islower() or ":" in word)
    parser = _Parser(usage=f"{prog} [flags]", description=about, add_help=False, allow_abbrev=False)
    groups: dict[str, Any] = {}
    known: dict[str, tuple[Part, str, Any]] = {}
    for part in parts:
        if part.group not in groups:
            groups[part.group] = parser.add_argument_group(part.group)
        docs = {**part.about, **_docstrings(type(part.default))}
        for name, kind in field_types(type(part.default)).items():
            if name in part.without:
                continue
            flag = part.flag(name)
            if flag in known:
                raise UserError(
                    f"{type(part.default).__name__} and {type(known[flag][0].default).__name__} both have a field "
                    f"'{name}', so --{flag} would be ambiguous: rename the method's field (server_{name}, …)."
                )
            known[flag] = part, name, kind
            value = (config or {}).get(flag, getattr(part.default, name))
            _add(groups[part.group], flag, kind, value, docs.get(name, ""))
    next(reversed(groups.values())).add_argument("-h", "--help", action="help", help="Show this text and exit.")
    for flag in config or {}:
        if flag not in known:
            raise UserError(f"{command} has no flag '{flag}', which the config file sets.{_flag_hint(flag, known)}")
    found, rest = parser.parse_known_args([_dashed(word) for word in words])
    for word in rest:
        if word.startswith("-") and word != "-":
            flag = word.lstrip("-").split("=")[0]
            raise UserError(f"{command} has no flag --{flag}.{_flag_hint(flag, known)} All flags: {command} --help")
    values = {**(config or {}), **vars(found)}
    made = {}
    for part in parts:
        own = {
            name: convert(kind, values[flag], f"--{flag}")
            for flag, (owner, name, kind) in known.items()
            if owner is part and flag in values
        }
        made[part.name] = dataclasses.replace(part.default, **own)
    return SimpleNamespace(**made), rest


def options_of(target: Any) -> Any | None:
    """The keyword options of a function or dataclass, as an instance of a dataclass that holds their defaults."""
    if dataclasses.is_dataclass(target):
        kinds = field_types(target)
        own = [(f.name, kinds[f.name], field(default=f.default)) for f in fields(target) if f.init]
    else:
        own = [
            (p.name, p.annotation, field(default=p.default))
            for p in inspect.signature(target, eval_str=True).parameters.values()
            if p.kind is p.KEYWORD_ONLY and p.default is not p.empty
        ]
    return dataclasses.make_dataclass("KeywordOptions", own, frozen=True)() if own else None


def docstrings_of(target: Any) -> dict[str, str]:
    return _docstrings(target) if dataclasses.is_dataclass(target) else {}


class _Parser(argparse.ArgumentParser):
    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=_Formatter, **settings)

    def error(self, message: str) -> NoReturn:
        flag, _, what = message.removeprefix("argument ").partition(": ")
        if what == "expected one argument":
            raise UserError(f"{flag.split('/')[-1]} needs a value.")
        raise UserError(message)


class _Formatter(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=min(shutil.get_terminal_size().columns, 100))

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, argparse.BooleanOptionalAction):
            return ", ".join(action.option_strings[: 1 if not action.const else 2])
        return super()._format_action_invocation(action)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join("\n".join(self._split_lines(paragraph, width)) for paragraph in text.split("\n\n"))

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)  # --batch-size stays whole


def _add(group: Any, flag: str, kind: Any, default: Any, about: str) -> None:
    """Add one flag. It is set only if the user gives it: defaults and the config file are applied later."""
    kind = _inner(kind)
    settings: dict[str, Any] = {"dest": flag, "default": argparse.SUPPRESS}
    shown = f" (default: {_text(default)})" if default or (default == 0 and default is not False) else ""
    help = (about + shown).strip().replace("%", "%%")
    if kind is bool:
        action = group.add_argument(f"--{flag}", action=argparse.BooleanOptionalAction, help=help, **settings)
        action.help, action.const = help, default  # Python 3.11's argparse adds its own note on defaults
        return
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        settings["metavar"] = "{" + ",".join(str(a) for a in arguments) + "}"
    elif origin is tuple:
        settings |= {"metavar": METAVAR.get(arguments[0], "TEXT"), "nargs": "*", "action": "extend"}
    elif origin is dict:
        settings |= {"metavar": "INT", "nargs": "*", "action": _Pairs}
    else:
        settings["metavar"] = METAVAR.get(kind, "TEXT")
    group.add_argument(f"--{flag}", help=help, **settings)


class _Pairs(argparse.Action):
    """`--arrive 7 3 8 5` as {7: 3, 8: 5}."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if len(values) % 2:
            raise UserError(f"{option_string} takes pairs of numbers; given: {' '.join(values)}.")
        setattr(namespace, self.dest, dict(zip(values[::2], values[1::2])))


def _inner(kind: Any) -> Any:
    """int for `int | None`."""
    arguments = [a for a in typing.get_args(kind) if a is not type(None)]
    return arguments[0] if type(None) in typing.get_args(kind) else kind


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return re.sub(r"e\+0*", "e", f"{value:g}") if isinstance(value, float) else str(value)


def _dashed(word: str) -> str:
    """Replace underscores: --batch_size becomes --batch-size."""
    if not word.startswith("--"):
        return word
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-") + equals + value


def _flag_hint(flag: str, known: Mapping[str, Any]) -> str:
    """What was probably meant; --alpha finds --partition.alpha."""
    inner = next((f" Did you mean --{name}?" for name in known if name.split(".")[-1] == flag), "")
    return inner or hint(flag, known, prefix="--")


def _docstrings(kind: Any) -> dict[str, str]:
    """The string below each field of a dataclass and its bases."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        except (OSError, TypeError, SyntaxError, IndexError):  # no source: created at run time, or built in
            continue
        if not isinstance(body, ast.ClassDef):
            continue
        for item, below in zip(body.body, body.body[1:]):
            text = below.value if isinstance(below, ast.Expr) else None
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and isinstance(text, ast.Constant):
                found[item.target.id] = " ".join(str(text.value).split())
    return found
