"""`Arrays`: a data set as plain arrays, before it is spread over clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkin.data.cells import Reading
from fedkin.data.encode import Column
from fedkin.data.labels import TaskKind

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Arrays:
    """Examples `x` with targets `y`.

    Images are uint8 [examples, height, width, channels]; the network sees them as [channels, height, width], scaled by
    `mean` and `std`, which are in the units of `x`. int64 inputs are tokens and stay as they are. With `columns`, `x`
    is an encoded table [examples, columns]; its preprocessing is fitted after the examples were split.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    """int64 classes; float32 numbers in a regression, [examples] or [examples, outputs]; float32 0 and 1 [examples,
    labels] in a multi-label task."""
    classes: int
    """0 in a regression and in a multi-label task."""
    image: bool = False
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    train: int | None = None
    """How many of the first examples are the official training part; None if there is none."""
    group: Ints | None = None
    """A natural group of each example: a subject, a hospital, a hidden group."""
    ordered: bool = False
    """Examples are ordered in time within a group: split by time, not at random."""
    names: tuple[str, ...] = field(default=())
    """Names of the groups. Named groups are the clients, unless the user asks for a partition."""
    own_clients: bool = False
    """The user named the client of each example: a partition is then refused."""
    one_of_several: bool = False
    """This is the table of one site: others may know what is missing here everywhere."""
    columns: tuple[Column, ...] = ()
    reading: Reading = field(default_factory=Reading)
    """How the cells of the table were read."""
    class_names: tuple[str, ...] = ()
    """What the classes are called in the table."""
    multilabel: bool = False
    """The targets say of each of several labels whether it is there."""
    source: Mapping[str, Any] = field(default_factory=dict)
    """Arguments with which `load("own", …)` reads this data again."""

    @property
    def task(self) -> TaskKind:
        """The kind of the targets."""
        return "classification" if self.classes else "multilabel" if self.multilabel else "regression"

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"x has {len(self.x)} examples and y has {len(self.y)}: the numbers must be equal.")
        if len(self.y) == 0:
            raise ValueError("There are no examples in this data.")
        if self.image and self.x.ndim != 4:
            raise ValueError(f"Images must be [examples, height, width, channels]; x has shape {self.x.shape}.")
        if self.multilabel and not (self.classes == 0 and self.y.ndim == 2 and np.isin(self.y, (0, 1)).all()):
            raise ValueError(
                f"The targets of a multi-label task must be 0 or 1, [examples, labels]; y is {self.y.shape}."
            )
        if self.classes == 0:
            if self.y.ndim not in (1, 2) or self.y.dtype != np.float32:
                raise ValueError(
                    f"The targets of a regression must be float32 [examples] or [examples, outputs]; y is "
                    f"{self.y.dtype} of shape {self.y.shape}."
                )
            return
        if self.y.ndim != 1 or self.y.dtype != np.int64:
            raise ValueError(f"y must be int64, one class per example; it is {self.y.dtype} of shape {self.y.shape}.")
        outside = int(((self.y < 0) | (self.y >= self.classes)).sum())
        if outside:
            raise ValueError(
                f"{outside} labels are outside 0..{self.classes - 1}: with {self.classes} classes they must lie there."
            )

    def __repr__(self) -> str:
        """No example: what is printed ends up in logs."""
        kind = f"{self.outputs} {'classes' if self.classes else 'labels' if self.multilabel else 'numbers to predict'}"
        clients = f", clients {', '.join(self.names)}" if self.own_clients else ""
        return f"<Arrays of {len(self.y)} examples of shape {list(self.shape)}, {kind}{clients}>"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one example as the network sees it."""
        rest = self.x.shape[1:]
        return (rest[2], rest[0], rest[1]) if self.image else tuple(rest)

    @property
    def outputs(self) -> int:
        """Number of outputs of a network for this data."""
        return self.classes or (self.y.shape[1] if self.y.ndim == 2 else 1)
