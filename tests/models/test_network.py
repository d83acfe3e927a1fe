"""`Network`: any module as one flat vector."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from fedkin.client.training import batches, sgd
from fedkin.models.network import Network, build


class Norm(nn.Module):
    """Batch norm, dropout, a counter, a buffer that is not kept, and a parameter of the root's own."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.BatchNorm1d(4)
        self.out = nn.Linear(4, 3)
        self.register_buffer("passing", torch.zeros(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.dropout(self.body(x).mean((2, 3))))
        return self.out(x) * self.scale


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(4, 4)
        self.again = nn.Linear(4, 4)
        self.again.weight = self.encode.weight
        self.out = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.again(torch.tanh(self.encode(x)))))


def normed(**options: float) -> Network:
    return Network(build(lambda: Norm(**options), 0), torch.randn(1, 1, 8, 8))


def plain(*sizes: int, head: str | None = None) -> Network:
    module = build(lambda: nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(sizes))), 0)
    return Network(module, torch.randn(1, sizes[0]), head)


# ---- vector and state_dict


@given(sizes=st.lists(st.integers(1, 6), min_size=2, max_size=4), seed=st.integers(0, 99))
def test_a_vector_goes_to_named_tensors_and_back(sizes, seed):
    net = plain(*sizes)
    vector = torch.randn(net.layout.size, generator=torch.Generator().manual_seed(seed))
    named = net.layout.tensors(vector)
    assert torch.equal(net.layout.flatten(named), vector)
    net.load(vector)
    assert {k: v.tolist() for k, v in net.module.state_dict().items()} == {k: v.tolist() for k, v in named.items()}


@pytest.mark.parametrize("make", [Norm, Tied])
def test_named_tensors_load_into_a_fresh_module(make):
    net = Network(make(), torch.randn(1, 4) if make is Tied else torch.randn(1, 1, 8, 8))
    vector = torch.rand(net.layout.size)
    fresh = make()
    fresh.load_state_dict(net.layout.tensors(vector))  # strict
    net.load(vector)
    x = torch.randn(5, 4) if make is Tied else torch.randn(5, 1, 8, 8)
    net.eval()
    torch.testing.assert_close(net(x), fresh.eval()(x))


def test_named_tensors_are_copies():
    net = plain(3, 2)
    vector = net.vector()
    net.layout.tensors(vector)["0.weight"].zero_()
    assert torch.equal(vector, net.vector())


def test_a_network_starts_as_its_module():
    module = build(lambda: nn.Linear(3, 2), 0)
    expected = torch.cat([p.detach().flatten().clone() for p in module.parameters()])
    net = Network(module, torch.randn(1, 3))
    assert torch.equal(net.vector(), expected)
    assert torch.equal(net.initial, expected)


def test_views_stay_bound():
    """Parameters, buffers and the flat vector are one memory, after load and after a step."""
    net = normed()
    for _ in range(2):
        net.load(torch.rand(net.layout.size))
        net.flat.mul_(2)
        state = net.module.state_dict()
        for piece in net.layout.pieces:
            assert torch.equal(state[piece.name].flatten(), net.flat[piece.start : piece.stop])
        with torch.no_grad():
            net.parameters[0].add_(1)
        assert torch.equal(net.flat[: net.parameters[0].numel()], net.parameters[0].detach().flatten())
        net.train()
        before = net.vector()
        net(torch.randn(4, 1, 8, 8))
        moved = (net.vector() != before).nonzero().flatten()
        assert len(moved), "running statistics are part of the vector"
        assert moved.min() >= net.layout.parameters


def test_vectors_given_out_do_not_change_later():
    net = plain(3, 2)
    vector = net.vector()
    net.load(torch.zeros_like(vector))
    assert vector.abs().sum() > 0


def test_a_vector_of_another_size():
    with pytest.raises(ValueError, match=r"This network has 8 numbers; the vector given has shape \(7,\)"):
        plain(3, 2).load(torch.zeros(7))


# ---- batch norm and counters


def test_float_buffers_are_in_the_row_and_counters_are_not():
    net = normed()
    names = [piece.name for piece in net.layout.pieces]
    assert "norm.running_mean" in names
    assert "body.1.running_var" in names
    assert not any("num_batches_tracked" in name for name in names)
    assert "passing" not in names
    parameters = sum(p.numel() for p in net.module.parameters())
    assert (net.layout.parameters, net.layout.size) == (parameters, parameters + 4 * 4)


def test_the_mean_of_rows_is_the_mean_of_running_statistics():
    net = normed()
    vectors = []
    for shift in (0.0, 4.0):
        net.load(net.initial)
        net.train()
        net(torch.randn(16, 1, 8, 8) + shift)
        vectors.append(net.vector())
    means = [net.layout.tensors(vector)["body.1.running_mean"] for vector in vectors]
    net.load(torch.stack(vectors).mean(0))
    torch.testing.assert_close(net.module.state_dict()["body.1.running_mean"], (means[0] + means[1]) / 2)


