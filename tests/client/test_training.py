"""Local training against a plain PyTorch loop over the same batches."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedkin.client.evaluate import EVALUATION_BATCH, evaluate, gradient, scores
from fedkin.client.training import batches, sgd, stream
from fedkin.models.cnn import cnn2
from fedkin.models.mlp import Dense
from fedkin.models.network import Network, build
from fedkin.protocol import Client, Data, Examples, Training


def deep() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 10))


MODULES: dict[str, Callable[[], nn.Module | None]] = {
    "closed form": lambda: None,  # the fixture's mlp, whose gradient is written out
    "autograd": deep,
    "convolutions": lambda: cnn2((1, 8, 8), 10, width=0.25),
}


def plain_sgd(
    client: Client, start: Tensor, regularizer_gradient: Callable[[Tensor], Tensor] | None = None, first_epoch: int = 0
) -> Tensor:
    """torch.optim.SGD over the same batches; the regularizer's gradient is written into .grad."""
    module = copy.deepcopy(client.net.module)
    with torch.no_grad():
        for p, value in zip(module.parameters(), client.net.pieces(start[: client.net.layout.parameters])):
            p.copy_(value)
    t = client.training
    optimizer = torch.optim.SGD(module.parameters(), lr=t.lr, momentum=t.momentum, weight_decay=t.weight_decay)
    module.train()
    for epoch in range(first_epoch, first_epoch + t.epochs):
        for x, y in batches(client, epoch=epoch):
            optimizer.zero_grad()
            F.cross_entropy(module(x), y).backward()
            if regularizer_gradient is not None:
                w = torch.cat([p.detach().flatten() for p in module.parameters()])
                for p, extra in zip(module.parameters(), client.net.pieces(regularizer_gradient(w))):
                    p.grad += extra
            optimizer.step()
    return torch.cat([p.detach().flatten() for p in module.parameters()])


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
@pytest.mark.parametrize("pulled", [False, True])
def test_sgd_is_torch_sgd(make_client, kind, momentum, weight_decay, pulled):
    client = make_client(module=MODULES[kind](), epochs=2, momentum=momentum, weight_decay=weight_decay, lr=0.03)
    start = client.net.initial.clone()
    center = torch.randn(client.net.layout.parameters, generator=torch.Generator().manual_seed(1))
    regularizer_gradient = (lambda w: 0.3 * (w - center)) if pulled else None
    expected = plain_sgd(client, start, regularizer_gradient)
    found = sgd(client, start, regularizer_gradient=regularizer_gradient)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
    assert (found - start).norm() > 0.1
    assert torch.equal(start, client.net.initial), "what came in is not written to"


def tensor_by_tensor(client: Client, start: Tensor, pull: Callable[[Tensor], Tensor]) -> Tensor:
    """The same arithmetic in new memory for every result, and one update for each parameter."""
    weights = [w.clone() for w in client.net.pieces(start)]
    for epoch in range(client.training.epochs):
        for x, y in batches(client, epoch=epoch):
            inputs = [x.flatten(1)]
            for weight, bias in zip(weights[0:-2:2], weights[1:-2:2]):
                inputs.append(F.relu(F.linear(inputs[-1], weight, bias)))
            delta = F.softmax(F.linear(inputs[-1], weights[-2], weights[-1]), 1)
            delta = delta.scatter_add(1, y[:, None], torch.full((len(y), 1), -1.0)) / len(y)
            slopes: list[Tensor] = []
            for i in reversed(range(len(inputs))):
                slopes = [delta.t() @ inputs[i], delta.sum(0), *slopes]
                delta = (delta @ weights[2 * i]) * (inputs[i] > 0)
            pulls = client.net.pieces(pull(torch.cat([w.flatten() for w in weights])))
            for weight, slope, extra in zip(weights, slopes, pulls):
                weight.add_(slope + extra, alpha=-client.training.lr)
    return torch.cat([w.flatten() for w in weights])


@pytest.mark.parametrize("hidden", [(), (20,), (60, 30)])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_closed_form_keeps_its_bits(hidden, channels):
    """Memory that is used again and updates of the whole vector at once leave seeded results as they were."""
    module = build(lambda: Dense((channels, 8, 8), hidden, 10), 0)
    x = torch.randn(75, 8, 8, channels).permute(0, 3, 1, 2)  # channels innermost, as images are loaded
    rows = Examples(x, torch.randint(0, 10, (75,)))
    data = Data(lambda: rows, lambda: Examples(x[:0], rows.y[:0]), 10)
    client = Client({}, data, 7, Network(module, x), Training(epochs=2, batch_size=16, lr=0.1))
    start = client.net.initial.clone()

    def pull(w: Tensor) -> Tensor:
        return 0.3 * (w - start)

    expected = tensor_by_tensor(client, start, pull)
    assert torch.equal(sgd(client, start, regularizer_gradient=pull), expected)


