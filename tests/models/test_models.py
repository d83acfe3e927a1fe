"""The networks of the papers, against /spec/models: layers, numbers, and what they compute."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedkin
from fedkin.client.training import sgd
from fedkin.data import DEFAULT_MODEL
from fedkin.models import MODELS
from fedkin.models.build import check_outputs, maker, resolve
from fedkin.models.cnn import Convolutional
from fedkin.models.mlp import Dense
from fedkin.models.network import Network, build
from fedkin.models.resnet import Block


def conv(kernel: int, inputs: int, outputs: int) -> int:
    return kernel * kernel * inputs * outputs + outputs


def conv1d(kernel: int, inputs: int, outputs: int) -> int:
    return kernel * inputs * outputs + outputs


def fc(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


# name, shape, classes, parameters of each layer, by hand from the table of the papers' networks
EXPECTED = [
    ("logistic", (13,), 2, {"fc1": fc(13, 2)}),
    ("mlp_small", (13,), 2, {"fc1": fc(13, 16), "fc2": fc(16, 2)}),
    ("mlp", (1, 8, 8), 10, {"fc1": fc(64, 64), "fc2": fc(64, 10)}),
    ("mlp", (32,), 4, {"fc1": fc(32, 64), "fc2": fc(64, 4)}),
    ("fcnn1", (1, 28, 28), 10, {"fc1": fc(784, 200), "fc2": fc(200, 10)}),
    ("fcnn2", (1, 28, 28), 10, {"fc1": fc(784, 200), "fc2": fc(200, 100), "fc3": fc(100, 10)}),
    (
        "cnn2",
        (1, 28, 28),
        10,
        {"conv1": conv(5, 1, 16), "conv2": conv(5, 16, 32), "fc1": fc(32 * 7 * 7, 128), "fc2": fc(128, 10)},
    ),
    (
        "cnn3",
        (1, 28, 28),
        10,
        {
            "conv1": conv(3, 1, 32),
            "conv2": conv(3, 32, 64),
            "conv3": conv(3, 64, 64),
            "fc1": fc(64 * 3 * 3, 128),
            "fc2": fc(128, 10),
        },
    ),
    (
        "cnn3",
        (3, 32, 32),
        10,
        {
            "conv1": conv(3, 3, 32),
            "conv2": conv(3, 32, 64),
            "conv3": conv(3, 64, 64),
            "fc1": fc(64 * 4 * 4, 128),
            "fc2": fc(128, 10),
        },
    ),
    (
        "cnn3fc3",
        (3, 32, 32),
        100,
        {
            "conv1": conv(3, 3, 32),
            "conv2": conv(3, 32, 64),
            "conv3": conv(3, 64, 64),
            "fc1": fc(64 * 4 * 4, 128),
            "fc2": fc(128, 64),
            "fc3": fc(64, 100),
        },
    ),
    (
        "cnn6",
        (3, 32, 32),
        10,
        {
            "conv1": conv(3, 3, 32),
            "conv2": conv(3, 32, 32),
            "conv3": conv(3, 32, 64),
            "conv4": conv(3, 64, 64),
            "conv5": conv(3, 64, 128),
            "conv6": conv(3, 128, 128),
            "fc1": fc(128 * 4 * 4, 256),
            "fc2": fc(256, 10),
        },
    ),
    *(  # 28x28 is padded to 32x32, so that both have the same numbers after the first layer
        (
            "lenet",
            (channels, side, side),
            10,
            {
                "conv1": conv(5, channels, 6),
                "conv2": conv(5, 6, 16),
                "fc1": fc(16 * 5 * 5, 120),
                "fc2": fc(120, 84),
                "fc3": fc(84, 10),
            },
        )
        for channels, side in ((1, 28), (3, 32))
    ),
    (
        "har",
        (9, 128),
        6,
        {"conv1": conv1d(5, 9, 32), "conv2": conv1d(5, 32, 64), "fc1": fc(64 * 29, 128), "fc2": fc(128, 6)},
    ),
]


# networks with batch norm: name, shape, options, parameters, float buffers
NORMALIZED = [
    (
        "cnn_bn",
        (1, 28, 28),
        {},
        9 * (1 * 32 + 32 * 64 + 64 * 64) + 2 * (32 + 64 + 64) + fc(64 * 3 * 3, 128) + fc(128, 10),
        2 * (32 + 64 + 64),
    ),
    (
        "resnet",
        (3, 32, 32),
        {},
        9 * (3 * 16 + 16 * 16 * 2 + 16 * 32 + 32 * 32 + 32 * 64 + 64 * 64)
        + (16 * 32 + 32 * 64)
        + 2 * (16 * 3 + 32 * 3 + 64 * 3)
        + fc(64, 10),
        2 * (16 * 3 + 32 * 3 + 64 * 3),
    ),
    ("resnet", (3, 32, 32), {"depth": 18}, 11_173_962, 9_600),  # as everybody counts it
]


def made(name: str, shape: tuple[int, ...], classes: int, **options: float) -> Network:
    return Network(maker(name, shape, classes, 0, options)(0), torch.randn(1, *shape))


@pytest.mark.parametrize(("name", "shape", "classes", "layers"), EXPECTED, ids=lambda v: str(v)[:12])
def test_layers_and_parameters(name, shape, classes, layers):
    net = made(name, shape, classes)
    assert {layer.name: len(layer.parameters) for layer in net.layout.layers} == layers
    assert list(layers) == [layer.name for layer in net.layout.layers], "in order"
    assert net.layout.parameters == net.layout.size == sum(layers.values())
    assert net.layout.layers[net.layout.head_layer].name == list(layers)[-1]
    assert net(torch.randn(5, *shape)).shape == (5, classes)


def test_every_model_is_expected():
    assert {name for name, *_ in (*EXPECTED, *NORMALIZED)} == MODELS.keys()


@pytest.mark.parametrize(("name", "shape", "options", "parameters", "buffers"), NORMALIZED)
def test_networks_with_batch_norm(name, shape, options, parameters, buffers):
    net = made(name, shape, 10, **options)
    assert net.layout.parameters == parameters
    assert net.layout.size == parameters + buffers
    assert net.needs_pairs
    assert net.layout.layers[net.layout.head_layer].name == net.layout.layers[-1].name
    x = torch.randn(6, *shape)
    net.train()
    before = net.vector()
    assert net(x).shape == (6, 10)
    assert not torch.equal(net.vector(), before), "running means move"
    net.eval()
    torch.testing.assert_close(net(x)[:2], net(x[:2]), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["cnn_bn", "resnet"])
def test_networks_with_batch_norm_learn(name):
    torch.manual_seed(0)
    x, y = torch.randn(32, 3, 16, 16), torch.arange(32) % 4
    x[:, 0] += y.float()[:, None, None]
    net = made(name, (3, 16, 16), 4, width=0.5)
    net.train()
    losses = []
    for _ in range(25):
        slopes = net.gradients(x, y, None, net.parameters)
        losses.append(F.cross_entropy(net(x), y).item())
        for parameter, slope in zip(net.parameters, slopes):
            parameter.data.sub_(0.1 * slope)
    assert losses[-1] < 0.3 * losses[0]


def test_a_residual_block_by_hand():
    torch.manual_seed(0)
    block = Block(4, 8, 2)
    x = torch.randn(3, 4, 8, 8)
    inner = F.conv2d(x, block.conv1.weight, stride=2, padding=1)
    inner = F.relu(F.batch_norm(inner, None, None, training=True))
    outer = F.batch_norm(F.conv2d(inner, block.conv2.weight, padding=1), None, None, training=True)
    side = F.batch_norm(F.conv2d(x, block.shortcut[0].weight, stride=2), None, None, training=True)
    torch.testing.assert_close(block(x), F.relu(outer + side), atol=1e-5, rtol=1e-5)
    same = Block(4, 4, 1)
    assert isinstance(same.shortcut, nn.Identity)
    assert same(x).shape == x.shape


def test_networks_with_batch_norm_refuse():
    with pytest.raises(ValueError, match="depth=9 must be one of 8, 14, 20, 18"):
        made("resnet", (3, 32, 32), 10, depth=9)
    for name in ("resnet", "cnn_bn"):
        with pytest.raises(ValueError, match=rf"{name} needs images \[channels, height, width\]"):
            made(name, (32,), 10)
    with pytest.raises(ValueError, match="at least 8x8"):
        made("cnn_bn", (1, 7, 28), 10)


@pytest.mark.parametrize(("name", "shape", "classes"), {e[0]: e[:3] for e in EXPECTED if e[0] != "logistic"}.values())
def test_width(name, shape, classes):
    half, full = made(name, shape, classes, width=0.5), made(name, shape, classes)
    first = half.layout.pieces[0].shape[0], full.layout.pieces[0].shape[0]
    assert first[0] * 2 == first[1]
    assert half(torch.randn(2, *shape)).shape == (2, classes)
    assert made(name, shape, classes, width=1e-9).layout.pieces[0].shape[0] == 1
    with pytest.raises(ValueError, match="width=0 multiplies the units of each layer"):
        made(name, shape, classes, width=0)


@pytest.mark.parametrize("name", ["cnn2", "cnn3", "cnn3fc3", "cnn6", "lenet"])
@pytest.mark.parametrize("shape", [(32,), (9, 128)])
def test_convolutions_need_images(name, shape):
    with pytest.raises(ValueError, match=r"needs images \[channels, height, width\]; .*Use --model mlp, or har"):
        made(name, shape, 10)


@pytest.mark.parametrize(("name", "side"), [("cnn2", 3), ("cnn3", 7), ("cnn3fc3", 7), ("cnn6", 7), ("lenet", 8)])
def test_images_that_are_too_small(name, side):
    with pytest.raises(ValueError, match=f"Images of {side}x{side} are too small for this network: use --model mlp"):
        made(name, (1, side, side), 10)


@pytest.mark.parametrize("shape", [(1, 28, 28), (32,), (9, 15)])
def test_har_needs_windows(shape):
    with pytest.raises(ValueError, match=r"har needs windows \[channels, time of at least 16\]"):
        made("har", shape, 6)
    assert made("har", (9, 16), 6) is not None


# ---- what they compute


@pytest.mark.parametrize("hidden", [(), (5,), (7, 5), (6, 5, 4)])
@pytest.mark.parametrize("examples", [1, 9])
def test_dense_gradients_equal_autograd(hidden, examples):
    net = build(lambda: Dense((2, 3), hidden, 4), 0)
    x, y = torch.randn(examples, 2, 3), torch.randint(0, 4, (examples,))
    expected = torch.autograd.grad(F.cross_entropy(net(x), y), list(net.parameters()))
    found = net.gradients(x, y)
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


def test_dense_gradients_of_one_function_for_batches_of_all_sizes(monkeypatch):
    """Memory is shared between batch sizes, grows, and the weights move on."""
    monkeypatch.setattr("fedkin.models.mlp.MOST_PLANS", 3)
    net = build(lambda: Dense((2, 3), (7, 5), 4), 0)
    slopes = net.gradient_function([torch.empty_like(p) for p in net.parameters()])
    for examples in (3, 1, 3, 9, 3, 2, 4, 5, 9, 12, 3):
        x, y = torch.randn(examples, 2, 3), torch.randint(0, 4, (examples,))
        expected = torch.autograd.grad(F.cross_entropy(net(x), y), list(net.parameters()))
        for a, b in zip(slopes(x, y), expected):
            torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)
        for parameter, slope in zip(net.parameters(), expected):
            parameter.data.sub_(slope)


CONVOLUTIONAL = ["cnn2", "cnn3", "cnn3fc3", "cnn6", "lenet"]


@pytest.mark.parametrize("name", CONVOLUTIONAL)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (2, 29, 27)])
@pytest.mark.parametrize("channels_last", [True, False])
def test_convolutional_gradients_equal_autograd(name, shape, channels_last):
    """One function for batches of several sizes, while the weights move on."""
    net = maker(name, shape, 4, 0, {})(0)
    slopes = net.gradient_function([torch.full_like(p, torch.nan) for p in net.parameters()])
    for examples in (5, 1, 7):
        x, y = torch.randn(examples, *shape), torch.randint(0, 4, (examples,))
        if channels_last:
            x = x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
        expected = torch.autograd.grad(F.cross_entropy(net(x), y), list(net.parameters()))
        for (parameter, _), a, b in zip(net.named_parameters(), slopes(x, y), expected, strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4, msg=lambda text: f"{parameter}: {text}")  # noqa: B023
        for parameter, slope in zip(net.parameters(), expected):
            parameter.data.sub_(0.1 * slope)


@pytest.mark.parametrize("name", ["cnn2", "cnn3", "cnn6"])
def test_training_of_a_convolutional_network_equals_that_by_autograd(name, make_client):
    """The closed form is what training takes, and it leads to the same model."""
    client = make_client(module=maker(name, (1, 8, 8), 10, 0, {})(0), lr=0.05)
    net, start = client.net, client.net.initial
    assert net.is_closed(None, net.parameters)
    found = sgd(client, start)
    by_autograd = sgd(client, start, loss=lambda n, x, y: F.cross_entropy(n(x), y))
    assert not torch.equal(found, start)
    torch.testing.assert_close(found, by_autograd, atol=1e-5, rtol=1e-4)


def textbook(net: Convolutional, x: Tensor) -> Tensor:
    """Convolution, ReLU, then the pool; nothing in place."""
    layers = dict(net.named_children())
    x = F.pad(x, (net.border,) * 4)
    index = 0
    for out in net.plan:
        if out:
            index += 1
            x = F.relu(layers[f"conv{index}"](x))
        else:
            x = F.max_pool2d(x, 2)
    x = x.flatten(1)
    dense = [layer for name, layer in layers.items() if name.startswith("fc")]
    for layer in dense[:-1]:
        x = F.relu(layer(x))
    return dense[-1](x)


PLANS: dict[str, Callable[[], nn.Module]] = {
    **{
        name: (lambda name=name, shape=shape, classes=classes: maker(name, shape, classes, 0, {"width": 0.5})(0))
        for name, shape, classes, _ in EXPECTED
        if name[:3] in ("cnn", "len")
    },
    "lenet with a border": lambda: maker("lenet", (1, 28, 28), 10, 0, {})(0),
    "ends without a pool": lambda: build(
        lambda: Convolutional((1, 8, 8), 3, convolutions=(4, 0, 6), kernel=3, padding=1, hidden=(5,), width=1), 0
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_relu_after_the_pool_is_the_textbook_order(name):
    net = PLANS[name]()
    gray = {"ends without a pool": (1, 8, 8), "cnn2": (1, 28, 28), "lenet with a border": (1, 28, 28)}
    shape = gray.get(name, (3, 32, 32))
    torch.manual_seed(0)
    x, y = torch.randn(4, *shape), torch.tensor([0, 1, 2, 0])
    x[0] = 0  # ties in every window
    here, there = net(x), textbook(net, x)
    torch.testing.assert_close(here, there, atol=1e-6, rtol=1e-5)
    slopes = (torch.autograd.grad(F.cross_entropy(out, y), list(net.parameters())) for out in (here, there))
    for a, b in zip(*slopes):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)


# ---- from a name, a function or a module


def flat(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def test_the_same_seed_gives_the_same_network_and_leaves_the_random_state_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, same, other, second = (maker("mlp", (4,), 2, s, {})(k) for s, k in ((1, 0), (1, 0), (2, 0), (1, 1)))
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(flat(one), flat(same))
    assert not torch.equal(flat(one), flat(other))
    assert not torch.equal(flat(one), flat(second))


def test_a_module_of_the_users_keeps_its_weights_and_restarts_with_new_ones():
    own = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    make = maker(own, (4,), 2, 0, {})
    assert torch.equal(flat(make(0)), flat(own))
    assert make(0) is not own
    assert not torch.equal(flat(make(1)), flat(own))
    assert torch.equal(flat(make(1)), flat(make(1)))


def test_a_function_may_take_the_shape_or_nothing():
    assert flat(maker(lambda shape, classes: nn.Linear(shape[0], classes), (4,), 2, 0, {})(0)).shape == (10,)
    assert flat(maker(lambda: nn.Linear(3, 3), (4,), 2, 0, {})(0)).shape == (12,)
    assert flat(maker(lambda bias: nn.Linear(3, 3, bias=bias), (4,), 2, 0, {"bias": False})(0)).shape == (9,)


def test_a_network_from_a_file(tmp_path):
    path = tmp_path / "torch.py"  # whatever the file is called, it must not stand in for another module
    path.write_text(
        "from dataclasses import dataclass\nfrom torch import nn\n"
        "@dataclass\nclass Size:\n    n: int = 3\n"
        "def small(shape, classes):\n    return nn.Linear(Size().n, classes)\n"
    )
    assert flat(maker(f"{path}:small", (4,), 2, 0, {})(0)).shape == (8,)
    assert sys.modules["torch"] is torch


@pytest.mark.parametrize(
    ("source", "error", "text"),
    [
        ("cnn33", ValueError, "no model 'cnn33'. Did you mean cnn3"),
        ("mlp", ValueError, r"must take \(shape, classes\) or nothing, and the options depth"),
        ("nowhere.py:net", ValueError, r"There is no file nowhere\.py"),
        ("fedkin.models.mlp:perceptron", ValueError, "has no 'perceptron'. It has .*Dense"),
    ],
)
def test_refusals(source, error, text):
    with pytest.raises(error, match=text):
        maker(source, (4,), 2, 0, {"depth": 3})(0)


def test_a_function_that_makes_no_module():
    with pytest.raises(TypeError, match=r"returned a int; it must return an nn\.Module"):
        maker(lambda: 3, (4,), 2, 0, {})(0)


# ---- before round 1


def test_the_number_of_outputs_is_checked():
    x = torch.randn(1, 4)
    check_outputs(nn.Linear(4, 3), x, 3)
    check_outputs(nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), x, 1)
    with pytest.raises(ValueError, match=r"Linear must give \[examples, 3\].*it gives \[1, 5\]\. Change .* to 3"):
        check_outputs(nn.Linear(4, 5), x, 3)
    with pytest.raises(ValueError, match=r"cannot take an example of shape \[4\] and dtype torch\.float32"):
        check_outputs(nn.Linear(5, 3), x, 3)
    with pytest.raises(ValueError, match=r"must return one tensor \[examples, 3\] from `forward`; it returned a tuple"):
        check_outputs(nn.LSTM(4, 3), x, 3)


def test_checking_leaves_the_network_alone():
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    net[0].eval()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    check_outputs(net, torch.randn(1, 4), 3)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert net.training


def test_a_run_with_the_wrong_number_of_outputs_stops_before_round_1(digits, tmp_path):
    with pytest.raises(ValueError, match=r"must give \[examples, 10\]"):
        fedkin.run("fedavg", digits, model=nn.Sequential(nn.Flatten(), nn.Linear(64, 9)), rounds=1, out=tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_tokens_reach_the_users_embedding():
    rng = np.random.default_rng(0)
    fed = fedkin.federate(
        fedkin.from_arrays(rng.integers(0, 9, (80, 5)), np.arange(80) % 2), partition="iid", clients=2
    )
    net = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, 2))
    assert fedkin.run("fedavg", fed, model=net, rounds=1).summary["clients"] == 2
    assert fedkin.run("fedavg", fed, model="mlp", rounds=1).summary["clients"] == 2


def test_auto():
    assert {data: resolve("auto", data) for data in DEFAULT_MODEL} == DEFAULT_MODEL
    assert resolve("auto", "own") == "mlp"
    assert resolve("lenet", "cifar10") == "lenet"
