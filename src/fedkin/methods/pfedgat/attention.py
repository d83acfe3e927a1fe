"""Graph attention over clients: from the matrix of client models to the matrix R of weights, and its gradient.

Clients are nodes of a fully connected graph with self edges; a node's feature is its normalized model vector. No
function builds an array of clients × clients × parameters or copies the client models more than once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedkin.maths.table import IN_MEMORY
from fedkin.protocol import Rows, with_rows

Parameters = dict[str, Tensor]
BLOCK = 1 << 16  # columns mixed at a time if only some rows change
ROWS = 64  # models copied at a time if there are very many
EPSILON = 1e-5  # of torch's LayerNorm
EPSILON_CENTERED = 1e-12  # differences between models have variances below 1e-6, which 1e-5 would hide


def features(models: Tensor, *, centered: bool = False) -> Tensor:
    """LayerNorm of each vector without learned scale; `centered` subtracts the mean vector first."""
    out = models - models.mean(0) if centered else models.clone()
    out -= out.mean(1, keepdim=True)
    square = torch.linalg.vector_norm(out, dim=1, keepdim=True).square_() / out.shape[1]
    return out.div_((square + (EPSILON_CENTERED if centered else EPSILON)).sqrt_())


def sketched_features(models: Tensor, size: int, seed: int, *, centered: bool = False) -> Tensor:
    """The features of a count sketch of each vector, without a copy of the models.

    A sketch is linear and keeps lengths, so this is a sketch of the features up to the sketch's own error. The factor
    keeps the variance of the entries, because LayerNorm adds its epsilon to it.
    """
    return features(sketch(models, size, seed).mul_((size / models.shape[1]) ** 0.5), centered=centered)


def sketch(rows: Tensor, size: int, seed: int) -> Tensor:
    """Count sketch of each vector: entries get random signs and are summed in `size` buckets.

    Column k goes to bucket (k + shift of its block of `size` columns) mod size. Two columns collide with a probability
    of at most 1/size, as with a random hash, but a block is added as two slices instead of entry by entry. Signs and
    shifts come from the seed each time, so nothing is stored.
    """
    generator = torch.Generator().manual_seed(seed)
    count = rows.shape[1]
    signs = torch.randint(0, 2, (count,), generator=generator, dtype=torch.int8).mul_(2).sub_(1).to(rows.dtype)
    shifts = torch.randint(size, (-(-count // size),), generator=generator).tolist()
    out = rows.new_zeros(len(rows), size)
    for stretch, sign, shift in zip(rows.split(size, 1), signs.split(size), shifts):
        signed = stretch * sign
        first = min(size - shift, signed.shape[1])
        out[:, shift : shift + first] += signed[:, :first]
        out[:, : signed.shape[1] - first] += signed[:, first:]
    return out


def scores(parameters: Parameters, h: Tensor, slope: float) -> Tensor:
    """Raw attention e [heads, receivers, senders].

    With W [heads, d', d] and a [heads, 2d']: GAT, LeakyReLU(aᵀ[W h_i ‖ W h_j]) = LeakyReLU(a₁ᵀz_i + a₂ᵀz_j).
    With W1, W2 and a [heads, d']: GATv2, aᵀ LeakyReLU(W₁h_i + W₂h_j), one hidden unit after the other.
    """
    a = parameters["a"]
    if "W" in parameters:
        z = projected(h, parameters["W"]).transpose(0, 1)  # eq. (4)
        receiver, sender = a.chunk(2, 1)
        ours, theirs = (z * receiver[:, None]).sum(2), (z * sender[:, None]).sum(2)
        return F.leaky_relu(ours[:, :, None] + theirs[:, None, :], slope)  # eq. (5)
    ours, theirs = (projected(h, parameters[name]).permute(2, 1, 0) for name in ("W1", "W2"))
    found: Tensor = _Pairs.apply(ours, theirs, a.T, slope)  # type: ignore[no-untyped-call]
    return found


def projected(h: Tensor, W: Tensor) -> Tensor:
    """W h of every head: [clients, heads, d']."""
    return F.linear(h, W.flatten(0, 1)).view(len(h), *W.shape[:2])


class _Pairs(torch.autograd.Function):
    """Σ_k a_k LeakyReLU(u_ki + v_kj), one hidden unit k at a time: autograd would keep a clients × clients array for
    every unit until the backward pass."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, v: Tensor, a: Tensor, slope: float) -> Tensor:
        ctx.save_for_backward(u, v, a)
        ctx.slope = slope
        total = u.new_zeros(u.shape[1], u.shape[2], u.shape[2])
        for mine, theirs, weight in zip(u, v, a):
            inside = mine[:, :, None] + theirs[:, None, :]
            total += F.leaky_relu_(inside, slope).mul_(weight[:, None, None])
        return total

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        u, v, a = ctx.saved_tensors
        to_u, to_v, to_a = torch.empty_like(u), torch.empty_like(v), torch.empty_like(a)
        for k in range(len(u)):
            inside = u[k][:, :, None] + v[k][:, None, :]
            to_a[k] = (slopes[0] * F.leaky_relu(inside, ctx.slope)).sum((1, 2))
            to_pair = slopes[0] * torch.where(inside > 0, 1.0, ctx.slope) * a[k][:, None, None]
            to_u[k], to_v[k] = to_pair.sum(2), to_pair.sum(1)
        return to_u, to_v, to_a, None


def attention(parameters: Parameters, h: Tensor, slope: float) -> Tensor:
    """Attention of each head [heads, receivers, senders]; rows sum to 1, eq. (6)."""
    return scores(parameters, h, slope).softmax(2)


def glorot(kind: str, heads: int, hidden: int, size: int, generator: torch.Generator) -> Parameters:
    """Uniform Glorot initialization of a "gat" or a "gatv2"."""

    def drawn(*shape: int, fan: int) -> Tensor:
        bound = (6 / fan) ** 0.5
        return torch.empty(shape).uniform_(-bound, bound, generator=generator)

    names = ("W",) if kind == "gat" else ("W1", "W2")
    width = 2 * hidden if kind == "gat" else hidden
    made = {name: drawn(heads, hidden, size, fan=size + hidden) for name in names}
    return {**made, "a": drawn(heads, width, fan=width + 1)}


def allocation_gradient(gradients: Tensor, models: Tensor) -> Tensor:
    """∂L_i/∂R_ij = ⟨∇L_i, θ_j⟩ for the mixed model Σ_j R_ij θ_j: one GEMM."""
    return gradients @ models.T


def parts(models: Tensor) -> tuple[Tensor, ...]:
    """Indices of the models: all of them, or a few at a time if copies of all would take more than 1 GiB."""
    at_once = len(models) if models.nbytes <= IN_MEMORY else ROWS
    indices: tuple[Tensor, ...] = torch.arange(len(models)).split(max(1, at_once))
    return indices


def paired_gradient(allocation: Tensor, signs: Tensor, size: float) -> Tensor:
    """Row i times the difference of losses L_i⁺ − L_i⁻ at softmax(log R ± size · signs) estimates ∂L_i/∂R_ij.

    SPSA gives the slope along log R, (L⁺ − L⁻) / (2 size) · signs; d log R = dR / R turns it into one along R.
    """
    return signs / (2 * size) / allocation.clamp_min(1e-12)


def uniform_gradient(allocation: Tensor) -> Tensor:
    """Gradient of KL(uniform ‖ R_i) with respect to R_ij: −1 / (N R_ij)."""
    return -1 / (allocation.shape[1] * allocation.clamp_min(1e-12))


def tilted(allocation: Tensor, tilt: Tensor) -> Tensor:
    """softmax(log R + tilt): a row-stochastic matrix near R."""
    return (allocation.clamp_min(1e-12).log() + tilt).softmax(1)


def slopes(heads: Callable[[Parameters], Tensor], parameters: Parameters, wanted: Tensor) -> Parameters:
    """Gradient of Σ_ij wanted_ij R_ij with respect to the parameters, where R is the mean over `heads(parameters)`."""
    with torch.enable_grad():
        leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
        found = torch.autograd.grad((wanted * heads(leaves).mean(0)).sum(), list(leaves.values()))
    return {name: value.contiguous() for name, value in zip(leaves, found)}


def adam(value: Tensor, slope: Tensor, moments: list[Tensor], step: int, lr: float) -> tuple[Tensor, list[Tensor]]:
    """One step of Adam with its usual constants: the new value and the new moments."""
    first = 0.9 * moments[0] + 0.1 * slope
    second = 0.999 * moments[1] + 0.001 * slope**2
    change = (first / (1 - 0.9**step)) / ((second / (1 - 0.999**step)).sqrt() + 1e-8)
    return value - lr * change, [first, second]


def mixed_into(table: Rows, ids: Tensor, allocation: Tensor, models: Tensor) -> Rows:
    """A copy of `table` in which row ids[i] is Σ_j allocation_ij models_j."""
    if not (isinstance(table, Tensor) or table.in_memory):
        for some in parts(models):
            table = with_rows(table, ids[some], allocation[some] @ models)
        return table
    if len(ids) == len(table):
        return with_rows(table, ids.sort().values, allocation[ids.argsort()] @ models)
    out = torch.empty_like(models)
    for start in range(0, models.shape[1], BLOCK):
        part = slice(start, start + BLOCK)
        out[:, part] = allocation @ models[:, part]
    return with_rows(table, ids, out)
