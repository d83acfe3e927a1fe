"""Replies that would ruin the server's state are left out, and whose they are is said."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nan

import pytest
import torch

import fedkin
from fedkin import Client, Message, Replies, Reply, Server
from fedkin.engine.quarantine import apart, outliers, suspects
from fedkin.engine.runner import ClientError, reach
from fedkin.methods.fedavg import FedAvg
from fedkin.protocol import UnusableReplies
from fedkin.results.store import equal


@pytest.fixture(scope="module")
def fed() -> fedkin.Federation:
    return fedkin.federate("digits", clients=6, samples_per_client=40, seed=2)


@dataclass(frozen=True)
class Faulty(FedAvg):
    """FedAvg in which client 3 returns something odd in round 2."""

    fault: str = ""
    value: float = 3e38
    who: tuple[int, ...] = (3,)

    def init(self, fed: Server):
        return {**super().init(fed), "round": 1}

    def send(self, state, ids) -> Message:
        return Message((state["model"], torch.tensor(state["round"])), (ids,))

    def received(self, client: Client, message: Message):
        return message.shared[0]

    def local(self, client: Client, message: Message) -> Reply:
        trained = fedkin.sgd(client, message.shared[0])
        state = {"rounds": client.state.get("rounds", 0) + 1}
        if int(message.own[0]) in self.who and int(message.shared[1]) == 2:
            if self.fault == "huge":
                trained = torch.full_like(trained, self.value)
            if self.fault == "state":
                state["worse"] = torch.tensor([1.0, nan])
            if self.fault == "number":
                state["worse"] = inf
        return Reply(state, (trained,))

    def personal(self, client: Client, message: Message, trained):
        return message.shared[0]

    def merge(self, state, sent: Message, replies: Replies):
        return {**super().merge(state, sent, replies), "round": state["round"] + 1}


SETTINGS = {"rounds": 3, "evaluate_every": 1, "workers": 2}


def without_client_3(fed, **settings):
    return fedkin.run(Faulty(), fed, **{**SETTINGS, "leave": {3: 2}, **settings})


@pytest.mark.parametrize("value", [3e38, -3e38, 1e20, 1e12])
def test_a_huge_reply_is_left_out_and_its_sender_named(fed, value):
    result = fedkin.run(Faulty(fault="huge", value=value), fed, **SETTINGS)
    (record,) = result.history.select("dropped")
    assert (record.round, record.client) == (2, 3)
    assert record.value.startswith("quarantined: with its reply, which reaches ")
    assert result.summary["quarantined"] == {"3": 1}
    assert reach(result.state) < 100
    # the state after round 2 is that of a round in which the client was not asked
    two = {**SETTINGS, "rounds": 2}
    assert equal(
        fedkin.run(Faulty(fault="huge", value=value), fed, **two).state["model"],
        without_client_3(fed, rounds=2).state["model"],
    )


def test_several_of_them(fed):
    result = fedkin.run(Faulty(fault="huge", who=(1, 3)), fed, **SETTINGS)
    assert {(record.round, record.client) for record in result.history.select("dropped")} == {(2, 1), (2, 3)}


def test_the_only_reply_of_a_round(fed):
    """Then the round has no effect."""

    @dataclass(frozen=True)
    class Alone(Faulty):
        def select(self, state, fed, round):
            return torch.tensor([3]) if round == 2 else fed.ids

    result = fedkin.run(Alone(fault="huge"), fed, **SETTINGS)
    assert [record.round for record in result.history.select("lost_round")] == [2]
    assert reach(result.state) < 100


def test_a_stopped_run_gives_the_same_bits(fed, tmp_path):
    straight = fedkin.run(Faulty(fault="huge"), fed, **SETTINGS)
    for rounds in (1, 2, 3):
        stopped = fedkin.run(Faulty(fault="huge"), fed, **{**SETTINGS, "rounds": rounds}, out=tmp_path)
    assert equal(straight.state, stopped.state)
    assert straight.history.records == stopped.history.records


def test_private_states_are_those_of_the_round_that_counts(fed, tmp_path):
    """Doing a round again does not advance anybody twice."""
    from fedkin.results.store import load_state

    fedkin.run(Faulty(fault="huge"), fed, **SETTINGS, checkpoint_every=3, out=tmp_path)
    states = {int(p.name.split("-")[1]): load_state(p)["rounds"] for p in (tmp_path / "checkpoint").glob("client-*")}
    assert states == {0: 3, 1: 3, 2: 3, 3: 2, 4: 3, 5: 3}


@pytest.mark.parametrize("name", ["fedcedar", "pfedgat-v2", "pflic", "dcpfl", "scaffold", "pfedhn", "ditto", "cfl"])
def test_methods_go_on_without_huge_replies(fed, name):
    result = fedkin.run(name, fed, rounds=4, faults="huge=0.1", engine="serial", lr=0.1)
    sizes = [v for v in result.history.values("personal_loss", round=4).values()]
    assert all(v is not None and v < 1e4 for v in sizes)
    assert all(record.value.startswith("quarantined") for record in result.history.select("dropped"))


@pytest.mark.parametrize("fault", ["state", "number"])
def test_a_private_state_that_is_not_finite_is_noticed(fed, fault, tmp_path):
    result = fedkin.run(Faulty(fault=fault), fed, **SETTINGS, out=tmp_path)
    (record,) = result.history.select("dropped")
    assert (record.round, record.client) == (2, 3)
    assert "returned a private state with NaN or infinity" in record.value
    assert result.summary["quarantined"] == {"3": 1}


def test_a_merge_that_fails_for_everybody_is_the_methods_fault(fed):
    @dataclass(frozen=True)
    class Broken(Faulty):
        def merge(self, state, sent, replies):
            raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError, match="a bug"):
        fedkin.run(Broken(), fed, **SETTINGS)


def test_a_merge_that_cannot_cope_with_one_reply_goes_on_without_it(fed):
    @dataclass(frozen=True)
    class Picky(Faulty):
        def merge(self, state, sent, replies):
            if float(replies.body[0].abs().max()) > 1e30:
                raise ValueError("array must not contain infs")
            return super().merge(state, sent, replies)

    result = fedkin.run(Picky(fault="huge"), fed, **SETTINGS)
    (record,) = result.history.select("dropped")
    assert (record.round, record.client) == (2, 3)
    assert "array must not contain infs" in record.value


def test_a_merge_says_itself_whose_replies_it_cannot_use(fed):
    """One after the other: the second is seen only when the first is gone."""

    @dataclass(frozen=True)
    class Picky(Faulty):
        def merge(self, state, sent, replies):
            large = [c for c, row in zip(replies.ids.tolist(), replies.body[0]) if float(row.abs().max()) > 50]
            if large:
                raise UnusableReplies(large[:1], "it is too large for us")
            return super().merge(state, sent, replies)

    result = fedkin.run(Picky(fault="huge", value=100.0, who=(1, 3)), fed, **SETTINGS)
    dropped = [(r.round, r.client, r.value) for r in result.history.select("dropped")]
    assert dropped == [(2, client, "quarantined: it is too large for us") for client in (1, 3)]
    assert result.summary["quarantined"] == {"1": 1, "3": 1}
    alone = fedkin.run(Picky(fault="huge", value=100.0, who=tuple(range(6))), fed, **SETTINGS)
    assert [r.round for r in alone.history.select("lost_round")] == [2, 3], "the state stays that of round 1"


def test_a_merge_that_blames_clients_in_vain_stops_the_run(fed):
    @dataclass(frozen=True)
    class Wrong(FedAvg):
        def merge(self, state, sent, replies):
            raise UnusableReplies([0], "always")

    with pytest.raises(UnusableReplies, match="always"):
        fedkin.run(Wrong(), fed, **SETTINGS)


def test_a_merge_that_divides_by_zero_stops_the_run(fed, tmp_path):
    @dataclass(frozen=True)
    class Divides(Faulty):
        def merge(self, state, sent, replies):
            after = super().merge(state, sent, replies)
            return {**after, "model": after["model"] / (state["round"] != 2)}

    with pytest.raises(ClientError, match=r"Round 2: the merged model would hold NaN or infinity.*checkpoint is sound"):
        fedkin.run(Divides(), fed, **SETTINGS, checkpoint_every=1, out=tmp_path)
    from fedkin.results.store import load_state

    assert reach(load_state(tmp_path / "checkpoint" / "server-000001.safetensors")) < 100


def test_a_method_may_mark_what_it_does_not_know(fed):
    @dataclass(frozen=True)
    class Marks(Faulty):
        def merge(self, state, sent, replies):
            return {**super().merge(state, sent, replies), "unknown": torch.tensor([nan, inf])}

    assert not list(fedkin.run(Marks(), fed, **SETTINGS).history.select("dropped"))


def test_numbers_that_grow_everywhere_are_nobodys_fault(fed):
    @dataclass(frozen=True)
    class Grows(Faulty):
        def merge(self, state, sent, replies):
            after = super().merge(state, sent, replies)
            return {**after, "counter": torch.tensor([1e9])}

    assert not list(fedkin.run(Grows(), fed, **SETTINGS).history.select("dropped"))


def test_numbers_that_grow_beside_a_large_reply(fed):
    """Leaving the reply out does not mend it: then everybody's replies count."""

    @dataclass(frozen=True)
    class Grows(Faulty):
        def merge(self, state, sent, replies):
            after = super().merge(state, sent, replies)
            return {**after, "model": state["model"], "counter": torch.tensor([1e9])}

    result = fedkin.run(Grows(fault="huge", value=1e12), fed, **{**SETTINGS, "rounds": 2})
    plain = fedkin.run(Grows(), fed, **{**SETTINGS, "rounds": 2})
    assert not list(result.history.select("dropped"))
    assert equal(result.state, plain.state)


