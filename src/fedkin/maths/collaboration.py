"""FedPAC's classifier collaboration: how much each client takes of the others' heads."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

Floats = NDArray[np.float64]

SMALL = 1e-3  # weights below this are dropped


def head_weights(h: Floats, variance: Floats) -> Floats:
    """Row i minimizes Σ_j α_j² V_j + ‖h_i − Σ_j α_j h_j‖² over the simplex, for statistics h [clients, numbers].

    With Σ_j α_j = 1 the objective is αᵀPα. Every a ≥ 0 is s·α with α in the simplex and s ≥ 0, and
    aᵀPa + (1ᵀa − 1)² = s²·q + (s − 1)² has the minimum q / (1 + q) over s, which grows with q = αᵀPα. So the
    non-negative least squares solution, divided by its sum, is the exact minimum.
    """
    count = len(h)
    products = h @ h.T
    out = np.zeros((count, count))
    for i in range(count):
        cross = products[i, i] - products[i][:, None] - products[i][None, :] + products  # (h_i − h_j)·(h_i − h_k)
        values, vectors = np.linalg.eigh(cross + np.diag(np.maximum(variance, 1e-12)))
        root = np.sqrt(np.maximum(values, 0))[:, None] * vectors.T
        solution, _ = nnls(np.vstack([root, np.ones(count)]), np.append(np.zeros(count), 1.0))
        solution /= solution.sum()
        solution[solution < min(SMALL, solution.max())] = 0
        out[i] = solution / solution.sum()
    return out
