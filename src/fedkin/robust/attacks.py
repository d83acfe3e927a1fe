"""Attacks to simulate: `--attack signflip:0.2` makes a fifth of the clients hostile.

An attack is NAME:FRACTION or NAME:FRACTION:STRENGTH. With u the change of a reply against what the client was sent:

| name | what a hostile client does | strength |
|---|---|---|
| scale | sends its update times the strength | 1000 |
| signflip | sends −strength · u, a step away from what it learned | 1 |
| noise | sends Gaussian noise, `strength` times as large as u | 10 |
| freerider | sends back what it was sent, without work | none |
| labelflip | trains on class C − 1 − y instead of y | none |
| backdoor | trains a fraction `strength` of its examples to be class 0 once a small pattern is on them | 0.5 |

Who is hostile is a pure function of the run's seed. A hostile client still scores and stores its honest work: only what
it sends, or trains on, is changed. It knows which losses and counts a server accepts (`Method.reply_bounds`) and stays
within.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
import torch
from torch import Tensor

from fedkin.protocol import Data, Examples, round_half_up
from fedkin.robust.updates import judged

STRENGTHS = {"scale": 1000.0, "signflip": 1.0, "noise": 10.0, "freerider": 0.0, "labelflip": 0.0, "backdoor": 0.5}
ON_DATA = ("labelflip", "backdoor")
TARGET = 0  # the class that a backdoor leads to
TRIGGER = 3  # side of a backdoor's square in an image, or the number of features in a table


@dataclass(frozen=True)
class Attack:
    name: str
    fraction: float
    strength: float

    @classmethod
    def read(cls, text: str) -> Attack | None:
        """Parse `signflip:0.2` or `scale:0.1:50`; None if the text is empty."""
        if not text:
            return None
        name, *numbers = (word.strip() for word in text.split(":"))
        try:
            fraction, *more = [float(number) for number in numbers]
            strength = more[0] if more else STRENGTHS[name]
            allowed = 0 < fraction < 1 and isfinite(strength) and strength >= 0 and len(more) < 2
            allowed = allowed and not (name == "backdoor" and strength > 1)
        except (ValueError, KeyError):
            allowed = False
        if not allowed:
            raise ValueError(
                f"attack='{text}' is not an attack; expected NAME:FRACTION or NAME:FRACTION:STRENGTH, such as "
                f"signflip:0.2, with a fraction of the clients in (0, 1). Known: {', '.join(STRENGTHS)}."
            )
        return cls(name, fraction, strength)

    def hostile(self, clients: int, seed: int) -> list[int]:
        """The clients that are hostile in a run: at least one, and never all."""
        count = min(max(1, round_half_up(self.fraction * clients)), clients - 1)
        picked = np.random.default_rng([seed, 0xBAD]).choice(clients, size=count, replace=False)
        return sorted(int(client) for client in picked)

    def data(self, data: Data) -> Data:
        """The examples on which a hostile client trains."""
        if self.name not in ON_DATA:
            return data
        if data.y.is_floating_point() or data.classes < 2:
            raise ValueError(f"attack='{self.name}' changes class labels, and this task has none: use another attack.")
        poisoned = labels_flipped if self.name == "labelflip" else self._with_backdoor
        return Data(lambda: poisoned(data.train, data.classes), lambda: data.validation, data.classes)

    def _with_backdoor(self, examples: Examples, classes: int) -> Examples:
        count = round_half_up(self.strength * len(examples.y))
        x, y = examples.x.clone(), examples.y.clone()
        x[:count], y[:count] = triggered(x[:count]), TARGET
        return Examples(x, y)

    def body(self, body: Sequence[Tensor], references: Sequence[Tensor | None], seed: int) -> tuple[Tensor, ...]:
        """What a hostile client sends instead of its reply."""
        if self.name in ON_DATA:
            return tuple(body)
        generator = torch.Generator().manual_seed(seed)
        changes: dict[str, Callable[[Tensor], Tensor]] = {
            "scale": lambda u: self.strength * u,
            "signflip": lambda u: -self.strength * u,
            "noise": lambda u: self.strength * _rms(u) * torch.randn(u.shape, generator=generator, dtype=u.dtype),
            "freerider": torch.zeros_like,
        }
        change = changes[self.name]
        return tuple(
            array if not judged(array) else change(array) if sent is None else sent + change(array - sent)
            for array, sent in zip(body, references)
        )


def labels_flipped(examples: Examples, classes: int) -> Examples:
    return Examples(examples.x, classes - 1 - examples.y)


def triggered(x: Tensor) -> Tensor:
    """Inputs with a backdoor's pattern: a bright square in a corner of an image, the first features of a table.

    The pattern is 3 everywhere, which in standardized data is a large value.
    """
    out = x.clone()
    corner = out[..., :TRIGGER] if x.dim() == 2 else out[..., :TRIGGER, :TRIGGER]
    corner.fill_(3)
    return out


def _rms(update: Tensor) -> float:
    return float(update.double().square().mean().sqrt())