# ---- the parts


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (torch.tensor([1.0, -3.0]), 3.0),
        (torch.tensor([nan, 1.0]), inf),
        (torch.tensor([-inf, 1.0]), inf),
        (torch.tensor([1 << 40]), 0.0),
        (torch.empty(0), 0.0),
        (torch.tensor([-7.0], dtype=torch.bfloat16), 7.0),
        (torch.tensor([3 + 4j]), 5.0),
        ({"a": [1.0, (torch.tensor(-2.0), "text")], "b": None, "c": True, "n": 10**9}, 2.0),
        (nan, inf),
        ([], 0.0),
    ],
)
def test_reach(value, expected):
    assert reach(value) == pytest.approx(expected)


def test_reach_of_what_is_finite():
    assert reach({"a": torch.tensor([nan, -inf, -3.0]), "b": [inf, 2.0]}, finite=True) == 3
    assert reach([torch.tensor([nan])], finite=True) == 0


def test_outliers_and_suspects():
    assert outliers({0: 1.0, 1: 2.0, 2: 3e38}) == (2,)
    assert outliers({0: 1.0, 1: 3e38}) == (1,)
    assert outliers({0: 3e38}) == (0,)
    assert outliers({0: 1e30, 1: 2e30, 2: 3e30}) == ()
    assert outliers({0: 1e-12, 1: 1e5}) == (), "large only beside something tiny"
    assert outliers({0: 1.0, 1: 1.0, 2: 1e30, 3: inf}) == (2, 3)
    assert outliers({}) == ()
    assert list(suspects({0: 1.0, 1: 3.0, 2: 2.0, 3: 2.5})) == [(1,), (1, 3), (1, 3, 2)]
    assert list(suspects({0: 1.0, 1: 3e38, 2: 3e38, 3: 1.0})) == [(1, 2), (1,), (1, 2, 0)]
    assert list(suspects({0: 1.0, 1: 1.0}, merged=False)) == [], "the merge failed and nobody stands out"
    assert list(suspects({0: 1.0, 1: 3e38, 2: 1.0}, {0, 2}, merged=False)) == [(1,), (0, 2), (0,), (2,), (0, 1, 2)]


