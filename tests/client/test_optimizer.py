"""Optimizers, schedules, clipping, augmentation and early stopping against torch's own."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedkin
from fedkin.client.augment import PADDING, augmented
from fedkin.client.evaluate import evaluate
from fedkin.client.optimizer import optimizer
from fedkin.client.steps import descent, without_extras
from fedkin.client.training import batches, sgd
from fedkin.methods import METHODS, method
from fedkin.protocol import Examples, Training

TORCH = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


@pytest.mark.parametrize("clip", [0.0, 0.7])
@pytest.mark.parametrize("decay", [0.0, 0.05])
@pytest.mark.parametrize(("name", "momentum"), [("sgd", 0.0), ("sgd", 0.9), ("adam", 0.0), ("adamw", 0.0)])
def test_steps_are_those_of_torch_optim(name, momentum, decay, clip):
    """The same gradients, twelve steps, equal to the bit."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(5, 3), (5,), (2, 5)]
    start = [torch.randn(shape, generator=generator) for shape in shapes]
    theirs = [nn.Parameter(value.clone()) for value in start]
    ours = [value.clone() for value in start]
    extra = {"momentum": momentum} if momentum else {}
    torch_optimizer = TORCH[name](theirs, lr=0.03, weight_decay=decay, **extra)
    step = optimizer(Training(lr=0.03, optimizer=name, momentum=momentum, weight_decay=decay, clip=clip))
    for _ in range(12):
        gradient = [torch.randn(shape, generator=generator) for shape in shapes]
        for parameter, value in zip(theirs, gradient):
            parameter.grad = value.clone()
        if clip:
            nn.utils.clip_grad_norm_(theirs, clip)
        torch_optimizer.step()
        given = [value.clone() for value in gradient]
        step(ours, given)
        assert all(torch.equal(a, b) for a, b in zip(given, gradient)), "the gradient is not written to"
    for a, b, before in zip(ours, theirs, start):
        assert torch.equal(a, b.detach())
        assert not torch.equal(a, before)


@pytest.mark.parametrize("name", TORCH)
def test_training_is_the_plain_loop(make_client, name):
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 10))
    client = make_client(module=module, epochs=2, optimizer=name, lr=0.01, clip=1.0, weight_decay=0.01)
    start = client.net.initial.clone()
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 10))
    plain.load_state_dict(client.net.layout.tensors(start))
    loop = TORCH[name](plain.parameters(), lr=0.01, weight_decay=0.01)
    for epoch in range(2):
        for x, y in batches(client, epoch=epoch):
            loop.zero_grad()
            F.cross_entropy(plain(x), y).backward()
            nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
            loop.step()
    expected = torch.cat([p.detach().flatten() for p in plain.parameters()])
    found = sgd(client, start)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    assert not torch.equal(found, sgd(without_extras(client), start))


def test_clipping_binds_and_does_not(make_client):
    client = make_client(epochs=1)
    start = client.net.initial
    free = sgd(client, start)
    wide, narrow = (make_client(epochs=1, clip=clip) for clip in (1e6, 0.1))
    assert torch.equal(sgd(wide, start), free)
    assert (sgd(narrow, start) - start).norm() < 0.5 * (free - start).norm()
    step, values = descent(narrow), [start.clone()]
    step(values, [torch.full_like(start, 3.0)])
    assert float((values[0] - start).norm()) == pytest.approx(narrow.training.lr * 0.1, rel=1e-4)


def torch_rates(make, rounds):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.4)
    schedule = make(optimizer)
    found = []
    for _ in range(rounds):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def warmed(optimizer, warmup, then):
    from torch.optim.lr_scheduler import LinearLR, SequentialLR

    first = LinearLR(optimizer, start_factor=1 / (warmup + 1), total_iters=warmup)
    return SequentialLR(optimizer, [first, then(optimizer)], milestones=[warmup])


