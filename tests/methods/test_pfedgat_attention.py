"""Graph attention over clients: against naive loops, autograd, finite differences and torch_geometric."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from fedkin.methods.pfedgat import attention as maths

SLOPE = 0.2
KINDS = ("gat", "gatv2")


def made(kind, size, *, heads=3, hidden=4, seed=0):
    drawn = maths.glorot(kind, heads, hidden, size, torch.Generator().manual_seed(seed))
    return {name: value.double() for name, value in drawn.items()}


def rows(clients, size, seed=1):
    return torch.randn(clients, size, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


def naive_scores(parameters, h):
    """eq. (4) and (5), pair by pair, with the concatenation as printed; GATv2 likewise."""
    heads = len(parameters["a"])
    e = torch.empty(heads, len(h), len(h), dtype=h.dtype)
    for k in range(heads):
        for i in range(len(h)):
            for j in range(len(h)):
                if "W" in parameters:
                    z_i, z_j = parameters["W"][k] @ h[i], parameters["W"][k] @ h[j]
                    e[k, i, j] = F.leaky_relu(parameters["a"][k] @ torch.cat([z_i, z_j]), SLOPE)
                else:
                    inside = parameters["W1"][k] @ h[i] + parameters["W2"][k] @ h[j]
                    e[k, i, j] = parameters["a"][k] @ F.leaky_relu(inside, SLOPE)
    return e


# ---- features
@pytest.mark.parametrize("size", [7, 9000])
def test_features_are_the_layer_norm_of_each_row(size):
    models = rows(5, size) * 0.05 + 0.01
    assert torch.allclose(maths.features(models), F.layer_norm(models, (size,)), atol=1e-10)
    gap = models - models.mean(0)
    centered = F.layer_norm(gap, (size,), eps=maths.EPSILON_CENTERED)
    assert torch.allclose(maths.features(models, centered=True), centered, atol=1e-10)


def test_features_leave_the_models_alone():
    models = rows(3, 20)
    kept = models.clone()
    maths.features(models)
    maths.sketched_features(models, 8, 0)
    assert torch.equal(models, kept)


def test_small_differences_between_models_are_not_drowned():
    models = rows(1, 500).float() + 1e-3 * rows(4, 500, seed=2).float()
    assert maths.features(models, centered=True).std(1).allclose(torch.ones(4), atol=0.01)


def test_a_sketch_is_signs_and_buckets():
    """Read off as a matrix: every column of a row lands in one bucket, with a sign, and not twice from one stretch."""
    size, columns = 8, 29
    matrix = maths.sketch(torch.eye(columns), size, 3)
    assert (matrix != 0).sum(1).tolist() == [1] * columns
    assert set(matrix.unique().tolist()) == {-1.0, 0.0, 1.0}
    for start in range(0, columns, size):
        assert (matrix[start : start + size] != 0).sum(0).max() == 1
    x = rows(4, columns)
    assert torch.allclose(maths.sketch(x, size, 3), x @ matrix.double())
    assert not torch.equal(maths.sketch(x, size, 3), maths.sketch(x, size, 4))


def test_any_two_columns_meet_with_the_chance_of_a_random_hash():
    size = 8
    found = torch.stack([maths.sketch(torch.eye(2 * size), size, seed) != 0 for seed in range(400)]).float()
    meet = (found @ found.transpose(1, 2)).mean(0)
    assert torch.equal(meet[:size, :size], torch.eye(size))
    assert (meet[:size, size:] - 1 / size).abs().max() < 0.08


def test_a_sketch_keeps_inner_products_on_average():
    x = rows(2, 3000)
    x[1] += x[0]
    found = torch.stack([maths.sketch(x, 64, seed) for seed in range(100)])
    products = found @ found.transpose(1, 2)
    error = (products.mean(0) - x @ x.T).abs() / (products.std(0) / 100**0.5)
    assert (error < 4).all()


@pytest.mark.parametrize("centered", [False, True])
def test_sketched_features_are_nearly_the_sketch_of_the_features(centered):
    models = rows(5, 20000) * 0.05
    whole = maths.sketch(maths.features(models, centered=centered), 1024, 7) * (1024 / 20000) ** 0.5
    found = maths.sketched_features(models, 1024, 7, centered=centered)
    assert torch.allclose(found.norm(dim=1), torch.full((5,), 32.0, dtype=torch.double), rtol=0.01)
    assert (F.cosine_similarity(found, whole) > 0.99).all()
    assert (found - whole).norm() / whole.norm() < 0.1


# ---- attention
@pytest.mark.parametrize("kind", KINDS)
def test_scores_equal_the_naive_ones(kind):
    parameters, h = made(kind, 6), rows(5, 6)
    assert torch.allclose(maths.scores(parameters, h, SLOPE), naive_scores(parameters, h))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_sum_to_one(kind):
    found = maths.attention(made(kind, 6), 5 * rows(5, 6), SLOPE)
    assert found.shape == (3, 5, 5)
    assert torch.allclose(found.sum(2), torch.ones(3, 5, dtype=torch.double))


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_identical_models_give_uniform_attention(kind, centered):
    models = rows(1, 300).float().repeat(7, 1)  # in float32, where the mean of seven is not exact
    parameters = {name: value.float() for name, value in made(kind, 300).items()}
    found = maths.attention(parameters, maths.features(models, centered=centered), SLOPE)
    assert torch.allclose(found, torch.full_like(found, 1 / 7), atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_attention_moves_with_a_permutation_of_clients(kind):
    parameters, models = made(kind, 30), rows(6, 30)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    for centered in (False, True):
        plain = maths.attention(parameters, maths.features(models, centered=centered), SLOPE)
        moved = maths.attention(parameters, maths.features(models[order], centered=centered), SLOPE)
        assert torch.allclose(moved, plain[:, order][:, :, order])


def test_gat_ranks_senders_alike_for_every_receiver_and_gatv2_need_not():
    """Static attention: with LeakyReLU monotone, s_i + t_j has one order of j for all i."""
    h = rows(6, 10)
    static = maths.scores(made("gat", 10), h, SLOPE).argsort(2)
    assert (static == static[:, :1]).all()
    dynamic = maths.scores(made("gatv2", 10), h, SLOPE).argsort(2)
    assert not (dynamic == dynamic[:, :1]).all()


def test_glorot_bounds():
    drawn = maths.glorot("gat", 2, 8, 1000, torch.Generator().manual_seed(0))
    assert drawn["W"].shape == (2, 8, 1000)
    assert drawn["W"].abs().max() <= (6 / 1008) ** 0.5
    assert drawn["a"].shape == (2, 16)
    assert maths.glorot("gatv2", 2, 8, 10, torch.Generator())["a"].shape == (2, 8)


def test_torch_geometric_gives_the_same_coefficients():
    geometric = pytest.importorskip("torch_geometric.nn", reason="torch_geometric is not installed")
    heads, hidden, size, clients = 3, 4, 6, 5
    parameters, h = made("gat", size, heads=heads, hidden=hidden), rows(clients, size)
    layer = geometric.GATConv(
        size, hidden, heads=heads, negative_slope=SLOPE, add_self_loops=False, bias=False
    ).double()
    with torch.no_grad():
        layer.lin.weight.copy_(parameters["W"].reshape(heads * hidden, size))
        layer.att_dst.copy_(parameters["a"][:, :hidden][None])
        layer.att_src.copy_(parameters["a"][:, hidden:][None])
    receiver, sender = torch.meshgrid(torch.arange(clients), torch.arange(clients), indexing="ij")
    edges = torch.stack([sender.flatten(), receiver.flatten()])
    _, (edges, alpha) = layer(h, edges, return_attention_weights=True)
    found = torch.zeros(heads, clients, clients, dtype=torch.double)
    found[:, edges[1], edges[0]] = alpha.T.detach()
    assert torch.allclose(found, maths.attention(parameters, h, SLOPE))


# ---- gradients
def chain(parameters, models, x, y):
    """L = Σ_i L_i(Σ_j R_ij θ_j), eq. (3) to (9), for linear classifiers θ, each client with rows x[i], y[i]."""
    R = maths.attention(parameters, maths.features(models), SLOPE).mean(0)
    mixed = R @ models
    logits = torch.einsum("nbf,ncf->nbc", x, mixed.reshape(len(x), -1, x.shape[2]))
    return F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum") / x.shape[1], mixed


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_by_feedback_equals_autograd_and_finite_differences(kind):
    clients, features, classes = 4, 3, 2
    models = rows(clients, classes * features)
    x = torch.randn(clients, 5, features, dtype=torch.double, generator=torch.Generator().manual_seed(5))
    y = torch.randint(0, classes, (clients, 5), generator=torch.Generator().manual_seed(6))
    parameters = made(kind, classes * features)
    # what the server does: ∇L_i at the mixed models comes from the clients, the rest is its own
    mixed = chain(parameters, models, x, y)[1].detach().requires_grad_()
    logits = torch.einsum("nbf,ncf->nbc", x, mixed.reshape(clients, classes, features))
    loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum") / 5
    (feedback,) = torch.autograd.grad(loss, mixed)
    wanted = maths.allocation_gradient(feedback, models)
    h = maths.features(models)
    found = maths.slopes(lambda p: maths.attention(p, h, SLOPE), parameters, wanted)
    # the whole chain by autograd
    leaves = {name: value.clone().requires_grad_() for name, value in parameters.items()}
    exact = torch.autograd.grad(chain(leaves, models, x, y)[0], list(leaves.values()))
    for name, value in zip(leaves, exact):
        assert torch.allclose(found[name], value, atol=1e-12), name
        assert found[name].abs().max() > 1e-6, name
    # and by differences, number by number
    step = 1e-6
    for name in parameters:
        for k in range(0, parameters[name].numel(), 5):
            sides = []
            for sign in (1, -1):
                moved = {n: v.clone() for n, v in parameters.items()}
                moved[name].view(-1)[k] += sign * step
                sides.append(float(chain(moved, models, x, y)[0]))
            assert float(found[name].flatten()[k]) == pytest.approx((sides[0] - sides[1]) / (2 * step), abs=1e-7)


def test_pairs_of_losses_estimate_the_slope_along_log_r():
    """Averaged over all 2^N tilts, SPSA's slope is the true one to first order."""
    R = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.double)
    weight = torch.tensor([1.0, -2.0, 0.5], dtype=torch.double)  # L = Σ_j weight_j R_j
    size, total = 1e-4, torch.zeros(1, 3, dtype=torch.double)
    for code in range(8):
        signs = torch.tensor([[1.0 if code >> j & 1 else -1.0 for j in range(3)]], dtype=torch.double)
        plus, minus = (maths.tilted(R, s * size * signs) for s in (1, -1))
        assert torch.allclose(plus.sum(1), torch.ones(1, dtype=torch.double))
        difference = ((plus - minus) @ weight)[:, None]
        total += difference * maths.paired_gradient(R, signs, size) / 8
    along = R * (weight - (R @ weight)[:, None])  # ∂L/∂log R under the softmax
    assert torch.allclose(total * R, along, atol=1e-6)


