"""What the baselines' tests share: a small federation, a client at hand, gradients by autograd alone."""

from __future__ import annotations

import functools
from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional as F

import fedkin
from fedkin.engine.runner import client_seed
from fedkin.models.build import maker
from fedkin.models.network import Network, build
from fedkin.protocol import Client, Message, Training

LR, EPOCHS, BATCH, SEED = 0.1, 2, 8, 5
SETTINGS = {"rounds": 3, "lr": LR, "epochs": EPOCHS, "batch_size": BATCH, "seed": SEED, "engine": "serial"}


@functools.cache
def federation():
    """Six clients of unlike sizes and labels."""
    fed = fedkin.federate(
        "digits", partition="dirichlet", clients=6, alpha=0.5, minimum=15, samples_per_client=50, seed=3
    )
    splits = tuple(replace(split, train=split.train[: 35 - 4 * i]) for i, split in enumerate(fed.splits))
    return replace(fed, splits=splits)


def run(method, **changes):
    fed = changes.pop("fed", None) or federation()
    options = {**SETTINGS, "model": "mlp", "model_options": {"width": 0.25}}
    return fedkin.run(method, fed, **{**options, **changes})


def network(fed=None):
    fed = fed or federation()
    return Network(maker("mlp", fed.shape, fed.classes, SEED, {"width": 0.25})(0), fed.example)


def smooth():
    """A network without kinks: its gradient has a derivative everywhere."""
    module = build(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Tanh(), nn.Linear(6, 10)), SEED)
    return Network(module, federation().example)


def a_client(number=0, *, round=1, state=None, net=None, fed=None, lr=LR, epochs=EPOCHS, batch_size=BATCH, **more):
    fed = fed or federation()
    training = Training(lr, epochs, batch_size, **more)
    return Client(state or {}, fed.data(number), client_seed(SEED, round, number), net or network(fed), training)


def gradient(net, row, x, y, loss=None):
    """By autograd through the module itself: nothing of the package's own arithmetic."""
    net.load(row)
    net.train()
    value = loss(net, x, y) if loss else F.cross_entropy(net.module(x), y)
    slopes = torch.autograd.grad(value, list(net.module.parameters()), allow_unused=True)
    parameters = net.module.parameters()
    return torch.cat([(torch.zeros_like(p) if g is None else g).reshape(-1) for g, p in zip(slopes, parameters)])


def sizes(fed=None):
    return (fed or federation()).sizes.double()


def losses(result, round=3):
    return result.history.values("personal_loss", round=round)


def survives(method, tmp_path):
    """Lost replies and partial participation; a stop in between changes no bit; rows of mixing sum to 1."""
    from fedkin.results.store import equal

    settings = {"rounds": 4, "participation": 0.5, "lost": 0.4, "evaluate_every": 2}
    straight = run(method, **settings)
    assert all(record.value == "lost on the way" for record in straight.history.select("dropped"))
    run(method, **{**settings, "rounds": 2}, out=tmp_path, checkpoint_every=1)
    resumed = run(method, **settings, out=tmp_path, checkpoint_every=1)
    assert equal(straight.state, resumed.state)
    assert losses(straight, 4) == losses(resumed, 4)
    mixing = method.mixing(straight.state)
    for matrix in mixing.values() if isinstance(mixing, dict) else [mixing]:
        assert torch.allclose(matrix.sum(1), torch.ones(6), atol=1e-5)
    moved = run(method, rounds=4, arrive={5: 3}, leave={0: 4})
    assert set(losses(moved, 4)) == {1, 2, 3, 4, 5}


def isolated(method):
    """Another client's rows move nothing that stays at this one in round 1: only the shared part may carry them."""
    fed = federation()
    arrays = fed.arrays
    x = arrays.x.copy()
    x[fed.splits[2].train] = 7
    other = fedkin.Federation(
        fedkin.Arrays(x, arrays.y, 10, image=True, mean=arrays.mean, std=arrays.std), fed.partition, fed.splits
    )
    a, b = (run(method, fed=f, rounds=1, evaluate_every=0) for f in (fed, other))
    one, two = ({r.client: r.value for r in h.history.select("personal_loss", scope="participants")} for h in (a, b))
    assert {c for c in one if one[c] != two[c]} <= {2}


def message(row, *own):
    return Message(shared=(row,), own=own)