def test_schedules_are_those_of_torch():
    from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, StepLR

    cases = [
        (Training(lr=0.4), lambda o: LambdaLR(o, lambda t: 1.0)),
        (Training(lr=0.4, schedule="step", decay_rounds=4, decay_factor=0.5), lambda o: StepLR(o, 4, 0.5)),
        (Training(lr=0.4, schedule="cosine"), lambda o: CosineAnnealingLR(o, 12)),
        (Training(lr=0.4, schedule="cosine", warmup=3), lambda o: warmed(o, 3, lambda o: CosineAnnealingLR(o, 9))),
        (
            Training(lr=0.4, schedule="step", decay_rounds=2, decay_factor=0.5, warmup=3),
            lambda o: warmed(o, 3, lambda o: StepLR(o, 2, 0.5)),
        ),
    ]
    for training, make in cases:
        settled = training.settled(12)
        found = [settled.at(round).lr for round in range(1, 13)]
        np.testing.assert_allclose(found, torch_rates(make, 12), rtol=1e-6)
        assert settled.at(13).lr > 0, "an evaluation after the last round trains too"


def test_a_schedule_acts_in_a_run_and_a_resumed_run_gives_the_same(digits, tmp_path):
    settings = {"engine": "serial", "evaluate_every": 1, "lr": 0.2, "checkpoint_every": 1}
    plain = fedkin.run("fedavg", digits, rounds=4, **settings)
    cosine = fedkin.run("fedavg", digits, rounds=4, schedule="cosine", **settings)
    first = {"schedule": "cosine", "decay_rounds": 4, "out": tmp_path}
    fedkin.run("fedavg", digits, rounds=2, **first, **settings)
    resumed = fedkin.run("fedavg", digits, rounds=4, **first, **settings)
    assert torch.equal(resumed.state["model"], cosine.state["model"])
    assert not torch.equal(plain.state["model"], cosine.state["model"])
    assert cosine.config["training"]["decay_rounds"] == 4
    one = [fedkin.run("fedavg", digits, rounds=1, **settings, **more) for more in ({}, {"schedule": "cosine"})]
    assert torch.equal(one[0].state["model"], one[1].state["model"]), "the first round has the full rate"


def test_a_run_from_before_these_settings_goes_on(digits, tmp_path):
    settings = {"engine": "serial", "evaluate_every": 0, "checkpoint_every": 1, "out": tmp_path}
    fedkin.run("fedavg", digits, rounds=1, **settings)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    old = ("lr", "epochs", "batch_size", "momentum", "weight_decay")
    config["training"] = {k: v for k, v in config["training"].items() if k in old}
    path.write_text(json.dumps(config))
    fedkin.run("fedavg", digits, rounds=2, **settings)
    config["training"] = {k: v for k, v in config["training"].items() if k in old}
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"training\.optimizer"):
        fedkin.run("fedavg", digits, rounds=3, optimizer="adam", **settings)


def test_crops_and_flips():
    images = torch.arange(2 * 3 * 6 * 5.0).reshape(2, 3, 6, 5) + 1
    flipped = [augmented(images, "flip", torch.Generator().manual_seed(seed)) for seed in range(6)]
    for image in range(2):
        kinds = {("same", "turned")[not torch.equal(f[image], images[image])] for f in flipped}
        assert kinds == {"same", "turned"}
        for f in flipped:
            assert any(torch.equal(f[image], v) for v in (images[image], images[image].flip(2)))
    padded = F.pad(images, (PADDING,) * 4)
    shifts = set()
    for seed in range(20):
        found = augmented(images, "crop", torch.Generator().manual_seed(seed))
        for image in range(2):
            hits = [
                (i, j)
                for i in range(2 * PADDING + 1)
                for j in range(2 * PADDING + 1)
                if torch.equal(found[image], padded[image, :, i : i + 6, j : j + 5])
            ]
            assert hits
            shifts.add(hits[0])
    assert len(shifts) > 10
    both = augmented(images, "crop+flip", torch.Generator().manual_seed(1))
    assert both.shape == images.shape
    assert not torch.equal(both, images)


