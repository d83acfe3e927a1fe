"""Clients that fail, hang, lie or die: their replies are missing, the run goes on, and the history says who and why."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import fedkin
from fedkin import Client, Message, Method, Replies, Reply, Server
from fedkin.engine import scheduler
from fedkin.engine.runner import ClientError
from fedkin.results.store import equal

pytestmark = pytest.mark.processes

BAD = 3  # the client that misbehaves, recognized by its number of training examples


@pytest.fixture(scope="module")
def fed() -> fedkin.Federation:
    """Six clients of 20 examples, one of 23."""
    return clients_of([20, 20, 20, 23, 20, 20])


def clients_of(sizes: list[int]) -> fedkin.Federation:
    rng = torch.Generator().manual_seed(0)
    who = [i for i, n in enumerate(sizes) for _ in range(n)]
    x = torch.randn(len(who), 5, generator=rng).numpy()
    y = (x[:, 0] > 0).astype(int)
    return fedkin.federate(fedkin.from_arrays(x, y, client=who), partition="by_group", validation=0.0)


@dataclass(frozen=True)
class Faulty(Method):
    """FedAvg with a client function that misbehaves at one client in round 2."""

    fault: str = ""
    mark: str = ""

    def init(self, fed: Server):
        return {"model": fed.initial(0), "round": 0}

    def send(self, state, ids: Tensor) -> Message:
        return Message(shared=(state["model"], torch.tensor(state["round"] + 1)))

    def local(self, client: Client, message: Message) -> Reply:
        row, round = message.shared[0], int(message.shared[1])
        bad = len(client.data.y) == 18 and round == 2  # 23 rows, 5 of them to test on
        trained = fedkin.sgd(client, row)
        row.zero_()  # must not be seen by anybody else
        if not bad:
            return Reply({"round": round}, (trained,))
        if self.fault == "raise":
            raise RuntimeError("no more battery")
        if self.fault == "nan":
            return Reply({"round": round}, (trained * float("nan"),))
        if self.fault == "shape":
            return Reply({"round": round}, (trained[:-1],))
        if self.fault == "dtype":
            return Reply({"round": round}, (trained.double(),))
        if self.fault == "type":
            return trained  # type: ignore[return-value]
        if self.fault == "hang":
            Path(self.mark).touch()
            signal.pause()
        if self.fault == "die once" and not Path(self.mark).exists():
            Path(self.mark).touch()
            os._exit(9)
        if self.fault == "die":
            os._exit(9)
        return Reply({"round": round}, (trained,))

    def merge(self, state, sent: Message, replies: Replies):
        return {"model": replies.weights @ replies.body[0], "round": state["round"] + 1}

    def personal(self, client: Client, message: Message, trained: Callable[[], Reply]) -> Tensor:
        return message.shared[0]


def play(fed, fault="", **changes):
    mark = changes.pop("mark", "")
    settings = {"rounds": 3, "workers": 2, "batch_size": 8, "lr": 0.1, **changes}
    return fedkin.run(Faulty(fault, mark), fed, **settings)


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        ("raise", "no more battery"),
        ("nan", "NaN or infinity"),
        ("shape", "replied"),
        ("dtype", "float64"),
        ("type", "must return Reply"),
        ("die", "died 3 times"),
    ],
)
def test_a_bad_reply_is_dropped_and_named(fed, fault, word):
    result = play(fed, fault)
    dropped = list(result.history.select("dropped"))
    assert [(record.round, record.client) for record in dropped] == [(2, BAD)]
    assert word in dropped[0].value
    assert result.summary["dropped"] == 1
    # the mean of round 2 is over the five others
    without = play(fed, "", rounds=1)
    assert not equal(result.state, without.state)
    assert torch.isfinite(result.state["model"]).all()


def test_among_many_short_tasks_only_the_client_that_kills_its_worker_is_dropped():
    """They travel several at a time: with the worker go the answers of others, whose work is repeated."""
    fed = clients_of([30, 30, 30, 23, *[30] * 27, *[20] * 30])  # the bad one comes in the middle: larger ones go first
    died, absent = play(fed, "die", rounds=2), play(fed, "", rounds=2, leave={BAD: 2})
    assert [(record.round, record.client) for record in died.history.select("dropped")] == [(2, BAD)]
    assert equal(died.state, absent.state)


def test_the_others_are_merged_without_the_bad_one(fed):
    """A dropped client leaves the same server state as a client that was never asked."""
    dropped = play(fed, "raise", rounds=2)
    absent = play(fed, "", rounds=2, leave={BAD: 2})
    assert equal(dropped.state, absent.state)


def test_a_client_that_hangs_is_not_waited_for(fed, tmp_path, monkeypatch):
    """Time stands still until the client hangs: the others may take as long as a busy machine needs. There is one
    worker, and the client that hangs is the largest, so that the worker begins each round with it."""
    mark = tmp_path / "hangs"
    monkeypatch.setattr(scheduler, "time", SimpleNamespace(monotonic=lambda: 1000.0 if mark.exists() else 0.0))
    result = play(fed, "hang", time_limit=2.0, workers=1, mark=str(mark))
    (record,) = result.history.select("dropped")
    assert (record.round, record.client) == (2, BAD)
    assert "did not answer within 2 s" in record.value


def test_a_worker_that_dies_is_replaced_and_its_work_repeated(fed, tmp_path):
    result = play(fed, "die once", mark=str(tmp_path / "died"))
    assert (tmp_path / "died").exists()
    assert not list(result.history.select("dropped"))
    healthy = play(fed)
    assert equal(result.state, healthy.state)
    assert result.history.records == healthy.history.records


def test_a_failed_client_keeps_its_state(fed, tmp_path):
    from fedkin.engine.checkpoint import Checkpoint
    from fedkin.results.store import load_state

    play(fed, "nan", rounds=2, out=tmp_path)
    import json

    config = json.loads((tmp_path / "config.json").read_text())
    checkpoint = Checkpoint.open(tmp_path, config, set())
    states = {client: load_state(path)["round"] for client in range(6) if (path := checkpoint.client(client))}
    assert states == {0: 2, 1: 2, 2: 2, BAD: 1, 4: 2, 5: 2}


def test_a_client_that_writes_into_its_message_harms_nobody(fed):
    one, two = play(fed, engine="serial"), play(fed, workers=1)
    assert equal(one.state, two.state)
    assert one.state["model"].abs().sum() > 0


def test_the_debug_engine_raises_with_round_client_and_hook(fed):
    with pytest.raises(ClientError, match=r"round 2, client 3, hook local: RuntimeError: no more battery"):
        play(fed, "raise", engine="serial")


def test_when_everybody_fails_the_run_stops_and_says_why(fed):
    @dataclass(frozen=True)
    class Hopeless(Faulty):
        def local(self, client: Client, message: Message) -> Reply:
            raise ValueError("this cannot work")

    with pytest.raises(ClientError, match=r"All 6 clients failed.*this cannot work"):
        fedkin.run(Hopeless(), fed, rounds=2)


def test_a_learning_rate_that_is_too_large_says_so(fed):
    with pytest.raises(ClientError, match="lower --lr"):
        fedkin.run("fedavg", fed, rounds=20, epochs=5, lr=1e30)


def test_only_marked_functions_run_at_clients(fed):
    @dataclass(frozen=True)
    class Sneaky(Faulty):
        def other(self, client: Client, message: Message) -> Reply:
            return Reply({}, ())

        def round(self, state, clients):
            clients.run(self.other, Message())
            return state

    with pytest.raises(ValueError, match="@client_function"):
        fedkin.run(Sneaky(), fed, rounds=1)


def test_a_round_may_have_several_exchanges(fed):
    @dataclass(frozen=True)
    class Twice(Faulty):
        @fedkin.client_function
        def count(self, client: Client, message: Message) -> Reply:
            return Reply(client.state, (torch.tensor(float(len(client.data.y))),))

        def round(self, state, clients):
            counted = clients.run(self.count, Message())
            assert counted.body[0].tolist() == counted.n.tolist()
            return super().round(state, clients)

    result = fedkin.run(Twice(), fed, rounds=2)
    down = sum(record.value for record in result.history.select("bytes_up") if record.round == 1)
    assert down == 6 * (4 + 4 * result.state["model"].numel())


def test_a_client_asked_twice_counts_twice(fed):
    @dataclass(frozen=True)
    class Repeats(Faulty):
        def select(self, state, fed: Server, round: int) -> Tensor:
            return torch.tensor([1, 4, 4])

        def merge(self, state, sent: Message, replies: Replies):
            assert replies.ids.tolist() == [1, 4, 4]
            assert replies.position.tolist() == [0, 1, 2]
            assert torch.equal(replies.body[0][1], replies.body[0][2])
            return super().merge(state, sent, replies)

    result = fedkin.run(Repeats(), fed, rounds=2)
    assert len(list(result.history.select("bytes_up"))) == 4  # but it works and sends once


def test_lost_replies_are_simulated_at_the_rate_asked(fed):
    result = play(fed, rounds=40, lost=0.3, lr=0.01)
    lost = sum(record.value == "lost on the way" for record in result.history.select("dropped"))
    assert 0.2 < lost / 240 < 0.4


def test_test_examples_are_for_the_scorer_alone(fed):
    @dataclass(frozen=True)
    class Peeks(Faulty):
        def local(self, client: Client, message: Message) -> Reply:
            return Reply({}, (client.data.test.x,))

    with pytest.raises(ClientError, match="Test examples are for the scorer only"):
        fedkin.run(Peeks(), fed, rounds=1)
