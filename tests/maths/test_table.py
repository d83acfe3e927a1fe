"""`ClientTable` against a dense tensor, in memory and in a file; what is left of it on the disk."""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkin.maths import table as tables
from fedkin.maths.table import ClientTable, TableError, mixed, needed
from fedkin.protocol import with_rows
from fedkin.results.newcomer import _grown
from fedkin.results.store import equal, load_state, save_state


@pytest.fixture(params=["memory", "file"])
def place(request, monkeypatch):
    if request.param == "file":
        monkeypatch.setattr(tables, "IN_MEMORY", 0)
        monkeypatch.setattr(tables, "BLOCK", 40)  # a few rows
    return request.param


WRITES = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=7, unique=True), max_size=6)


@given(writes=WRITES, width=st.integers(1, 9), seed=st.integers(0, 1 << 30))
def test_every_state_of_a_table_is_that_of_a_dense_tensor(place, writes, width, seed):
    draw = torch.Generator().manual_seed(seed)
    default = torch.randn(width, generator=draw)
    states = [(ClientTable(default, 7), default.repeat(7, 1))]
    assert states[0][0].in_memory is (place == "memory")
    for ids in writes:
        table, dense = states[-1]
        values = torch.randn(len(ids), width, generator=draw)
        states.append((with_rows(table, ids, values), with_rows(dense, ids, values)))
    weights = torch.rand(3, 7, generator=draw) * (torch.rand(7, generator=draw) < 0.7)
    for table, dense in states:  # the old ones too: nothing has changed them
        mask, ids = torch.rand(7, generator=draw) < 0.5, torch.randint(7, (4,), generator=draw)
        assert len(table) == 7
        assert table.shape == dense.shape
        for key in (3, ids, mask, slice(1, 5), ids.tolist(), (ids, slice(0, 1)), (2, 0)):
            assert torch.equal(table[key], dense[key]), key
        assert torch.equal(table.columns(ids, 0, 1), dense[ids, :1])
        assert torch.equal(table.whole(), dense)
        assert torch.equal(torch.cat([rows for _, rows in table.blocks(ids)]), dense[ids])
        assert torch.allclose(mixed(weights, table), weights @ dense, atol=1e-5)
        assert torch.allclose(mixed(weights[0], table), weights[0] @ dense, atol=1e-5)
        assert table.reach() == pytest.approx(float(dense.abs().max()))


def test_a_table_is_taken_as_a_tensor_by_torch_and_numpy(place):
    table = ClientTable(torch.ones(2), 3).with_rows([1], torch.tensor([[2.0, 3.0]]))
    assert torch.allclose(table, torch.tensor([[1.0, 1], [2, 3], [1, 1]]))
    np.testing.assert_array_equal(table, [[1, 1], [2, 3], [1, 1]])


def test_in_memory_all_clients_are_needed_so_that_bits_stay(place):
    mask = torch.tensor([True, False, True])
    assert needed(ClientTable(torch.zeros(2), 3), mask).tolist() == ([0, 1, 2] if place == "memory" else [0, 2])
    assert needed(torch.zeros(3, 2), mask).tolist() == [0, 1, 2]


def test_reading_gives_copies_and_writing_takes_them(place):
    values = torch.ones(1, 2)
    table = ClientTable(torch.zeros(2), 2).with_rows([1], values)
    values.zero_()
    table[:].zero_()
    assert table.whole().tolist() == [[0, 0], [1, 1]]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_noticed(place, bad):
    table = ClientTable(torch.zeros(2), 3).with_rows([1, 2], torch.tensor([[1.0, -5.0], [bad, 4.0]]))
    assert table.reach() == float("inf")
    assert table.reach(finite=True) == 5
    assert table.with_rows([2], torch.zeros(1, 2)).reach() == 5


def test_a_state_with_a_table_is_stored_without_its_default_rows(place, tmp_path):
    table = ClientTable(torch.arange(50.0), 1000).with_rows([7, 3], torch.randn(2, 50))
    state = {"models": table, "a": torch.ones(3, dtype=torch.bool), "none": ClientTable(torch.zeros(2), 4)}
    save_state(tmp_path / "s", state)
    loaded = load_state(tmp_path / "s")
    assert equal(loaded, state)
    assert torch.equal(loaded["models"].whole(), table.whole())
    assert loaded["models"].in_memory is (place == "memory")
    assert (tmp_path / "s").stat().st_size < 2000
    assert not equal(loaded, {**state, "models": table.with_rows([7], torch.zeros(1, 50))})
    assert not equal(loaded["models"], table.with_rows([9], torch.zeros(1, 50)))


def test_a_newcomer_has_the_default(place):
    table = ClientTable(torch.zeros(2), 2).with_rows([1], torch.ones(1, 2))
    grown = _grown({"models": table}, {"models": ClientTable(torch.zeros(2), 3)}, 2)["models"]
    assert grown.whole().tolist() == [[0, 0], [1, 1], [0, 0]]


# ---- the file
@pytest.fixture
def in_file(monkeypatch, tmp_path):
    monkeypatch.setattr(tables, "IN_MEMORY", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def open_bytes() -> int:
    """Size of the files without a name that this process has open."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if "(deleted)" in os.readlink(entry):
                found.append(entry.stat().st_size)
        except OSError:
            continue
    return sum(found)


def test_places_of_rows_that_nobody_needs_are_used_again(in_file):
    gc.collect()
    before = open_bytes()
    table = ClientTable(torch.zeros(1000), 10)
    for round in range(50):
        table = table.with_rows([round % 10, 3], torch.full((2, 1000), float(round)))
    assert open_bytes() - before <= 12 * 4000
    assert table[9].unique().tolist() == [49]
    assert not list(in_file.iterdir()), "the file has no name: nothing is left if the process is killed"
    del table
    gc.collect()
    assert open_bytes() == before


def test_a_full_disk_is_named(in_file, monkeypatch):
    table = ClientTable(torch.zeros(1000), 10)
    with open("/dev/full", "wb", buffering=0) as full:
        monkeypatch.setattr(table._file, "_file", full)
        with pytest.raises(TableError, match="Cannot write clients' models"):
            table.with_rows([1], torch.ones(1, 1000))
