"""What the tests of methods with features share: the small network taken apart, and one plain gradient step."""

from __future__ import annotations

import torch
from plain_baselines import LR, SEED, a_client, federation
from torch import nn
from torch.nn import functional as F

from fedkin.models.network import Network, build

BODY, HEAD = slice(0, 64 * 16 + 16), slice(64 * 16 + 16, None)
COUNT = 10 * 16 + 10


def feature(module, x):
    return torch.relu(module.fc1(x.flatten(1)))


def descend(value, tensors, lr=LR):
    """One step of gradient descent on these tensors, in place."""
    slopes = torch.autograd.grad(value, tensors)
    with torch.no_grad():
        for tensor, slope in zip(tensors, slopes):
            tensor -= lr * slope


def linear(head):
    return head[:160].view(10, 16), head[160:]


def loaded(net, row):
    net.load(row)
    net.train()
    return net.module


def loss_on_test(i, scores):
    """Cross entropy of a function of (module inputs) on a client's test examples."""
    x, y = federation().test(i)
    with torch.no_grad():
        return float(F.cross_entropy(scores(x), y))


def mean_of(values, weights):
    weights = [float(w) for w in weights]
    return sum(w * v for w, v in zip(weights, values)) / sum(weights)


def frozen_network():
    """The first layer is frozen: no method may move it."""

    def make():
        module = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 10)
        )
        for parameter in module[1].parameters():
            parameter.requires_grad_(False)
        return module

    return Network(build(make, SEED), federation().example)


def keeps_frozen(method, send):
    """Two rounds at a client with a frozen layer leave that layer as it was; the rest moves."""
    net = frozen_network()
    before = net.layout.tensors(net.initial)
    client = a_client(0, net=net)
    for _ in range(2):
        reply = method.local(client, send(net))
        after = net.layout.tensors(net.vector())
        for name in ("1.weight", "1.bias"):
            if name in after:
                assert torch.equal(after[name], before[name])
        client = client._replace(state=reply.state)
    assert any(not torch.equal(after[name], before[name]) for name in after)
