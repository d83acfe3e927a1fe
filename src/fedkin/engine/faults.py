"""Simulated faults of clients, for what-if runs: `--faults drop=0.3,slow=0.1,nan=0.05,shape=0.02`.

Which client has which fault in which round is a pure function of the seed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from fedkin.bounds import FractionBelow1, check
from fedkin.protocol import Server

SLOW = 10.0  # a slow client takes this many times as long
_TAGS = {"drop": 0x105, "slow": 0x510, "nan": 0x4A4, "shape": 0x54A, "huge": 0x406}


@dataclass(frozen=True)
class FaultPlan:
    """Probability of each fault, for each client that is asked."""

    drop: FractionBelow1 = 0.0
    """Its reply gets lost on the way."""
    slow: FractionBelow1 = 0.0
    """Its work and its messages take ten times as long, in simulated time."""
    nan: FractionBelow1 = 0.0
    """Its reply holds NaN."""
    shape: FractionBelow1 = 0.0
    """An array of its reply is too short."""
    huge: FractionBelow1 = 0.0
    """Its reply is finite, and so large that sums of it are not."""

    def __post_init__(self) -> None:
        check(self)

    @classmethod
    def read(cls, text: str, lost: float = 0.0) -> FaultPlan:
        """Parse `drop=0.3,nan=0.05`. `lost` is another way to set `drop`."""
        known = [f.name for f in fields(cls)]
        given: dict[str, float] = {}
        for part in filter(None, text.split(",")):
            name, equals, value = (word.strip() for word in part.partition("="))
            try:
                number = float(value)
            except ValueError:
                number = -1.0
            if name not in known or not equals or number < 0 or name in given:
                raise ValueError(
                    f"faults='{text}' has '{part.strip()}'; expected: parts such as drop=0.3, each once, separated "
                    f"by commas. Known: {', '.join(known)}."
                )
            given[name] = number
        if lost and given.get("drop"):
            raise ValueError(f"lost={lost:g} and faults='{text}' both say how many replies get lost: give one of them.")
        return cls(**{"drop": lost, **given})

    def hits(self, kind: str, fed: Server, round: int, client: int, exchange: int) -> bool:
        """Does this client have this fault now?"""
        rate: float = getattr(self, kind)
        return bool(rate and fed.rng(round, _TAGS[kind], client, exchange).random() < rate)

    def spoils(self, fed: Server, round: int, client: int, exchange: int) -> str:
        """The fault of this client's reply; empty if it has none."""
        return next((kind for kind in ("nan", "shape", "huge") if self.hits(kind, fed, round, client, exchange)), "")


def spoiled(body: list[Tensor], fault: str) -> list[Tensor]:
    """A reply with this fault in the first array that can have it."""
    out = list(body)
    for i, array in enumerate(body):
        if not array.numel() or not (array.is_floating_point() or fault == "shape"):
            continue
        if fault == "shape":
            out[i] = array.reshape(-1)[:-1]
        elif fault == "nan":
            out[i] = array.clone()
            out[i].view(-1)[0] = torch.nan
        else:
            out[i] = torch.full_like(array, torch.finfo(array.dtype).max * 0.9)
        break
    return out
