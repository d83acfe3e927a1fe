"""The small federation, the settings and the networks on which methods are checked."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch

from fedkin.data.federation import Federation, federate
from fedkin.engine.loop import run
from fedkin.engine.trackers import Tracker
from fedkin.protocol import Method
from fedkin.results.run import Run

ROUNDS = 4
SETTINGS: dict[str, Any] = {
    "rounds": ROUNDS,
    "lr": 0.1,
    "epochs": 2,
    "batch_size": 8,
    "participation": 0.7,
    "evaluate_every": 2,
    "model": "mlp",
    "model_options": {"width": 0.25},
    "engine": "serial",
    "trackers": (Tracker(),),  # hears everything and says nothing
}


@cache
def federation() -> Federation:
    """Eight small clients that differ in size and labels."""
    made = federate("digits", partition="dirichlet", clients=8, alpha=0.5, minimum=20, samples_per_client=60, seed=1)
    splits = [
        replace(s, train=s.train[np.linspace(0, len(s.train) - 1, 42 - 4 * i).astype(int)])
        for i, s in enumerate(made.splits)
    ]
    return replace(made, splits=tuple(splits))


def outcome(method: Method, **changes: Any) -> Run:
    return run(method, federation(), **{**SETTINGS, **changes})


@cache
def plain(method: Method) -> Run:
    return outcome(method)


def with_batch_norm(shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    from torch import nn

    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, classes)
    )


FROZEN_CHANGED = "a parameter with requires_grad=False was changed"


def with_frozen(shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    from torch import nn

    class Partly(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if any(not torch.equal(a, b) for a, b in zip(held, start)):
                raise RuntimeError(FROZEN_CHANGED)
            out: torch.Tensor = super().forward(x)  # type: ignore[no-untyped-call]
            return out

    module = Partly(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, classes))
    module[1].requires_grad_(False)
    module[3].bias.requires_grad_(False)
    held = [parameter for parameter in module.parameters() if not parameter.requires_grad]
    start = [parameter.detach().clone() for parameter in held]
    return module