def test_a_pull_moves_the_result_towards_the_center(make_client):
    client = make_client(epochs=2)
    start = client.net.initial
    center = torch.zeros_like(start)
    free, held = sgd(client, start), sgd(client, start, regularizer_gradient=lambda w: 2.0 * (w - center))
    assert (held - center).norm() < 0.7 * (free - center).norm()


def test_the_pull_enters_before_momentum(make_client):
    """With the loss gone, three steps of momentum on the pull alone, by hand."""
    client = make_client(momentum=0.5, lr=0.1, batch_size=1000, epochs=3)
    start = client.net.initial
    w, v = start.clone(), torch.zeros_like(start)
    for _ in range(3):
        v = 0.5 * v + 2.0 * w
        w = w - 0.1 * v
    found = sgd(client, start, regularizer_gradient=lambda w: 2.0 * w, loss=lambda net, x, y: 0.0 * net(x).sum())
    torch.testing.assert_close(found, w)


def test_two_parameters_that_share_one_gradient_are_pulled_apart(make_client):
    """Autograd gives a and b of a + b the same tensor: writing into it would add both pulls to both."""

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.ones(10)), nn.Parameter(3 * torch.ones(10))
            self.out = nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(x.flatten(1)) + (self.a + self.b)

    client = make_client(module=Sum(), weight_decay=0.2)
    start = client.net.initial
    torch.testing.assert_close(
        sgd(client, start, regularizer_gradient=lambda w: 0.5 * w), plain_sgd(client, start, lambda w: 0.5 * w)
    )