def test_augmented_batches_follow_from_the_seed(make_client):
    client = make_client(augment="crop+flip")
    once, again, other = (list(batches(client, epoch=e)) for e in (0, 0, 1))
    plain = list(batches(make_client(), epoch=0))
    assert all(torch.equal(a.x, b.x) and torch.equal(a.y, b.y) for a, b in zip(once, again))
    assert not any(torch.equal(a.x, b.x) for a, b in zip(once, other))
    assert not any(torch.equal(a.x, b.x) for a, b in zip(once, plain))
    assert all(torch.equal(a.y, b.y) for a, b in zip(once, plain)), "the same order of examples"


def test_early_stopping_takes_the_epoch_with_the_lowest_validation_loss(make_client):
    client = make_client(epochs=12, lr=0.8, stop_after=2)
    start, held = client.net.initial, client.data.validation
    assert len(held.y)
    losses, models = [], []
    vector = start
    for epoch in range(12):  # plain SGD has no memory: epoch by epoch is the same as all at once
        vector = sgd(make_client(epochs=1, lr=0.8), vector, first_epoch=epoch)
        models.append(vector)
        losses.append(evaluate(client.net, vector, held)[1])
    best, waited = 0, 0
    for epoch in range(1, 12):
        if losses[epoch] < losses[best]:
            best, waited = epoch, 0
        else:
            waited += 1
            if waited == 2:
                break
    assert best < 9, "the test needs a loss that rises again"
    found = sgd(client, start)
    assert torch.equal(found, models[best])
    assert torch.equal(client.net.vector(), found)
    assert not torch.equal(found, sgd(make_client(epochs=12, lr=0.8), start))


def test_early_stopping_without_validation_examples_trains_to_the_end(make_client):
    client = make_client(epochs=2, stop_after=1)
    none = Examples(client.data.x[:0], client.data.y[:0])
    client.data.validation = none
    assert torch.equal(sgd(client, client.net.initial), sgd(make_client(epochs=2), client.net.initial))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"optimizer": "lion"}, "sgd, adam or adamw"),
        ({"optimizer": "adam", "momentum": 0.9}, "is for sgd"),
        ({"schedule": "step"}, "decay_rounds"),
        ({"schedule": "cosine", "decay_rounds": 3, "warmup": 3}, "above warmup"),
        ({"clip": -1.0}, "clip"),
    ],
)
def test_wrong_settings_are_named(settings, words):
    with pytest.raises(ValueError, match=words):
        Training(**settings)


def test_settings_that_cannot_act_are_refused(digits):
    table = fedkin.federate("synthetic", partition="by_group", clients=4, data_options={"samples": 200})
    with pytest.raises(ValueError, match="is for images"):
        fedkin.run("fedavg", table, rounds=1, augment="flip")
    without = fedkin.federate("digits", partition="iid", clients=3, validation=0.0)
    with pytest.raises(ValueError, match="needs validation examples"):
        fedkin.run("fedavg", without, rounds=1, stop_after=1)
    with pytest.raises(ValueError, match="too short"):
        fedkin.run("fedavg", digits, rounds=2, schedule="cosine", warmup=2)


@pytest.fixture(scope="module")
def few():
    return fedkin.federate("digits", partition="dirichlet", clients=4, samples_per_client=40, alpha=0.5, seed=3)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_works_with_other_optimizers(name, few):
    settings = {"rounds": 2, "epochs": 2, "lr": 0.01, "batch_size": 8, "engine": "serial", "evaluate_every": 0}
    extras = {
        "optimizer": "adamw", "weight_decay": 0.01, "clip": 1.0, "schedule": "cosine", "augment": "crop+flip",
        "stop_after": 1,
    }  # fmt: skip
    result = fedkin.run(method(name), few, model="mlp_small", **settings, **extras)
    assert not list(result.history.select("dropped"))
    said = [r.value for r in result.history.select("warning")]
    assert bool(method(name).needs_sgd) == any("needs plain SGD" in text for text in said)


def test_plain_sgd_gives_no_warning(few):
    result = fedkin.run("scaffold", few, rounds=2, engine="serial", evaluate_every=0)
    assert not list(result.history.select("warning"))
