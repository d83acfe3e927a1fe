"""Settings of a run, checked."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from fedkin.protocol import Training


@dataclass(frozen=True)
class Options:
    """How a run is carried out."""

    rounds: int = 20
    """Rounds of communication."""
    participation: float = 1.0
    """Share of the clients that take part in a round."""
    seed: int = 0
    """Seed of everything random: the same seed gives the same bits."""
    evaluate_every: int = 10
    """Measure all clients every so many rounds (0: only after the last); other rounds measure the participants."""
    engine: Literal["pool", "serial", "ray"] = "pool"
    """pool: worker processes. serial: one client after the other in this process, for debugging. ray: a Ray cluster."""
    ray_address: str = ""
    """Ray cluster to join (auto, or host:port); where not given: RAY_ADDRESS, or else one of its own here."""
    workers: int = 0
    """Worker processes; 0: one for each core. The results do not depend on it."""
    time_limit: float = 0.0
    """Seconds after which a client's answer is no longer waited for; 0: no limit."""
    lost: float = 0.0
    """Share of the replies that get lost on the way, at random."""
    link_rate: float = 2e6
    """Bits a second of a simulated client's link."""
    device_rate: float = 1e10
    """FLOPs a second of a simulated client."""
    spread: float = 0.0
    """How unlike the simulated clients' links and processors are (std of the logarithm)."""
    arrive: dict[int, int] = field(default_factory=dict)
    """Client and the first round in which it is there; the others are there from the start."""
    leave: dict[int, int] = field(default_factory=dict)
    """Client and the first round in which it is gone for ever."""
    checkpoint_every: int = 5
    """Rounds between checkpoints."""
    save_models: bool = True
    """Keep each client's final personal model."""

    def __post_init__(self) -> None:
        wrong = [
            f"{name}={value} must {rule}"
            for name, value, good, rule in (
                ("rounds", self.rounds, self.rounds >= 1, "be at least 1"),
                ("participation", self.participation, 0 < self.participation <= 1, "lie in (0, 1]"),
                ("lost", self.lost, 0 <= self.lost < 1, "lie in [0, 1)"),
                ("workers", self.workers, self.workers >= 0, "be at least 0"),
                ("evaluate_every", self.evaluate_every, self.evaluate_every >= 0, "be at least 0"),
                ("checkpoint_every", self.checkpoint_every, self.checkpoint_every >= 1, "be at least 1"),
                ("link_rate", self.link_rate, self.link_rate > 0, "be above 0"),
                ("device_rate", self.device_rate, self.device_rate > 0, "be above 0"),
                ("spread", self.spread, self.spread >= 0, "be at least 0"),
                ("time_limit", self.time_limit, self.time_limit >= 0, "be at least 0"),
                ("seed", self.seed, self.seed >= 0, "be at least 0"),
                ("engine", self.engine, self.engine in ("pool", "serial", "ray"), "be pool, serial or ray"),
            )
            if not good
        ]
        if wrong:
            raise ValueError("; ".join(wrong) + ".")


# What may differ between a stopped run and the one that goes on with it: no number depends on these.
RESUMABLE = {"engine", "ray_address", "workers", "rounds", "checkpoint_every", "save_models"}


def settled(options: Options, training: Training, settings: dict[str, Any]) -> tuple[Options, Training]:
    known = {f.name for f in fields(Options)}, {f.name for f in fields(Training)}
    unknown = [name for name in settings if name not in known[0] | known[1]]
    if unknown:
        raise ValueError(
            f"run() knows no setting {', '.join(unknown)}; it knows {', '.join(sorted(known[0] | known[1]))}."
        )
    options = replace(options, **{k: v for k, v in settings.items() if k in known[0]})
    training = replace(training, **{k: v for k, v in settings.items() if k in known[1]})
    counts = training.epochs >= 1 and training.batch_size >= 1
    if not (training.lr > 0 and counts and 0 <= training.momentum < 1 and training.weight_decay >= 0):
        raise ValueError(
            f"{training}: lr must be above 0, epochs and batch_size at least 1, momentum in [0, 1), weight_decay at "
            "least 0."
        )
    return options, training