def test_the_users_loss_stands_in_for_cross_entropy(make_client):
    client = make_client()

    def hinge(net, x, y):
        return F.multi_margin_loss(net(x), y)

    found = sgd(client, client.net.initial, loss=hinge)
    assert not torch.equal(found, sgd(client, client.net.initial))
    same = sgd(client, client.net.initial, loss=lambda net, x, y: F.cross_entropy(net(x), y))
    torch.testing.assert_close(same, sgd(client, client.net.initial), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", MODULES)
def test_frozen_parts_do_not_move(make_client, kind):
    """Neither by the gradient, nor by momentum, decay or pull."""
    client = make_client(module=MODULES[kind](), momentum=0.9, weight_decay=0.1, epochs=2)
    net, start = client.net, client.net.initial
    for held, free in ((net.layout.body, net.layout.head), (net.layout.head, net.layout.body)):
        with net.frozen(held):
            found = sgd(client, start, regularizer_gradient=lambda w: 0.1 * w)
        assert torch.equal(found[held], start[held])
        assert not torch.equal(found[free], start[free])


def test_with_the_body_frozen_the_head_trains_as_on_its_features(make_client):
    client = make_client(module=deep(), lr=0.1)
    net, start = client.net, client.net.initial
    with net.frozen(net.layout.body):
        found = sgd(client, start)
    net.load(start)
    head = copy.deepcopy(net.module[3])
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    for x, y in batches(client, epoch=0):
        optimizer.zero_grad()
        F.cross_entropy(head(net.module[:3](x).detach()), y).backward()
        optimizer.step()
    expected = torch.cat([head.weight.detach().flatten(), head.bias.detach()])
    torch.testing.assert_close(found[net.layout.head], expected, atol=1e-5, rtol=1e-4)


def test_everything_frozen_is_a_mistake(make_client):
    client = make_client()
    with client.net.frozen(torch.arange(client.net.layout.size)), pytest.raises(ValueError, match="nothing to train"):
        sgd(client, client.net.initial)


def test_settings_of_the_call_come_before_those_of_the_run(make_client):
    client, other = make_client(epochs=1, lr=0.05), make_client(epochs=3, lr=0.2)
    start = client.net.initial
    assert torch.equal(sgd(client, start, epochs=3, lr=0.2), sgd(other, start))
    assert torch.equal(sgd(client, start, epochs=0), start)


def test_epochs_one_by_one_are_epochs_at_once(make_client):
    client = make_client(epochs=2)
    start = client.net.initial
    first = sgd(client, start, epochs=1)
    assert torch.equal(sgd(client, first, epochs=1, first_epoch=1), sgd(client, start))
    assert not torch.equal(sgd(client, first, epochs=1), sgd(client, start)), "epochs differ in their order"


@pytest.mark.parametrize("steps", [1, 5, 40])
def test_steps_go_on_through_as_many_epochs_as_they_take(make_client, steps):
    client = make_client(momentum=0.9, lr=0.02)
    per_epoch = len(list(batches(client, epoch=0)))
    found = [row.y.tolist() for row in stream(client, steps=steps)]
    expected = [b.y.tolist() for epoch in range(steps // per_epoch + 1) for b in batches(client, epoch=epoch)][:steps]
    assert found == expected
    start = client.net.initial
    whole = sgd(client, start, steps=2 * per_epoch)
    assert torch.equal(whole, sgd(client, start, epochs=2)), "momentum goes on from epoch to epoch"
    assert not torch.equal(whole, sgd(client, start, steps=2 * per_epoch - 1))


# ---- batches


@pytest.mark.parametrize("batch_size", [1, 7, 16, 10_000])
def test_batches_cover_every_row_once(make_client, batch_size):
    client = make_client(batch_size=batch_size)
    found = list(batches(client, epoch=0))
    assert all(len(b.y) == batch_size for b in found[:-1])
    x, y = torch.cat([b.x for b in found]), torch.cat([b.y for b in found])
    assert len(y) == len(client.data.y)

    def keys(x: Tensor, y: Tensor) -> list[tuple[float, ...]]:
        return sorted((float(c), *row) for c, row in zip(y, x.flatten(1).tolist()))

    assert keys(x, y) == keys(client.data.x, client.data.y), "each with its own label"


def test_batches_are_a_function_of_seed_and_epoch(make_client):
    def order(seed: int, epoch: int) -> list[float]:
        return [v for b in batches(make_client(seed=seed), epoch=epoch) for v in b.x.flatten(1).sum(1).tolist()]

    base = order(7, 0)
    torch.manual_seed(1)
    assert order(7, 0) == base, "whatever the global random state is"
    assert len({tuple(o) for o in (base, order(7, 1), order(7, 2), order(8, 0), order(8, 1))}) == 5


def test_sgd_is_deterministic_in_the_seed(make_client):
    runs = [
        sgd(client, client.net.initial) for client in (make_client(seed=7), make_client(seed=7), make_client(seed=8))
    ]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_batches_of_images_stay_channels_last(make_client):
    client = make_client()
    x = torch.randn(20, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    for b in batches(client, epoch=0, examples=Examples(x, torch.zeros(20, dtype=torch.long))):
        assert b.x.is_contiguous(memory_format=torch.channels_last)


# ---- measuring


@pytest.mark.parametrize("count", [1, EVALUATION_BATCH, EVALUATION_BATCH + 1])
def test_evaluate_is_a_plain_computation(make_client, count):
    client = make_client()
    rows = Examples(torch.randn(count, 1, 8, 8), torch.randint(0, 10, (count,)))
    logits = client.net.module(rows.x)
    accuracy, loss = evaluate(client.net, client.net.initial, rows)
    assert accuracy == pytest.approx((logits.argmax(1) == rows.y).float().mean().item())
    assert loss == pytest.approx(F.cross_entropy(logits, rows.y).item(), rel=1e-5)


def test_evaluate_uses_running_statistics_and_leaves_them_alone(make_client):
    client = make_client(module=nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Dropout(0.5), nn.Linear(64, 10)))
    before = client.net.initial.clone()
    first = evaluate(client.net, before, client.data.train)
    assert first == evaluate(client.net, before, client.data.train)
    assert torch.equal(client.net.vector(), before)


def test_score_takes_any_predictor(make_client):
    client = make_client()
    right = scores(
        lambda x: F.one_hot(torch.zeros(len(x), dtype=torch.long), 10).float() * 50, client.net, client.data.train
    )
    assert right["accuracy"] == pytest.approx((client.data.y == 0).float().mean().item())


@pytest.mark.parametrize("kind", MODULES)
def test_gradient_is_autograd_on_the_full_set(make_client, kind):
    client = make_client(module=MODULES[kind]())
    rows = Examples(torch.randn(EVALUATION_BATCH + 30, 1, 8, 8), torch.randint(0, 10, (EVALUATION_BATCH + 30,)))
    found, loss = gradient(client.net, client.net.initial, rows)
    value = F.cross_entropy(client.net.module(rows.x), rows.y)
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(value, list(client.net.module.parameters()))])
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)
    assert loss == pytest.approx(value.item(), rel=1e-5)


def test_gradient_of_frozen_and_unused_parameters_is_zero(make_client):
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.spare, self.fixed, self.out = nn.Linear(2, 2), nn.Linear(64, 8), nn.Linear(8, 10)
            self.fixed.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.fixed(x.flatten(1)))

    client = make_client(module=Spare())
    found, _ = gradient(client.net, client.net.initial, client.data.train)
    layout = client.net.layout
    assert len(found) == layout.parameters == 2 * 2 + 2 + 8 * 10 + 10, "frozen parameters have no gradient"
    assert not found[layout.positions(("spare",))].any()
    assert found[layout.head].any()
