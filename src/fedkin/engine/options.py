"""Settings of a run."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal

from fedkin.bounds import Bound, Count, FractionBelow1, NonNegative, PositiveFraction, Whole, check
from fedkin.engine.faults import FaultPlan
from fedkin.protocol import Training
from fedkin.robust.attacks import Attack
from fedkin.robust.defenses import Defense
from fedkin.robust.privacy import Privacy

Rate = Annotated[float, Bound(least=1, most=1e18)]


@dataclass(frozen=True)
class Options:
    """How a run is carried out."""

    rounds: Count = 20
    """Rounds of communication."""
    participation: PositiveFraction = 1.0
    """Fraction of the clients that take part in a round."""
    seed: Whole = 0
    """Seed of everything random: the same seed gives the same bits."""
    evaluate_every: Whole = 10
    """Rounds between evaluations of all clients (0: only after the last round). After the other rounds, the
    participants of the next one are measured."""
    curves: bool = True
    """Measure the participants after rounds in which not all clients are evaluated. no-curves saves about a fifth of
    the time."""
    engine: Literal["pool", "serial", "ray"] = "pool"
    """pool: worker processes. serial: one client after another in this process, for debugging. ray: a Ray cluster."""
    ray_address: str = ""
    """Ray cluster to join (auto, or host:port); by default RAY_ADDRESS, or else a new one on this machine."""
    workers: Whole = 0
    """Worker processes; 0: one for each core. The results do not depend on it."""
    device: str = "cpu"
    """Where clients compute: cpu, cuda (all GPUs), cuda:0,1, mps, or auto. Workers are spread over the devices."""
    amp: bool = False
    """Mixed precision on an accelerator: bfloat16 inside the network, float32 elsewhere."""
    deterministic: bool = False
    """On an accelerator, use only deterministic kernels; an operation without one is an error. The same seed
    then gives the same bits on the same kind of device with the same versions. On a CPU it always does."""
    time_limit: NonNegative = 0.0
    """Seconds to wait for a client's answer; 0: 20 times the longest so far, at least a minute, and an hour before
    there is any."""
    lost: FractionBelow1 = 0.0
    """Fraction of the replies that get lost on the way, at random: the same as --faults drop=…"""
    faults: str = ""
    """Faults of clients to simulate, and how often: drop=0.3,slow=0.1,nan=0.05,shape=0.02,huge=0.01."""
    attack: str = ""
    """Hostile clients to simulate, as NAME:FRACTION or NAME:FRACTION:STRENGTH: scale, signflip, noise, freerider,
    labelflip or backdoor, such as signflip:0.2."""
    defend: str = ""
    """Defense of the server against hostile replies, as NAME or NAME:NUMBER: normbound, median, trimmed, krum,
    multikrum, or report, which only names outliers."""
    privacy: str = ""
    """Differential privacy of what clients send: client:clip=1,noise=1.1 for all of a client's data, or
    example:clip=1,noise=1.1 for single examples; also delta (1e-5)."""
    link_rate: Rate = 2e6
    """Bits per second of a simulated client's link."""
    device_rate: Rate = 1e10
    """FLOPs per second of a simulated client."""
    spread: Annotated[float, Bound(least=0, most=10)] = 0.0
    """Spread of the simulated clients' links and processors (standard deviation of the logarithm of their rates)."""
    arrive: dict[int, int] = field(default_factory=dict)
    """Client and the first round in which it is present, in pairs: 7 3 8 5. All others are present from the start."""
    leave: dict[int, int] = field(default_factory=dict)
    """Client and the first round in which it is absent, in pairs: 7 3 8 5. It does not come back."""
    checkpoint_every: Count = 5
    """Rounds between checkpoints."""
    save_models: bool = True
    """Keep each client's final personal model."""

    def __post_init__(self) -> None:
        check(self)
        FaultPlan.read(self.faults, self.lost)
        Attack.read(self.attack)
        Defense.read(self.defend)
        Privacy.read(self.privacy)


# Options that may change when a run is resumed: no result depends on them.
RESUMABLE = {"engine", "ray_address", "workers", "rounds", "checkpoint_every", "save_models"}


def settled(options: Options, training: Training, settings: dict[str, Any]) -> tuple[Options, Training]:
    """Options and training updated with the settings of a call to `run`."""
    known = {f.name for f in fields(Options)}, {f.name for f in fields(Training)}
    unknown = [name for name in settings if name not in known[0] | known[1]]
    if unknown:
        raise ValueError(f"run() has no setting {', '.join(unknown)}; it has {', '.join(sorted(known[0] | known[1]))}.")
    options = replace(options, **{k: v for k, v in settings.items() if k in known[0]})
    training = replace(training, **{k: v for k, v in settings.items() if k in known[1]})
    return options, training