def test_a_tilt_is_undone_by_its_opposite():
    R = rows(4, 4).softmax(1)
    tilt = torch.sign(rows(4, 4, seed=9))
    assert torch.allclose(maths.tilted(maths.tilted(R, 0.5 * tilt), -0.5 * tilt), R)


def test_the_pull_to_the_uniform_row_is_the_gradient_of_its_divergence():
    R = rows(3, 3).softmax(1).requires_grad_()
    divergence = (1 / 3 * (torch.tensor(1 / 3).log() - R.log())).sum()
    assert torch.allclose(maths.uniform_gradient(R.detach()), torch.autograd.grad(divergence, R)[0])


def test_adam_is_that_of_kingma_and_ba():
    value, moments = rows(2, 3), [torch.zeros(2, 3, dtype=torch.double)] * 2
    theta, m, v = value.numpy().copy(), 0.0, 0.0
    for t in range(1, 5):
        g = rows(2, 3, seed=t)
        m, v = 0.9 * m + (1 - 0.9) * g.numpy(), 0.999 * v + (1 - 0.999) * g.numpy() ** 2
        theta -= 0.05 * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)) ** 0.5 + 1e-8)
        value, moments = maths.adam(value, g, moments, t, 0.05)
    assert torch.allclose(value, torch.from_numpy(theta), atol=1e-12)


def test_mixing_writes_only_the_rows_named():
    table, models = rows(5, 70000), rows(2, 70000, seed=3)
    allocation = torch.tensor([[0.25, 0.75], [1.0, 0.0]], dtype=torch.double)
    out = maths.mixed_into(table, torch.tensor([3, 1]), allocation, models)
    assert torch.allclose(out[3], 0.25 * models[0] + 0.75 * models[1])
    assert torch.allclose(out[1], models[0])
    assert torch.equal(out[[0, 2, 4]], table[[0, 2, 4]])
    everybody = maths.mixed_into(table[:2], torch.tensor([1, 0]), allocation, models)
    assert torch.allclose(everybody, (allocation @ models)[[1, 0]])
