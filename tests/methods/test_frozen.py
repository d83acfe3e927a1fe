"""Parameters that a user froze (`requires_grad=False`) stay as they are, whatever the method does."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedkin
from fedkin.methods import METHODS, method
from fedkin.models.network import Network, build

SETTINGS = {
    "rounds": 3, "lr": 0.1, "epochs": 1, "batch_size": 8, "participation": 0.7, "momentum": 0.5, "weight_decay": 0.01,
    "engine": "serial", "evaluate_every": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def fed():
    made = fedkin.federate("digits", partition="dirichlet", clients=5, samples_per_client=40, alpha=0.5, seed=3)
    return replace(made, splits=tuple(replace(s, train=s.train[: 24 - i]) for i, s in enumerate(made.splits)))


class Watched(nn.Sequential):
    """Raises if a frozen parameter is not as it was built."""

    def watch(self):
        self.held = [(p, p.detach().clone()) for p in self.parameters() if not p.requires_grad]
        return self

    def forward(self, x):
        if any(not torch.equal(now, before) for now, before in self.held):
            raise RuntimeError("a frozen parameter has changed")
        return super().forward(x)


def partly(shape, classes):
    """A frozen layer, a layer with a frozen bias, and a trained head."""
    module = Watched(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, classes))
    module[1].requires_grad_(False)
    module[3].bias.requires_grad_(False)
    return module.watch()


def backbone(shape, classes):
    """A body that is frozen as a whole, with batch norm, under a trained head."""
    module = Watched(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, classes))
    module[1].requires_grad_(False)
    module[2].requires_grad_(False)
    return module.watch()


def bare(shape, classes):
    """A frozen body without buffers: a vector is the head alone."""
    module = Watched(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, classes))
    module[1].requires_grad_(False)
    return module.watch()


BODYLESS = ("fedbabu", "pfedhn-pc")  # these need a body to train


@pytest.mark.parametrize("make", [partly, backbone, bare])
@pytest.mark.parametrize("name", METHODS)
def test_frozen_parameters_stay_frozen_and_at_home(name, make, fed, tmp_path):
    if make is not partly and name in BODYLESS:
        with pytest.raises(ValueError, match=r"body .*is frozen"):
            fedkin.run(method(name), fed, model=make, **SETTINGS)
        return
    if make is bare and name.startswith("pflic"):
        with pytest.raises(ValueError, match="is the whole network"):
            fedkin.run(method(name), fed, model=make, **SETTINGS)
        return
    result = fedkin.run(method(name), fed, model=make, out=tmp_path, **SETTINGS)
    assert not list(result.history.select("dropped"))
    names = {n for n, p in make(fed.shape, fed.classes).named_parameters() if not p.requires_grad}
    files = set(json.loads((tmp_path / "models" / "index.json").read_text()).values())
    assert files
    for file in files:
        assert not names & load_file(tmp_path / "models" / file).keys(), "they are not stored for each client"
    assert load_file(tmp_path / "models" / "frozen.safetensors").keys() == names
    losses = [v for r in (1, 3) for v in result.history.values("personal_loss", round=r).values()]
    assert len(set(losses)) > 1, "the rest is trained"


def test_bytes_are_those_of_what_is_trained(fed):
    settings = {**SETTINGS, "rounds": 1, "participation": 1.0}
    head = fedkin.run("fedavg", fed, model=bare, **settings)
    count = 4 * (12 * 10 + 10)
    assert head.summary["bytes_up"] == head.summary["bytes_down"] == count * len(fed)


def test_a_loaded_run_has_the_frozen_parameters_of_the_module_it_was_given(fed, tmp_path):
    """Also where the module was an object, with weights that no seed makes."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 10))
    module[1].requires_grad_(False)
    with torch.no_grad():
        module[1].weight.normal_(generator=torch.Generator().manual_seed(9))
    result = fedkin.run("fedavg", fed, model=module, out=tmp_path, **SETTINGS)
    x = fed.test(0).x
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 10))
    other[1].requires_grad_(False)
    again = fedkin.load(tmp_path, model=other)
    assert torch.equal(again.predict_scores(0, x), result.predict_scores(0, x))
    joined = again.join("new", x, fed.test(0).y)
    kept = fedkin.load(again.keep(joined, tmp_path / "new"), model=other)
    assert torch.equal(kept.predict_scores("new", x), joined.model(x).detach())


@dataclass(frozen=True)
class Overwrites(type(method("fedavg"))):
    """Changes frozen parameters in the worker's network."""

    def local(self, client, message):
        reply = super().local(client, message)
        for parameter in client.net.module.parameters():
            parameter.data += 1.0
        return reply


def test_the_next_client_finds_frozen_parameters_as_they_were(fed):
    result = fedkin.run(Overwrites(), fed, model=bare, **SETTINGS)
    plain = fedkin.run("fedavg", fed, model=bare, **SETTINGS)
    assert torch.equal(result.state["model"], plain.state["model"])


def test_a_network_keeps_frozen_parameters_out_of_its_vector():
    module = build(lambda: partly((8, 8, 1), 10), 0)
    net = Network(module, torch.zeros(1, 8, 8, 1))
    layout = net.layout
    assert layout.frozen == ("1.weight", "1.bias", "3.bias")
    assert layout.size == layout.parameters == 12 * 9 + 9 * 10 + 10
    assert [layer.name for layer in layout.layers] == ["3", "5"]
    assert len(net.parameters) == 3
    assert len(layout.positions(("1",))) == 0
    before = module[1].weight.detach().clone()
    net.load(torch.randn(layout.size))
    assert torch.equal(module[1].weight, before)
    assert not torch.equal(module[5].weight, net.initial[12 * 9 : 12 * 9 + 90].view(10, 9))


def test_networks_share_the_memory_of_frozen_parameters():
    def make():
        module = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 10))
        module[1].requires_grad_(False)
        return module

    first = Network(build(make, 0), torch.zeros(1, 8, 8, 1))
    second = Network(build(make, 1), torch.zeros(1, 8, 8, 1), frozen=first.frozen_parameters)
    assert second.module[1].weight.data_ptr() == first.module[1].weight.data_ptr()
    assert second.module[3].weight.data_ptr() != first.module[3].weight.data_ptr()