def test_counters_start_anew_with_each_load():
    net = normed()
    counter = net.module.norm.num_batches_tracked
    assert counter == 0, "counting FLOPs leaves no trace"
    net.train()
    net(torch.randn(4, 1, 8, 8))
    assert counter == 1
    net.load(net.initial)
    assert counter == 0


def test_making_a_network_leaves_running_statistics_alone():
    net = normed()
    assert torch.equal(net.vector(), net.layout.flatten(build(Norm, 0).state_dict()))


@pytest.mark.parametrize(("batch_size", "sizes"), [(4, [4, 4, 2]), (3, [3, 3, 3, 1])])
def test_batch_norm_with_a_lone_last_example(make_client, batch_size, sizes):
    """One example has no variance: it is seen twice, which changes neither the mean loss nor the gradient."""
    client = make_client(module=Norm(), batch_size=batch_size)
    examples = type(client.data.train)(client.data.x[: sum(sizes)], client.data.y[: sum(sizes)])
    found = list(batches(client, epoch=0, examples=examples))
    assert [len(b.y) for b in found] == [max(2, s) for s in sizes]
    if sizes[-1] == 1:
        assert torch.equal(found[-1].x[0], found[-1].x[1])
    net = client.net
    net.train()
    assert all(torch.isfinite(g).all() for b in found for g in net.gradients(b.x, b.y % 3, None, net.parameters))


def test_without_batch_norm_a_lone_example_stays_alone(make_client):
    client = make_client(batch_size=3)
    examples = type(client.data.train)(client.data.x[:4], client.data.y[:4])
    assert [len(b.y) for b in batches(client, epoch=0, examples=examples)] == [3, 1]


# ---- dropout


def test_dropout_works_in_training_and_is_a_function_of_the_seed():
    net = normed(dropout=0.5)
    x = torch.randn(6, 1, 8, 8)
    net.eval()
    assert torch.equal(net(x), net(x))
    net.train()
    out = []
    for seed in (1, 1, 2):
        net.load(net.initial)
        torch.default_generator.manual_seed(seed)
        out.append(net(x).detach())
    assert torch.equal(out[0], out[1])
    assert not torch.equal(out[0], out[2])


def test_a_run_with_dropout_is_reproducible(digits):
    import fedkin

    def dropped() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 10))

    def go(module_seed: int) -> torch.Tensor:
        torch.manual_seed(module_seed)  # whatever the caller's random state is
        return fedkin.run("fedavg", digits, model=dropped, rounds=2, engine="serial").state["model"]

    assert torch.equal(go(1), go(2))


# ---- layers, head and body


def test_head_and_body_partition_the_row():
    for net in (normed(), plain(4, 3, 2), plain(4, 3, 2, head="0")):
        both = torch.cat([net.layout.head, net.layout.body])
        assert sorted(both.tolist()) == list(range(net.layout.size))


def test_the_head_is_the_last_linear_or_the_one_named():
    assert plain(4, 3, 2).layout.head.tolist() == list(range(15, 23))
    assert plain(4, 3, 2, head="0").layout.head.tolist() == list(range(15))
    net = normed()
    assert net.layout.layers[net.layout.head_layer].name == "out"
    with pytest.raises(ValueError, match="head='last' is not a layer of Sequential; its layers are 0, 1"):
        plain(4, 3, 2, head="last")


def test_a_head_without_any_linear_layer_is_the_last_layer():
    net = Network(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 4, 6), nn.Flatten()), torch.randn(1, 1, 8, 8))
    assert net.layout.layers[net.layout.head_layer].name == "1"


def test_layers_have_their_buffers_and_know_their_parameters():
    net = normed()
    layers = {layer.name: layer for layer in net.layout.layers}
    assert list(layers) == ["", "body.0", "body.1", "norm", "out"]
    assert (len(layers["norm"].positions), len(layers["norm"].parameters)) == (16, 8)
    together = torch.cat([layer.positions for layer in layers.values()])
    assert sorted(together.tolist()) == list(range(net.layout.size))


def test_positions_by_name_and_index():
    layout = plain(4, 3, 2).layout
    assert torch.equal(layout.positions(("0",)), layout.positions((0,)))
    assert torch.equal(layout.positions((-1,)), layout.positions(("1",)))
    assert layout.positions((0, "0", -1)).tolist() == list(range(layout.size))
    assert layout.positions(()).tolist() == []
    for wrong in ("fc9", 2, -3):
        with pytest.raises(ValueError, match=r"There is no layer .*; the layers are 0, 1 \(0 to 1\)"):
            layout.positions((wrong,))


def test_split_gives_the_heads_input():
    net = plain(4, 3, 2)
    x = torch.randn(5, 4)
    features, logits = net.split(x)
    torch.testing.assert_close(features, net.module[0](x))
    torch.testing.assert_close(logits, net.module(x))
    torch.testing.assert_close(net.head(features), logits)
    torch.testing.assert_close(net.features(x), features)
    named = plain(4, 3, 2, head="0")
    assert torch.equal(named.features(x), x)
    assert not net.module[1]._forward_pre_hooks, "nothing is left behind"


