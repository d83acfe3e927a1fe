"""Parameters that a user froze (`requires_grad=False`) stay as they are, whatever the method does."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedkin
from fedkin.methods import METHODS, method
from fedkin.models.build import maker
from fedkin.models.network import Network, build

SETTINGS = {
    "rounds": 3, "lr": 0.1, "epochs": 1, "batch_size": 8, "participation": 0.7, "momentum": 0.5, "weight_decay": 0.01,
    "engine": "serial", "evaluate_every": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def fed():
    made = fedkin.federate("digits", partition="dirichlet", clients=5, samples_per_client=40, alpha=0.5, seed=3)
    return replace(made, splits=tuple(replace(s, train=s.train[: 24 - i]) for i, s in enumerate(made.splits)))


def partly(shape, classes):
    """A frozen layer, a layer with a frozen bias, and a trained head."""
    module = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, classes)
    )
    module[1].requires_grad_(False)
    module[3].bias.requires_grad_(False)
    return module


def backbone(shape, classes):
    """A body that is frozen as a whole, with batch norm, under a trained head."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, classes))
    module[1].requires_grad_(False)
    module[2].requires_grad_(False)
    return module


def kept(folder, size, names):
    """Of every personal model on disk: its tensors by name, or flat vectors as one array."""
    for file in set(json.loads((folder / "models" / "index.json").read_text()).values()):
        tensors = load_file(folder / "models" / file)
        if names <= tensors.keys():
            yield tensors
        else:
            yield from (
                {"vector": vector}
                for array in tensors.values()
                if array.shape[-1:] == (size,)
                for vector in array.reshape(-1, size)
            )


@pytest.mark.parametrize("make", [partly, backbone])
@pytest.mark.parametrize("name", METHODS)
def test_frozen_parameters_stay_frozen(name, make, fed, tmp_path):
    module = maker(make, fed.shape, fed.classes, 0, {})(0)
    want = {name: value.detach().clone() for name, value in module.named_parameters() if not value.requires_grad}
    if make is backbone and name in ("fedbabu", "pfedhn-pc"):
        with pytest.raises(ValueError, match=r"body .*is frozen"):
            fedkin.run(method(name), fed, model=make, **SETTINGS)
        return
    result = fedkin.run(method(name), fed, model=make, out=tmp_path, **SETTINGS)
    assert not list(result.history.select("dropped"))
    net = Network(module, fed.example)
    start = net.layout.parameters
    flat = net.initial[start : start + net.layout.frozen]
    models = list(kept(tmp_path, net.layout.size, set(want)))
    assert models
    for model in models:
        if "vector" in model:
            assert torch.allclose(model["vector"][start : start + net.layout.frozen], flat, atol=1e-6)
        else:
            for parameter, value in want.items():
                assert torch.allclose(model[parameter], value, atol=1e-6), parameter
    losses = [v for r in (1, 3) for v in result.history.values("personal_loss", round=r).values()]
    assert len(set(losses)) > 1, "the rest is trained"


def test_a_network_keeps_frozen_parameters_whatever_is_loaded():
    module = build(lambda: partly((8, 8, 1), 10), 0)
    net = Network(module, torch.zeros(1, 8, 8, 1))
    layout = net.layout
    assert layout.frozen == 64 * 12 + 12 + 9
    assert layout.parameters == 12 * 9 + 9 * 10 + 10
    assert [layer.name for layer in layout.layers] == ["3", "5"]
    assert len(net.parameters) == 3
    before = module[1].weight.detach().clone()
    net.load(torch.randn(layout.size))
    assert torch.equal(module[1].weight, before)
    assert not torch.equal(module[5].weight, net.initial[12 * 9 : 12 * 9 + 90].view(10, 9))
    other = net.like(build(lambda: partly((8, 8, 1), 10), 1))
    held = slice(layout.parameters, layout.parameters + layout.frozen)
    assert torch.equal(other[held], net.initial[held])
    assert not torch.equal(other[: layout.parameters], net.initial[: layout.parameters])
