"""ClusterFL's server steps, on models W [clients, parameters] and an indicator F [clients, clusters]."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]


def indicator(apart: Floats) -> Floats:
    """F from pairwise divergences: centred, their products, negative ones as 0, columns that sum to 1 (or are 0).

    All principal components of the centred rows are kept, so their products are those of the rows themselves.
    """
    centred = apart - apart.mean(0)
    near = np.maximum(centred @ centred.T, 0)
    total = near.sum(0)
    out: Floats = near / np.where(total > 0, total, 1)
    return out


def auxiliary(f: Tensor, w: Tensor, u: Tensor, beta: float, rho: float) -> tuple[Tensor, Tensor]:
    """Ω, the stationary point of −β‖Ω‖² + ⟨U, Ω − FᵀW⟩ + ρ/2‖Ω − FᵀW‖², and the next multipliers U."""
    mean = f.T @ w
    omega = (rho * mean - u) / (rho - 2 * beta)
    return omega, u + rho * (omega - mean)


def linear_term(f: Tensor, w: Tensor, omega: Tensor, u: Tensor, rho: float) -> Tensor:
    """c with rows c_i = Σ_j F_ij (U_j + ρ Ω_j) − ρ Σ_j F_ij Σ_{k≠i} F_kj w_k: the Lagrangian's part in w_i is
    ½ρ Σ_j F_ij² ‖w_i‖² − ⟨c_i, w_i⟩."""
    others = f @ (f.T @ w) - f.square().sum(1, keepdim=True) * w
    return f @ (u + rho * omega) - rho * others
