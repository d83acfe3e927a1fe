"""Flags from dataclass fields."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from fedkin.bounds import Positive
from fedkin.cli.flags import Part, UserError, parse, parse_one
from fedkin.registry import convert


@dataclass(frozen=True)
class Everything:
    number: int = 3
    """How many."""
    rate: Positive = 0.5
    """How fast."""
    text: str | None = None
    """What to say."""
    choice: Literal["left", "right"] = "left"
    """Which way."""
    path: Path | None = None
    """Where to."""
    on: bool = False
    """Switch it on."""
    kept: bool = True
    """Keep it."""
    names: tuple[str, ...] = ("a", "b")
    """Who comes."""
    sizes: tuple[int, ...] = ()
    """How large."""
    pairs: dict[int, int] = field(default_factory=dict)
    """What goes with what."""
    long_name: int = 1
    """Has a dash."""


def made(*words: str) -> Everything:
    return parse_one(words, Everything(), "fedkin test", "About.")[0]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", {}),
        ("--number 7", {"number": 7}),
        ("--number=7", {"number": 7}),
        ("--number -7", {"number": -7}),
        ("--rate 1e-3", {"rate": 1e-3}),
        ("--text hello", {"text": "hello"}),
        ("--text none", {"text": None}),
        ("--choice right", {"choice": "right"}),
        ("--path a/b", {"path": Path("a/b")}),
        ("--on", {"on": True}),
        ("--on --no-on", {}),
        ("--no-kept", {"kept": False}),
        ("--names", {"names": ()}),
        ("--names c d", {"names": ("c", "d")}),
        ("--sizes 1 --sizes 2 3", {"sizes": (1, 2, 3)}),
        ("--pairs 7 3 8 5", {"pairs": {7: 3, 8: 5}}),
        ("--long-name 4", {"long_name": 4}),
        ("--long_name 4", {"long_name": 4}),
        ("--number 1 --number 2", {"number": 2}),
    ],
)
def test_values(words, expected):
    assert made(*words.split()) == Everything(**expected)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--number 1.5", r"--number must be a whole number; it is '1.5'"),
        ("--rate fast", r"--rate must be a number; it is 'fast'"),
        ("--choice rihgt", r"--choice must be left or right; it is 'rihgt'. Did you mean right\?"),
        ("--sizes 1 x", r"--sizes must be a whole number; it is 'x'"),
        ("--pairs 1", r"pairs of numbers"),
        ("--nam c", r"no flag --nam\. Did you mean --names\?"),  # never taken for an abbreviation
        ("--zebra", r"no flag --zebra\. All flags: fedkin test --help"),
        ("-n 3", r"no flag --n\."),
    ],
)
def test_mistakes(words, said):
    with pytest.raises((UserError, ValueError), match=said):
        made(*words.split())


def test_help_is_made_from_docstrings_and_defaults(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        made("--help")
    out = capsys.readouterr().out
    assert out.startswith("usage: fedkin test [flags]\n\nAbout.\n")
    for text in (
        "--number INT", "How many. (default: 3)", "How fast. (default: 0.5)", "--choice {left,right}",
        "Which way. (default: left)", "--kept, --no-kept", "Keep it. (default: yes)", "Who comes. (default: a b)",
        "Has a dash. (default: 1)",
    ):  # fmt: skip
        assert text in out
    assert "--no-on" not in out


def test_a_config_gives_values_that_flags_replace():
    config = {"number": 9, "names": ["x"], "pairs": {"1": 2}, "on": True}
    parts = [Part("one", Everything(), "options")]
    flags, names = parse(["--number", "4", "word", "--no-on"], parts, "fedkin test", "", config)
    assert names == ["word"]
    assert flags.one == Everything(number=4, names=("x",), pairs={1: 2})
    with pytest.raises(UserError, match=r"no flag 'numbr', which the config file sets. Did you mean --number\?"):
        parse([], parts, "fedkin test", "", {"numbr": 1})


def test_two_parts_cannot_share_a_flag():
    with pytest.raises(UserError, match=r"both have a field 'number', so --number would be ambiguous"):
        parse([], [Part("one", Everything(), "a"), Part("two", Everything(), "b")], "fedkin test", "")


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (float, 1, 1.0),
        (int, 2.0, 2),
        (bool, "yes", True),
        (bool, "0", False),
        (int | None, None, None),
        (tuple[int, ...], "1+2", (1, 2)),
        (tuple[int, ...], 5, (5,)),
        (tuple[str, ...], ["a"], ("a",)),
        (Literal["II", "I"], "I", "I"),
        (dict[int, int], {"3": 4}, {3: 4}),
        (tuple[int, ...], (1, 2), (1, 2)),
    ],
)
def test_convert(kind, value, expected):
    got = convert(kind, value, "it")
    assert got == expected
    assert type(got) is type(expected)


@pytest.mark.parametrize(("kind", "value"), [(int, True), (int, 2.5), (float, "x"), (bool, 2), (float, True)])
def test_convert_refuses(kind, value):
    with pytest.raises(ValueError, match="it must be"):
        convert(kind, value, "it")
