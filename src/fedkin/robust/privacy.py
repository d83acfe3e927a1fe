"""Differential privacy of what clients send: `--privacy client:clip=1,noise=1.1`, or `example:` instead of `client:`.

client   The change of a whole reply, every array of it together, is shortened to the length `clip`, and Gaussian noise
         of standard deviation noise · clip is added to every number before it leaves the client. It hides all of a
         client's data: any two data sets of a client give replies that are at most 2 · clip apart.
example  DP-SGD (Abadi et al., "Deep Learning with Differential Privacy", CCS 2016). Batches are Poisson samples, each
         example's gradient is shortened to `clip`, and noise of standard deviation noise · clip is added to their sum.
         It hides whether one example was used. A client function sees examples only through this gradient.

A run is refused where something would leak around the noise: whole numbers in a reply, replies whose shapes depend on
the data, and, for `example`, any other look at the examples, batch norm, or a loss of the method's own.

Epsilon comes from the package dp-accounting (RDP), for the client with the largest. It covers replies. It does not
cover how many examples a client has, nor scores on test and validation examples. The noise comes from PyTorch's
generator, which is not cryptographic.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from math import ceil, inf, isfinite
from typing import Any, Literal

import torch
from torch import Tensor

from fedkin.bounds import FractionBelow1, Positive, check
from fedkin.protocol import Data, Examples, Message, Method
from fedkin.robust.updates import references

CHUNK = 64  # examples whose gradients are held at a time
Gradient = Callable[[Tensor, Tensor], list[Tensor]]
"""Gradients of single examples, each [examples, …], one array for each parameter."""


@dataclass(frozen=True)
class Privacy:
    level: Literal["client", "example"]
    clip: Positive = 1.0
    """Largest length of a change (client) or of an example's gradient (example)."""
    noise: Positive = 1.0
    """Standard deviation of the noise, in units of `clip`."""
    delta: FractionBelow1 = 1e-5
    """Probability that epsilon does not hold; it should be far below one over the number of clients or examples."""
    secret: bytes = field(default=b"", repr=False)
    """Key of the noise. Empty in a simulation, which can be repeated. A real site has its own random key, because
    whoever knows it can subtract the noise."""

    def __post_init__(self) -> None:
        check(self)

    @classmethod
    def read(cls, text: str, secret: bytes = b"") -> Privacy | None:
        """Parse `client:clip=1,noise=1.1`; None if the text is empty."""
        if not text:
            return None
        level, _, rest = text.partition(":")
        known = ("clip", "noise", "delta")
        given: dict[str, Any] = {}
        for part in filter(None, rest.split(",")):
            name, _, value = (word.strip() for word in part.partition("="))
            try:
                number = float(value)
            except ValueError:
                number = inf
            if name not in known or name in given or not isfinite(number):
                raise ValueError(f"privacy='{text}' has '{part.strip()}'; expected: {', '.join(known)}, each once.")
            given[name] = number
        if level.strip() not in ("client", "example") or not given.keys() >= {"clip", "noise"}:
            raise ValueError(
                f"privacy='{text}' cannot be read; expected client or example with both numbers, such as "
                "client:clip=1,noise=1.1 (and delta, 1e-5 by default)."
            )
        if given.get("delta") == 0:
            raise ValueError(f"privacy='{text}': delta must be above 0.")
        return cls(level.strip(), **given, secret=secret)  # type: ignore[arg-type]

    def refuse(self, method: Method) -> None:
        """Raise if this method's replies cannot be covered. What only a reply can show is checked in `covered`."""
        if find_spec("dp_accounting") is None:
            raise ValueError("privacy needs the package that computes epsilon: pip install 'fedkin[privacy]'.")
        functions = [name for name in dir(type(method)) if getattr(getattr(type(method), name), "__ragged__", False)]
        if functions:
            raise ValueError(
                f"privacy='{self.level}:…' cannot cover {type(method).__name__}: the shapes of what {functions[0]} "
                "sends may depend on the client's data. Use one that sends only models, such as fedavg or fedcedar."
            )

    # ---- at a client
    def generator(self, seed: int, function: str, message: Message) -> torch.Generator:
        """The source of noise for one task. The same task gives the same noise, so that asking twice and averaging
        gains nothing; another task, or another site, has other noise."""
        digest = hashlib.blake2b(f"{seed} {function}".encode(), key=self.secret, digest_size=8)
        for array in (*message.shared, *message.own):
            if isinstance(array, Tensor):
                digest.update(array.detach().contiguous().numpy().tobytes())
        return torch.Generator().manual_seed(int.from_bytes(digest.digest(), "big") >> 1)

    def covered(
        self, body: Sequence[Tensor], message: Message, from_zero: Sequence[int], generator: torch.Generator
    ) -> tuple[Tensor, ...]:
        """A reply in which every number is covered by noise, counted from what the client was sent."""
        for array in body:
            if array.numel() and not array.is_floating_point():
                raise ValueError(
                    f"the reply holds an array of {str(array.dtype).removeprefix('torch.')}, which noise cannot cover: "
                    "use a method that sends only models, such as fedavg or fedcedar, or run without privacy."
                )
        starts = references(message, body, from_zero)
        changes = [array if sent is None else array - sent for array, sent in zip(body, starts)]
        length = float(sum(change.double().square().sum() for change in changes)) ** 0.5
        shrink = min(1.0, self.clip / length) if length else 1.0
        out = []
        for change, sent in zip(changes, starts):
            noise = torch.randn(change.shape, generator=generator, dtype=torch.double) * (self.noise * self.clip)
            safe = (change.double() * shrink + noise).to(change.dtype)
            out.append(safe if sent is None else sent + safe)
        return tuple(out)

    # ---- accounting
    def epsilon(self, releases: Iterable[tuple[int, float]]) -> float:
        """Epsilon of the client with the largest, for (number of releases, sampling rate) of each client."""
        return max((self._epsilon(count, rate) for count, rate in set(releases) if count), default=0.0)

    def _epsilon(self, count: int, rate: float) -> float:
        import dp_accounting
        from absl import logging

        verbosity = logging.get_verbosity()
        logging.set_verbosity(logging.ERROR)  # orders that do not converge are left out, which is safe
        try:
            accountant = dp_accounting.rdp.RdpAccountant()
            if self.level == "client":
                # two replies are up to 2 · clip apart
                event: Any = dp_accounting.GaussianDpEvent(self.noise / 2)
            else:
                event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(self.noise))
            accountant.compose(dp_accounting.SelfComposedDpEvent(event, count))
            return float(accountant.get_epsilon(self.delta))
        finally:
            logging.set_verbosity(verbosity)

    def to_summary(self) -> dict[str, Any]:
        shown = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "secret"}
        return {**shown, "covers": "replies; not the number of examples, nor scores"}


