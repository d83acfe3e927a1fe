"""`Arrays`: a data set as plain arrays, before it is spread over clients."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Arrays:
    """Rows `x` with labels `y`. Images are uint8 [rows, height, width, channels]; the network sees them
    as [channels, height, width], scaled by `mean` and `std`, which are in the units of `x`."""

    x: NDArray[np.generic]
    y: Ints
    classes: int
    image: bool = False
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    train: int | None = None
    """How many of the first rows are the official training part; None where there is no such thing."""
    group: Ints | None = None
    """A natural group of each row (a subject, a hospital, a hidden group)."""
    ordered: bool = False
    """Rows are ordered in time within a group: split by time, not at random."""
    names: tuple[str, ...] = field(default=())
    """Names of the natural groups, where they have any."""

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"x has {len(self.x)} rows and y has {len(self.y)}: they must be as many.")
        if self.y.ndim != 1 or self.y.dtype != np.int64:
            raise ValueError(f"y must be int64, one class a row; it is {self.y.dtype} of shape {self.y.shape}.")
        if self.image and self.x.ndim != 4:
            raise ValueError(f"Images must be [rows, height, width, channels]; x has shape {self.x.shape}.")
        if len(self.y) == 0:
            raise ValueError("There are no rows in this data.")
        if int(self.y.min()) < 0 or int(self.y.max()) >= self.classes:
            raise ValueError(
                f"Labels run from {self.y.min()} to {self.y.max()}; with {self.classes} classes they must lie in "
                f"0..{self.classes - 1}."
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one row as the network sees it."""
        rest = self.x.shape[1:]
        return (rest[2], rest[0], rest[1]) if self.image else tuple(rest)
