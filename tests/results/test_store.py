"""States and files: the same bits back, whole or not at all, no pickle."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkin.results.files import write_bytes, write_json
from fedkin.results.store import equal, load_state, save_state

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    seed = draw(st.integers(0, 9))
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 3
    return values.to(draw(st.sampled_from(DTYPES)))


names = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=4) | st.sampled_from(
    ["a", "a/b", "b"]
)
leaves = tensors() | st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
states = st.dictionaries(
    names,
    st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3)),
    max_size=4,
)


@given(state=states)
def test_a_state_comes_back_to_the_bit(state, tmp_path):
    save_state(tmp_path / "state.safetensors", state)
    assert equal(load_state(tmp_path / "state.safetensors"), state)


def test_names_with_slashes_do_not_meet(tmp_path):
    state = {"a/b": torch.zeros(2), "a": {"b": torch.ones(2)}}
    save_state(tmp_path / "s", state)
    assert equal(load_state(tmp_path / "s"), state)


def test_special_numbers_come_back(tmp_path):
    state = {
        "t": torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-45]),
        "f": [float("nan"), float("inf"), -0.0, 0.1 + 0.2, 1e-320],
        "i": 2**70,
        "scalar": torch.tensor(3),
        "none": torch.empty(0, 4),
    }
    save_state(tmp_path / "s", state)
    assert equal(load_state(tmp_path / "s"), state)


def test_views_and_shared_memory(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    state = {"row": base[1], "column": base[:, 1], "turned": base.t(), "all": base, "wide": torch.ones(1).expand(5)}
    save_state(tmp_path / "s", state)
    assert equal(load_state(tmp_path / "s"), state)
    assert load_state(tmp_path / "s")["row"].shape == (4,)


def test_what_was_loaded_may_be_written_to(tmp_path):
    save_state(tmp_path / "s", {"a": torch.zeros(2)})
    load_state(tmp_path / "s")["a"].add_(1)
    assert load_state(tmp_path / "s")["a"].sum() == 0


@dataclass
class Thing:
    x: int = 1


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({"a": np.zeros(2)}, r"State '/a' is a ndarray; .*torch\.from_numpy"),
        ({"a": {"b": [np.float32(1)]}}, "State '/a/b/0' is a float32"),
        ({"a": np.int64(1)}, "State '/a' is a int64"),
        ({"a": {1, 2}}, "State '/a' is a set"),
        ({"a": Thing()}, "State '/a' is a Thing"),
        ({"a": lambda: 0}, "State '/a' is a function"),
        ({3: 1}, "State keys are strings; the state has the key 3"),
        ({"a": {3: 1}}, "State keys are strings; /a has the key 3"),
    ],
)
def test_refusals_leave_no_file(state, text, tmp_path):
    with pytest.raises(TypeError, match=text):
        save_state(tmp_path / "s", state)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (torch.zeros(2), -torch.zeros(2)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.zeros(2), torch.zeros(2, 1)),
        (torch.zeros(1), 0.0),
        (0.0, torch.zeros(1)),
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, {"a": 1, "b": 2}),
        ([1, 2], [1]),
        ([1], {"a": 1}),
        ({"a": torch.ones(1)}, [torch.ones(1)]),
        ([], 0),
        (None, 0),
        ("1", 1),
    ],
)
def test_what_is_not_equal(a, b):
    assert not equal(a, b)
    assert not equal({"x": [a]}, {"x": [b]})
    assert equal(a, a)


def test_lists_and_tuples_are_the_same_for_a_file():
    assert equal({"a": (1, torch.ones(2))}, {"a": [1, torch.ones(2)]})


# ---- files appear whole or not at all


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("broken", ["os.replace", "os.fsync"])
def test_a_failing_write_leaves_the_old_file(broken, durable, tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_bytes(path, b"old", durable=durable)

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(broken, fail)
    if broken == "os.fsync" and not durable:
        write_bytes(path, b"new")
        return
    with pytest.raises(OSError, match="disk full"):
        write_bytes(path, b"new", durable=durable)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"], "nothing half-written is left"


def test_files_are_as_readable_as_others(tmp_path):
    """Not only for their owner: results are shared."""
    before = os.umask(0o022)
    try:
        write_bytes(tmp_path / "deep" / "file", b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "deep" / "file").stat().st_mode) == 0o644


def test_json_takes_numpy_numbers(tmp_path):
    write_json(tmp_path / "a.json", {"a": np.float32(0.5), "b": [1, "x", None]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": 0.5, "b": [1, "x", None]}