class PrivateData(Data):
    """A client's examples under example-level privacy: they can be seen only through noisy gradients."""

    def __init__(self, data: Data, privacy: Privacy, batch_size: int, generator: torch.Generator) -> None:
        super().__init__(_hidden, _hidden, data.classes, _hidden)
        self._open, self._privacy, self._batch_size = data, privacy, batch_size
        self._generator = generator
        self.released = 0
        """Number of noisy gradients so far."""

    def gradients(
        self, of_examples: Gradient, parameters: Sequence[Tensor], epochs: int, steps: int | None
    ) -> Iterator[list[Tensor]]:
        """DP-SGD's gradient for each step: of Poisson samples, each example's clipped, with noise."""
        examples, privacy = self._open.train, self._privacy
        count = len(examples.y)
        rate = sampling_rate(count, self._batch_size)
        for _ in range(steps if steps is not None else epochs * ceil(count / self._batch_size)):
            chosen = torch.rand(count, generator=self._generator) < rate
            sums = [torch.zeros(p.shape) for p in parameters]
            if bool(chosen.any()):
                sums = self._clipped_sum(of_examples, Examples(examples.x[chosen], examples.y[chosen]))
            self.released += 1
            spread = privacy.noise * privacy.clip
            yield [
                (total + spread * torch.randn(total.shape, generator=self._generator)) / (rate * count)
                for total in sums
            ]

    def _clipped_sum(self, of_examples: Gradient, chosen: Examples) -> list[Tensor]:
        total: list[Tensor] = []
        for x, y in zip(chosen.x.split(CHUNK), chosen.y.split(CHUNK)):
            slopes = of_examples(x, y)
            lengths = torch.stack([s.flatten(1).square().sum(1) for s in slopes]).sum(0).sqrt()
            shrink = (self._privacy.clip / lengths.clamp(min=1e-12)).clamp(max=1.0)
            parts = [torch.tensordot(shrink, s, dims=1) for s in slopes]
            total = [a + b for a, b in zip(total, parts)] if total else parts
        return total


def sampling_rate(examples: int, batch_size: int) -> float:
    """Probability that an example is in a batch of DP-SGD."""
    return min(1.0, batch_size / examples)


def _hidden() -> Examples:
    raise PermissionError(
        "with --privacy example:… a client function sees examples only through the gradients of private SGD, and this "
        "method looks at them in another way: use fedavg, fedprox or fedcedar, or --privacy client:…"
    )
