"""Floco's assignment of clients to points of a simplex, and drawing near them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedkin.maths.peers import on_simplex

Floats = NDArray[np.float64]

CLOSEST = 1e-4  # distances below this count as this, so that the energy is finite
SCALES = np.linspace(1e-4, 1, 1000)


def principal_scores(rows: Floats, components: int) -> Floats:
    """Coordinates of rows along their first principal axes, zero where there are fewer axes. The largest entry of an
    axis is positive, so that the order of the rows does not matter."""
    centered = rows - rows.mean(0)
    _, values, axes = np.linalg.svd(centered, full_matrices=False)
    axes = axes[: min(components, int((values > 1e-12).sum()))]
    out = np.zeros((len(rows), components))
    if len(axes):
        largest = np.take_along_axis(axes, np.abs(axes).argmax(1)[:, None], 1)
        out[:, : len(axes)] = centered @ (axes * np.sign(largest)).T
    return out


def spread_on_simplex(scores: Floats) -> Floats:
    """Points of the simplex [clients, M]: the projection of scaled scores whose points lie furthest apart, as measured
    by the Riesz energy Σ 1 / distance²."""
    if len(scores) < 2:
        return on_simplex(scores)
    upper = np.triu_indices(len(scores), 1)
    best, lowest = on_simplex(scores), np.inf
    for scale in SCALES:  # the projection onto {β ≥ 0, Σβ = z}, divided by z
        points = on_simplex(scores / scale)
        squared = np.sum(np.square(points), 1)
        apart = (squared[:, None] + squared[None] - 2 * points @ points.T)[upper]
        energy = float(np.sum(1 / np.maximum(apart, CLOSEST**2)))
        if energy < lowest:
            best, lowest = points, energy
    return best


def near(center: Floats, radius: float, rng: np.random.Generator) -> Floats:
    """A random point of the simplex within this L1 distance of `center`; anywhere in it if the radius is 0."""
    anywhere = rng.dirichlet(np.ones(len(center)))
    apart = np.abs(anywhere - center).sum()
    if not radius or not apart:
        return anywhere
    reach = min(1.0, radius / apart) * rng.random() ** (1 / max(1, len(center) - 1))
    out: Floats = center + reach * (anywhere - center)
    return out
