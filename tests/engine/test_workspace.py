"""What one client does to its worker, the next one does not see."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import fedkin
from fedkin.engine.workspace import Workspace
from fedkin.methods.fedavg import FedAvg
from fedkin.models.network import Network
from fedkin.results.store import equal


@pytest.fixture(scope="module")
def fed() -> fedkin.Federation:
    return fedkin.federate("digits", clients=4, samples_per_client=40, seed=2)


def network(shape=None, classes=10):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, classes))


DAMAGE = {
    "requires_grad": lambda net: net.module.requires_grad_(False),
    "training mode": lambda net: net.module.eval(),
    "threads": lambda net: torch.set_num_threads(3),
    "grad mode": lambda net: torch.set_grad_enabled(False),
    "default type": lambda net: torch.set_default_dtype(torch.float64),
    "numbers": lambda net: net.flat.fill_(7.0),
    "initial model": lambda net: net.initial.fill_(7.0),
    "batch norm": lambda net: setattr(net.module[2], "momentum", 0.9),
    "dropout": lambda net: setattr(net.module[3], "p", 0.9),
    "a part replaced": lambda net: net.module.__setitem__(1, nn.Linear(64, 8)),
    "a part added": lambda net: net.module.append(nn.ReLU()),
    "a parameter replaced": lambda net: setattr(net.module[1], "weight", nn.Parameter(torch.zeros(8, 64))),
    "numbers elsewhere": lambda net: setattr(net.module[1].weight, "data", torch.zeros(8, 64)),
    "a hook": lambda net: net.module[1].register_forward_hook(lambda m, x, y: y * 0),
    "forward": lambda net: setattr(net.module[1], "forward", lambda x: torch.zeros(len(x), 8)),
    "a buffer": lambda net: net.module[2].register_buffer("running_mean", torch.ones(8)),
}


@dataclass(frozen=True)
class Damages(FedAvg):
    """The client with the number 0 leaves its worker in a bad state."""

    damage: str = ""

    def send(self, state, ids):
        return super().send(state, ids)._replace(own=(ids,))

    def received(self, client, message):
        return message.shared[0]

    def local(self, client, message):
        if not client.net.parameters[0].requires_grad:
            raise RuntimeError("somebody has frozen this network")
        if torch.get_num_threads() != 1 or not client.net.module.training:
            raise RuntimeError("somebody has changed the settings")
        reply = super().local(client, message)
        if int(message.own[0]) == 0 and self.damage:
            DAMAGE[self.damage](client.net)
        return reply


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_next_client_finds_everything_as_it_was(fed, damage):
    settings = {"rounds": 2, "workers": 1, "evaluate_every": 1, "model": network}
    sound, damaged = (fedkin.run(Damages(damage=name), fed, **settings) for name in ("", damage))
    assert not list(damaged.history.select("dropped"))
    assert equal(sound.state, damaged.state)
    assert sound.history.records == damaged.history.records


@pytest.mark.parametrize("damage", DAMAGE)
def test_put_back_or_built_anew(damage):
    threads, before = torch.get_num_threads(), torch.get_default_dtype()
    x = torch.randn(5, 64)
    built = []

    def make():
        torch.default_generator.manual_seed(1)
        built.append(Network(network(), torch.zeros(1, 64)))
        return built[-1]

    try:
        workspace = Workspace(make, 1)
        net = workspace.clean()
        net.eval()
        with torch.no_grad():
            expected = net(x)
        DAMAGE[damage](net)
        net = workspace.clean()
        assert torch.is_grad_enabled()
        assert net.module.training
        assert all(p.requires_grad for p in net.parameters)
        net.module.eval()
        with torch.no_grad():
            assert torch.equal(net(x), expected)
        assert net.cost > 0
        assert workspace.clean().cost == 0
        put_back = {
            "requires_grad",
            "training mode",
            "threads",
            "grad mode",
            "default type",
            "numbers",
            "initial model",
        }
        assert len(built) == (1 if damage in {*put_back, "initial model"} else 2)
    finally:
        torch.set_num_threads(threads)
        torch.set_grad_enabled(True)
        torch.set_default_dtype(before)


@dataclass(frozen=True)
class Lends(FedAvg):
    """Returns the network's own memory instead of a copy."""

    def local(self, client, message):
        reply = super().local(client, message)
        client.net.load(reply.body[0])
        return reply._replace(state={"last": client.net.flat, "parts": [client.net.trainable[:3]]},
                              body=(client.net.flat,))  # fmt: skip


@pytest.mark.parametrize("engine", ["serial", "pool"])
def test_a_reply_in_the_networks_own_memory_is_not_overwritten(fed, engine, tmp_path):
    from fedkin.results.store import load_state

    settings = {"rounds": 2, "evaluate_every": 0, "engine": engine, "workers": 1, "model": network}
    plain, lent = fedkin.run(FedAvg(), fed, **settings), fedkin.run(Lends(), fed, **settings, out=tmp_path)
    assert torch.equal(plain.state["model"], lent.state["model"])
    states = [load_state(path)["last"] for path in (tmp_path / "checkpoint").glob("client-*-000002-1.*")]
    assert len(states) == 4
    assert all(not torch.equal(a, b) for i, a in enumerate(states) for b in states[:i])


@dataclass(frozen=True)
class LendsGradients(FedAvg):
    """Sends the gradient in the network's own memory beside the model."""

    copy: bool = False

    def local(self, client, message):
        client.net.load(message.shared[0])
        slopes = client.net.gradients(client.data.x, client.data.y, None, client.net.parameters)
        return fedkin.Reply({}, (message.shared[0], *(part.clone() if self.copy else part for part in slopes)))

    def merge(self, state, sent, replies):
        state = super().merge(state, sent, replies)
        return {**state, "slopes": torch.cat([part.flatten(1) for part in replies.body[1:]], 1)}


@pytest.mark.parametrize("engine", ["serial", "pool"])
def test_a_gradient_in_the_networks_own_memory_is_not_overwritten(fed, engine):
    settings = {"rounds": 1, "evaluate_every": 0, "engine": engine, "workers": 1, "model": "mlp_small"}
    found, expected = (fedkin.run(LendsGradients(copy=c), fed, **settings).state["slopes"] for c in (False, True))
    assert torch.equal(found, expected)
    assert len(found.unique(dim=0)) == 4