def test_frozen_parts_take_no_gradient_and_are_given_back():
    net = plain(4, 3, 2)
    with net.frozen(net.layout.body):
        assert [p.requires_grad for p in net.parameters] == [False, False, True, True]
        with net.frozen(net.layout.body):
            pass
        assert [p.requires_grad for p in net.parameters] == [False, False, True, True], "the outer block holds on"
    assert all(p.requires_grad for p in net.parameters)
    with pytest.raises(KeyError), net.frozen(net.layout.head):
        raise KeyError
    assert all(p.requires_grad for p in net.parameters)
    with net.frozen(torch.arange(3)):  # a part of a parameter is not the parameter
        assert all(p.requires_grad for p in net.parameters)


def test_frozen_batch_norm_does_not_move(make_client):
    client = make_client(
        module=nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10)), lr=0.1
    )
    net, start = client.net, client.net.initial
    with net.frozen(net.layout.body):
        trained = sgd(client, start)
    assert torch.equal(trained[net.layout.body], start[net.layout.body])
    assert not torch.equal(trained[net.layout.head], start[net.layout.head])
    free = sgd(client, start)
    assert not torch.equal(free[net.layout.parameters :], start[net.layout.parameters :]), "momentum is given back"


# ---- modules of all kinds


def test_tied_parameters_are_one_piece():
    net = Network(build(Tied, 0), torch.randn(1, 4))
    assert net.layout.size == 16 + 4 + 4 + 10
    net.load(torch.rand(net.layout.size))
    assert net.module.again.weight is net.module.encode.weight
    x, y = torch.randn(6, 4), torch.randint(0, 2, (6,))
    slopes = net.gradients(x, y, None, net.parameters)
    expected = torch.autograd.grad(F.cross_entropy(net.module(x), y), list(net.module.parameters()))
    for a, b in zip(slopes, expected):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_numbers_than_float32_are_refused(dtype):
    with pytest.raises(ValueError, match=r"Parameter weight is torch\.float\d+; .*call module\.float\(\)"):
        Network(nn.Linear(3, 2).to(dtype), torch.randn(1, 3))


def test_a_module_without_parameters_is_refused():
    with pytest.raises(ValueError, match="Flatten has no parameters to learn"):
        Network(nn.Flatten(), torch.randn(1, 3))


def test_parameters_that_the_user_froze_stay_frozen(make_client):
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    module[1].requires_grad_(False)
    client = make_client(module=module, weight_decay=0.1, momentum=0.5)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with client.net.frozen(client.net.layout.head):
        pass
    client.net.load(sgd(client, client.net.initial))
    same = {name for name, value in module.state_dict().items() if torch.equal(value, before[name])}
    assert same == {"1.weight", "1.bias"}


def test_parameters_that_are_not_used_have_no_gradient(make_client):
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.spare = nn.Linear(2, 2)
            self.out = nn.Linear(64, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(x.flatten(1))

    client = make_client(module=Spare())
    trained = sgd(client, client.net.initial)
    spare = client.net.layout.positions(("spare",))
    assert torch.equal(trained[spare], client.net.initial[spare])


# ---- what it costs


def test_flops_of_linear_layers_by_hand():
    net = plain(5, 4, 3)
    forward = 2 * (5 * 4 + 4 * 3)
    # backward: both layers' weights, and the second layer's input; the data's own gradient is not needed
    assert (net.forward_flops, net.training_flops) == (forward, forward + forward + 2 * 4 * 3)


def test_flops_of_a_convolution_by_hand():
    net = Network(nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten()), torch.randn(1, 2, 8, 8))
    assert net.forward_flops == 2 * (3 * 3 * 2 * 3) * 6 * 6


def test_flops_are_those_of_torchs_counter():
    from torch.utils.flop_counter import FlopCounterMode

    module = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(),
        nn.Unflatten(1, (9, 4)), nn.Linear(4, 16), nn.TransformerEncoderLayer(16, 2, 8, batch_first=True),
        nn.Flatten(), nn.Linear(144, 3),
    )  # fmt: skip
    net, pair = Network(module, torch.randn(1, 2, 5, 5)), torch.randn(2, 2, 5, 5)
    with FlopCounterMode(display=False) as counter:
        out = module.train()(pair)
        forward = counter.get_total_flops() / 2
        torch.autograd.grad(out.sum(), net.parameters)
    assert (net.forward_flops, net.training_flops) == (forward, counter.get_total_flops() / 2)


def test_cost_counts_samples():
    net = plain(5, 4, 3)
    with torch.no_grad():
        net(torch.randn(7, 5))
    assert net.cost == 7 * net.forward_flops
    net.gradients(torch.randn(2, 5), torch.tensor([0, 1]), None, net.parameters)
    assert net.cost == 7 * net.forward_flops + 2 * net.training_flops


def test_the_closed_form_costs_as_much_as_autograd():
    from fedkin.models.mlp import Dense

    net = Network(Dense((5,), (4,), 3), torch.randn(1, 5))
    x, y = torch.randn(2, 5), torch.tensor([0, 1])
    net.gradients(x, y, None, net.parameters)
    closed = net.cost
    net.gradients(x, y, lambda n, a, b: F.cross_entropy(n(a), b), net.parameters)
    assert net.cost == 2 * closed
