"""Values and damage that fuzzing tries: odd texts and numbers, mutated bytes, mutated JSON."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

from hypothesis import strategies as st

# fmt: off
NUMBERS = (
    "nan", "inf", "-inf", "-1", "0", "1", "2", "0.5", "-0.0", "1e-320", "1e308", "1e400", "1e30", "1_000", "0x10",
)
TEXTS = (
    "", " ", "-", "--", "None", "null", "true", "[]", "{}", "[[1]]", "{\"a\": 1}", "a=b", ",", "+", "..", "/", ".",
    "/dev/null", "/proc/self/mem", "no/such", "a\0b", "x" * 5000, "💥", "\udc80", "\n", "%s", "{0}", "٣", "1,5",
    "\u202e", "os:getcwd", "subprocess:getoutput", "nobody.py:Nothing", "json:loads", "../../x", "~", "$HOME", "con",
)
# fmt: on
odd_number = st.sampled_from(NUMBERS)
odd_text = st.one_of(st.sampled_from(TEXTS), st.text(max_size=8))
odd = st.one_of(odd_number, odd_number, odd_text, st.integers(-3, 40).map(str), st.floats(width=32).map(str))
count = st.one_of(st.sampled_from(("nan", "inf", "-1", "0", "1.5", "1e400")), odd_text, st.integers(-3, 20).map(str))
huge = st.sampled_from(("99999999999999999999", "1000000000000", "1e12", "-99999999999999999999"))

JSON_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 7, 10**12, -(10**30), 0.5, 1e308, float("nan"), float("inf"), "", "x", "</script>",
    "../../x", "\udc80", [], {}, [None], [[[]]], {"": {}}, [1, "a", None], {"a": [1]}, "9" * 5000,
)  # fmt: skip


DEEP = "nested deeply"  # stands for lists in lists in lists, which json.dumps could not write


def damaged(content: bytes, seed: int) -> bytes:
    """The content with one kind of damage: cut, changed, doubled, mixed up."""
    rng = random.Random(seed)
    at = rng.randrange(len(content) + 1)
    end = min(len(content), at + rng.choice((1, 2, 8, 64, 1024)))
    kind = rng.randrange(8)
    if kind == 0:
        return content[:at]
    if kind == 1:
        return content[:at] + bytes(rng.randrange(256) for _ in range(end - at)) + content[end:]
    if kind == 2:
        return content[:at] + content[end:]
    if kind == 3:
        return content[:end] + content[at:]
    if kind == 4:
        added = rng.choice((b"\0", b"\xff" * 8, b"\n", b"#", b'"', b",,", b"\r", b"{", b"PK\x03\x04"))
        return content[:at] + added + content[at:]
    if kind == 5:
        return content[at:]
    if kind == 6:
        return content + content
    few = bytearray(content)
    for _ in range(rng.randrange(1, 6)):
        if few:
            few[rng.randrange(len(few))] ^= 1 << rng.randrange(8)
    return bytes(few)


def altered(tree: Any, seed: int) -> Any:
    """JSON with one to three nodes replaced, removed or moved."""
    rng = random.Random(seed)
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        paths = list(_paths(tree))
        if not paths:
            break
        holder, key = rng.choice(paths)
        action = rng.randrange(6)
        if action == 0:
            del holder[key]
        elif action == 1 and isinstance(holder, dict):
            holder[rng.choice(("", "x", "class", "name", "rounds", "__proto__"))] = rng.choice(JSON_VALUES)
        elif action == 2 and rng.random() < 0.2:
            holder[key] = DEEP
        elif action == 3:
            other, name = rng.choice(paths)
            holder[key] = copy.deepcopy(other[name]) if _has(other, name) else None
        else:
            holder[key] = rng.choice(JSON_VALUES)
    return tree


def _has(holder: Any, key: Any) -> bool:
    return key in holder if isinstance(holder, dict) else 0 <= key < len(holder)


def _paths(tree: Any) -> Any:
    for key, value in list(tree.items() if isinstance(tree, dict) else enumerate(tree)):
        yield tree, key
        if isinstance(value, dict | list):
            yield from _paths(value)


def to_json(tree: Any) -> str:
    """JSON, also of what is nested too deeply for json.dumps."""
    levels = 100_000
    return json.dumps(tree).replace(f'"{DEEP}"', "[" * levels + "]" * levels)
