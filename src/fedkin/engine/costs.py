"""The cost of a run: bytes counted from its messages, FLOPs, and the time that a real federation would need."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from fedkin.protocol import Message


def nbytes(arrays: Iterable[Tensor | list[Tensor]]) -> int:
    return sum(nbytes(a) if isinstance(a, list) else a.numel() * a.element_size() for a in arrays)


def message_bytes(message: Message, position: int) -> int:
    """Bytes that the client asked at this position receives."""
    return nbytes(message.shared) + nbytes(part[position] for part in message.own)


@dataclass(frozen=True)
class Device:
    """Links and processors of the simulated clients."""

    link_rate: float
    device_rate: float
    spread: float
    seed: int

    def rates(self, client: int) -> tuple[float, float]:
        """Bits per second each way, and FLOPs per second. `spread` is the standard deviation of their logarithms."""
        if not self.spread:
            return self.link_rate, self.device_rate
        link, device = np.exp(self.spread * np.random.default_rng([self.seed, client, 0xDE]).normal(size=2))
        return self.link_rate * link, self.device_rate * device


@dataclass
class Tally:
    """One round's costs by client."""

    down: dict[int, int] = field(default_factory=dict)
    up: dict[int, int] = field(default_factory=dict)
    flops: dict[int, float] = field(default_factory=dict)
    slowdown: dict[int, float] = field(default_factory=dict)

    def add(self, client: int, *, down: int = 0, up: int = 0, flops: float = 0.0, slowdown: float = 1.0) -> None:
        """Count one exchange. `slowdown` multiplies the client's time in this round."""
        self.slowdown[client] = max(slowdown, self.slowdown.get(client, 1.0))
        self.down[client] = self.down.get(client, 0) + down
        self.up[client] = self.up.get(client, 0) + up
        self.flops[client] = self.flops.get(client, 0.0) + flops

    def seconds(self, device: Device) -> tuple[float, float]:
        """Compute and communication time of the slowest client: clients work in parallel."""
        slowest = (0.0, 0.0)
        for client, flops in self.flops.items():
            link, rate = device.rates(client)
            slow = self.slowdown[client]
            mine = (slow * flops / rate, slow * 8 * (self.down[client] + self.up[client]) / link)
            slowest = max(slowest, mine, key=sum)
        return slowest
