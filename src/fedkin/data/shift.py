"""Feature shift: every client sees its images through a camera of its own, with its color, contrast, blur and noise."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

CHANNELS = 3


class Shift(NamedTuple):
    """One client's camera. Offsets and noise are in units of the data's standard deviation, blur is in pixels."""

    gain: tuple[float, ...]
    """Multiplies each color channel; a gray image uses the first."""
    offset: tuple[float, ...]
    contrast: float
    blur: float
    noise: float
    seed: tuple[int, ...]
    """Seed of the noise."""


def draw(seed: int, client: int, strength: float) -> Shift:
    """A pure function of seed and client. With strength 0 nothing is shifted."""
    key = (seed, 0x5F1F, client)
    rng = np.random.default_rng(key)
    return Shift(
        gain=tuple(np.exp(strength * rng.normal(0, 0.25, CHANNELS)).tolist()),
        offset=tuple((strength * rng.normal(0, 0.3, CHANNELS)).tolist()),
        contrast=float(np.exp(strength * rng.normal(0, 0.35))),
        blur=float(strength * rng.uniform(0, 1)),
        noise=float(strength * rng.uniform(0, 0.4)),
        seed=key,
    )


def shifted(
    images: NDArray[Any],
    shift: Shift,
    *,
    mean: NDArray[np.float64],
    std: NDArray[np.float64],
    bounds: tuple[float, float],
) -> NDArray[Any]:
    """Images [n, height, width, channels] as this client sees them: blurred, recolored, with noise, in the same dtype
    and within `bounds`."""
    from scipy.ndimage import gaussian_filter

    channels = images.shape[-1]
    gain, offset = (np.resize(np.array(part), channels) for part in (shift.gain, shift.offset))
    x: NDArray[Any] = images.astype(np.float32)
    if shift.blur > 0:
        x = gaussian_filter(x, (0, shift.blur, shift.blur, 0), mode="nearest")
    x = mean + (x - mean) * (gain * shift.contrast) + offset * std
    if shift.noise > 0:
        x += np.random.default_rng(shift.seed).standard_normal(x.shape) * (shift.noise * std)
    x = np.clip(x, *bounds)
    return (np.rint(x) if np.issubdtype(images.dtype, np.integer) else x).astype(images.dtype)