@dataclass(frozen=True)
class Creeping(FedAvg):
    """FedAvg in which some clients return models that grow a hundredfold in every round: never a million at once."""

    who: tuple[int, ...] = (1, 4)

    def send(self, state, ids) -> Message:
        return Message((state["model"],), (ids,))

    def received(self, client: Client, message: Message):
        return message.shared[0]

    def local(self, client: Client, message: Message) -> Reply:
        trained = fedkin.sgd(client, message.shared[0])
        return Reply({}, (100 * trained if int(message.own[0]) in self.who else trained,))

    def personal(self, client: Client, message: Message, trained):
        return message.shared[0]


def test_models_that_grow_slowly_are_noticed_before_they_overflow(fed):
    """38 powers of ten fit into float32: at a hundredfold in each round, round 20 would hold NaN and end the run."""
    run = fedkin.run(Creeping(), fed, rounds=30, lr=0.01, engine="serial", evaluate_every=0, save_models=False)
    dropped = list(run.history.select("dropped"))
    assert {record.client for record in dropped} == {1, 4}
    assert "the models to send would reach" in str(dropped[0].value)
    assert reach(run.state) <= 1e6
    everybody = Creeping(who=tuple(range(6)))
    grown = fedkin.run(everybody, fed, rounds=4, lr=1e-9, engine="serial", evaluate_every=0, save_models=False)
    assert not list(grown.history.select("dropped")), "nobody stands apart"
    assert reach(grown.state) > 1e6


def test_signflip_does_not_end_a_run_of_pfedgat():
    """Two of ten clients turn their updates around. Seen at seed 1: the merged model held NaN in round 25."""
    fed = fedkin.federate("digits", clients=10, partition="dirichlet", alpha=0.5, seed=1, samples_per_client=40)
    settings = {"rounds": 16, "lr": 0.2, "seed": 1, "engine": "serial", "evaluate_every": 0, "save_models": False}
    run = fedkin.run("pfedgat", fed, attack="signflip:0.2:20", **settings)
    dropped = list(run.history.select("dropped"))
    assert dropped
    assert {record.client for record in dropped} <= set(run.summary["hostile"])


def test_who_stands_apart():
    assert apart({0: 1.0, 1: 1.1, 2: 5.0, 3: 1.2, 4: 6.0}) == (2, 4)
    assert apart({0: 1.0, 1: 1.1, 2: 1.2, 3: 1.9}) == (), "not twice the median"
    assert apart({0: 1.0, 1: 50.0, 2: 60.0, 3: 70.0}) == (), "most clients are honest"
    assert apart({0: 0.0, 1: 0.0, 2: 3.0}) == (2,)
    assert apart({0: 9.0}) == ()
