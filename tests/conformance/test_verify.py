"""The properties themselves: each can fail, on a method that has just that fault."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from fedkin import Client, Message, Replies, Reply, sgd
from fedkin.conformance import PROPERTIES, Broken, verify
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.knnper import KNNPer

_seen: list[int] = []


@dataclass(frozen=True)
class Frozen(FedAvg):
    """A server that never moves, as pFedMe with beta=0 elsewhere."""

    def merge(self, state, sent, replies):
        return state


@dataclass(frozen=True)
class DeadTerm(FedAvg):
    """A proximal term built from detached values has no gradient."""

    mu: float = 0.1

    def local(self, client: Client, message: Message) -> Reply:
        row = message.shared[0]

        def loss(net, x, y):
            distance = sum((p.detach() ** 2).sum() for p in net.parameters)
            return torch.nn.functional.cross_entropy(net(x), y) + self.mu * distance

        return Reply({}, (sgd(client, row, loss=loss),))


@dataclass(frozen=True)
class ByPosition(FedAvg):
    """Takes for granted that all who were asked have answered."""

    def merge(self, state, sent, replies: Replies):
        asked = int(replies.position.max()) + 1
        return {**super().merge(state, sent, replies), "table": torch.stack([replies.body[0][i] for i in range(asked)])}


@dataclass(frozen=True)
class Global(FedAvg):
    """Keeps something outside its state."""

    def merge(self, state, sent, replies):
        _seen.append(1)
        new = super().merge(state, sent, replies)
        return {**new, "model": new["model"] + 1e-3 * len(_seen)}


@dataclass(frozen=True)
class Unbalanced(FedAvg):
    def mixing(self, state):
        return torch.ones(len(state["share"]), len(state["share"]))


@dataclass(frozen=True)
class Writes(FedAvg):
    def send(self, state, ids):
        state["model"] += 1e-6
        return super().send(state, ids)


@dataclass
class Thawed(FedAvg.__bases__[0]):  # type: ignore[name-defined,misc]
    init = FedAvg.init
    send = FedAvg.send
    local = FedAvg.local
    merge = FedAvg.merge
    personal = FedAvg.personal
    fine_tune: bool = False


@dataclass(frozen=True)
class Alone(FedAvg):
    """Every client trains on from its own model, which the server keeps: right."""

    def init(self, fed):
        return {**super().init(fed), "models": fed.initial(0).repeat(fed.size, 1)}

    def send(self, state, ids):
        return Message(own=(state["models"][ids],))

    def local(self, client: Client, message: Message) -> Reply:
        return Reply({}, (sgd(client, message.own[0]),))

    def merge(self, state, sent, replies: Replies):
        return {**state, "models": self.kept(state["models"].clone(), replies)}

    def kept(self, models, replies):
        models[replies.ids] = replies.body[0]
        return models

    def personal(self, client, message, trained):
        return message.own[0]

    def mixing(self, state):
        return torch.eye(len(state["models"]))


@dataclass(frozen=True)
class ByOrder(Alone):
    """Takes the order of the replies for ids."""

    def kept(self, models, replies):
        models[: len(replies.body[0])] = replies.body[0]
        return models


@dataclass(frozen=True)
class ByPlace(Alone):
    """Takes positions among those asked for ids."""

    def kept(self, models, replies):
        models[replies.position] = replies.body[0]
        return models


@dataclass(frozen=True)
class SentInOrder(Alone):
    """Sends the first models, whoever was asked."""

    def send(self, state, ids):
        return Message(own=(state["models"][: len(ids)],))


@dataclass(frozen=True)
class Weighted(FedAvg):
    """The first reply counts twice."""

    def merge(self, state, sent, replies):
        again = replies.body[0][0]
        new = super().merge(state, sent, replies)
        return {**new, "model": (new["model"] + again) / 2}


@dataclass(frozen=True)
class Shaken(FedAvg):
    """Adds to every parameter of the network, trained or not."""

    def local(self, client, message):
        for parameter in client.net.module.parameters():
            parameter.data += 0.01
        return super().local(client, message)


ORDER = "the order of clients and replies does not matter"


@pytest.mark.parametrize(
    ("method", "label"),
    [
        (ByOrder(), ORDER),
        (ByPlace(), ORDER),
        (SentInOrder(), ORDER),
        (Weighted(), ORDER),
        (Shaken(), "frozen parameters stay frozen"),
        (Frozen(), "the outcome moves with rounds"),
        (DeadTerm(), "every hyper-parameter changes the outcome"),
        (ByPosition(), "lost replies are survived"),
        (Global(), "same seed, same bits; another seed, another run"),
        (Global(), "a resumed run gives the same bits"),
        (Unbalanced(), "rows of the mixing matrix sum to 1"),
        (Writes(), "send, mixing and describe change nothing"),
        (Thawed(), "is a frozen dataclass"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_a_faulty_method_is_found_out(method, label):
    with pytest.raises((Broken, IndexError)):
        PROPERTIES[label](method)


def test_a_method_that_goes_by_ids_has_the_property():
    PROPERTIES[ORDER](Alone())


def test_positions_for_ids_are_named():
    with pytest.raises(Broken, match=r"index by replies\.ids"):
        PROPERTIES[ORDER](ByOrder())
    with pytest.raises(Broken, match="asked in another order"):
        PROPERTIES[ORDER](ByPlace())


def test_verify_reports_instead_of_raising():
    outcomes = {o.name.split(" (")[0]: o for o in verify(Frozen())}
    assert set(outcomes) == set(PROPERTIES)
    bad = outcomes["the outcome moves with rounds"]
    assert not bad.passed
    assert "same after 1 and" in bad.detail
    assert outcomes["lost replies are survived"].passed


def test_a_method_that_cannot_be_made_is_one_failure():
    (only,) = verify("nonsense")
    assert not only.passed
    assert "There is no method 'nonsense'" in only.detail


def test_variants_count_as_their_own():
    assert replace(FedAvg(), fine_tune=True) != FedAvg()


def test_the_small_runs_print_nothing(capsys):
    PROPERTIES["a resumed run gives the same bits"](KNNPer())
    assert capsys.readouterr() == ("", "")
