"""Clients that come and go, rounds in which nobody answers, and what the history says of them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import fedkin
from fedkin.conformance import PROPERTIES, Broken
from fedkin.methods import method
from fedkin.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Tells(FedAvg):
    """An event in each round that is merged."""

    def init(self, fed):
        return {**super().init(fed), "merged": 0}

    def merge(self, state, sent, replies):
        return {**super().merge(state, sent, replies), "merged": state["merged"] + 1}

    def describe(self, state):
        return {"event": f"merge {state['merged']}"}


def lost_rounds(history) -> set[int]:
    return {record.round for record in history.select("lost_round")}


def test_what_happened_once_is_told_once(digits):
    history = fedkin.run(Tells(), digits, rounds=30, participation=0.2, lost=0.5, engine="serial").history
    lost, events = lost_rounds(history), list(history.select("event"))
    assert 2 <= len(lost) <= 28
    assert [record.round for record in events] == [r for r in range(1, 31) if r not in lost]
    assert len({record.value for record in events}) == len(events)
    assert {record.round for record in history.select("mixing")} == {record.round for record in events}


@pytest.mark.parametrize("name", ["dcpfl", "pflic", "cfl"])
def test_a_round_without_replies_has_no_events(digits, name):
    history = fedkin.run(method(name), digits, rounds=12, participation=0.2, lost=0.8, engine="serial").history
    lost = lost_rounds(history)
    assert lost
    assert lost != set(range(1, 13))
    about = {"lost_round", "compute_seconds", "communication_seconds"}
    for record in history.records:
        if record.round in lost and record.client is None:
            assert record.metric in about, record


@dataclass(frozen=True)
class Everybody(FedAvg):
    """Asks all there ever are."""

    def select(self, state, fed, round):
        return torch.arange(fed.size)


def test_a_client_that_is_not_there_cannot_be_asked(digits):
    with pytest.raises(ValueError, match=r"Everybody.select chose clients \[5\] in round 1.*choose from fed\.ids"):
        fedkin.run(Everybody(), digits, rounds=3, arrive={5: 2}, engine="serial")
    with pytest.raises(ValueError, match=r"chose clients \[0\] in round 2"):
        fedkin.run(Everybody(), digits, rounds=3, leave={0: 2}, engine="serial")


@pytest.mark.parametrize(
    ("arrive", "leave"), [({2: 3}, {2: 3}), ({2: 4}, {2: 2}), ({}, {2: 1}), ({2: 0}, {})], ids=lambda v: str(v)
)
def test_one_who_leaves_before_coming_is_a_mistake(digits, arrive, leave):
    with pytest.raises(ValueError, match=r"Client 2 arrives in round .* and leaves in round .*: it must arrive"):
        fedkin.run("fedavg", digits, rounds=5, arrive=arrive, leave=leave, engine="serial")


# ---- the property of `fedkin verify` can fail


@dataclass(frozen=True)
class Forgets(FedAvg):
    """Has a row only for those who were there at the start."""

    def init(self, fed):
        return {**super().init(fed), "there": fed.ids}

    def merge(self, state, sent, replies):
        return {**super().merge(state, sent, replies), "there": state["there"]}

    def send(self, state, ids):
        if not torch.isin(ids, state["there"]).all():
            raise KeyError("a client that was not there in round 1")
        return super().send(state, ids)


@dataclass(frozen=True)
class Ignores(Forgets):
    """Never asks a newcomer."""

    def send(self, state, ids):
        return FedAvg.send(self, state, ids)

    def select(self, state, fed, round):
        return fed.ids[torch.isin(fed.ids, state["there"])]


@pytest.mark.parametrize(
    ("made", "words"),
    [(Forgets(), "not there in round 1"), (Ignores(), r"\[7\] were never asked"), (Everybody(), "chose")],
)
def test_methods_that_cannot_cope_are_found_out(made, words):
    with pytest.raises((Broken, KeyError, ValueError), match=words):
        PROPERTIES["clients come and go"](made)
