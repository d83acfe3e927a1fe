"""How clients train: the settings of local training, and the learning rate of each round."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from fedkin.bounds import Count, FractionBelow1, NonNegative, Positive, PositiveFraction, Whole, check


@dataclass(frozen=True)
class Training:
    """How a client trains; the same for every method of a comparison."""

    lr: Positive = 0.05
    """Learning rate of local training."""
    epochs: Count = 1
    """Passes over the client's training examples per round."""
    batch_size: Count = 16
    """Examples per step; the last, smaller batch of an epoch is used too."""
    momentum: FractionBelow1 = 0.0
    """Momentum of SGD; it starts at zero in each round."""
    weight_decay: NonNegative = 0.0
    """L2 penalty on the parameters; with adamw, the fraction by which a step of rate 1 shrinks them."""
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """Optimizer of local training, as in torch.optim. It starts afresh in each round."""
    schedule: Literal["constant", "step", "cosine"] = "constant"
    """How the learning rate changes from round to round; within a round it is constant. step: by --decay-factor after
    every --decay-rounds rounds. cosine: along half a cosine, to almost zero after --decay-rounds rounds."""
    decay_rounds: Whole = 0
    """Rounds between the steps of the learning rate, or rounds of its cosine (warm-up included); 0: for a cosine, the
    rounds of the run."""
    decay_factor: PositiveFraction = 0.1
    """Factor of one step of the schedule `step`."""
    warmup: Whole = 0
    """First rounds, in which the learning rate rises linearly to its full value."""
    clip: NonNegative = 0.0
    """Largest L2 norm of the gradient of a step; a longer one is scaled down. 0: no limit."""
    augment: Literal["none", "crop", "flip", "crop+flip"] = "none"
    """Random changes of training images: shifted by up to 4 pixels, mirrored left to right, or both."""
    stop_after: Whole = 0
    """Stop a client's training in a round after this many epochs without a lower loss on its validation examples, and
    keep the epoch with the lowest. 0: never."""

    def __post_init__(self) -> None:
        check(self)
        if self.optimizer != "sgd" and self.momentum:
            raise ValueError(f"momentum={self.momentum} is for sgd; {self.optimizer} has its own: leave it out.")
        if self.schedule == "step" and not self.decay_rounds:
            raise ValueError("schedule=step needs decay_rounds: the rounds between two steps of the learning rate.")
        if self.schedule == "cosine" and self.decay_rounds and self.decay_rounds <= self.warmup:
            raise ValueError(f"decay_rounds={self.decay_rounds} must be above warmup={self.warmup}.")

    def settled(self, rounds: int) -> Training:
        """A copy with the length of the schedule filled in, for a run of this many rounds."""
        if self.schedule != "cosine" or self.decay_rounds:
            return self
        if rounds <= self.warmup:
            raise ValueError(f"A run of {rounds} rounds is too short for warmup={self.warmup} and a cosine after it.")
        return replace(self, decay_rounds=rounds)

    def at(self, round: int) -> Training:
        """The settings of one round, counted from 1, with the learning rate that the schedule gives."""
        factor = self.factor(round)
        return self if factor == 1.0 else replace(self, lr=self.lr * factor)

    def factor(self, round: int) -> float:
        """The learning rate of a round as a fraction of `lr`, as `torch.optim.lr_scheduler` computes it."""
        done = round - 1
        if done < self.warmup:
            return (done + 1) / (self.warmup + 1)
        done -= self.warmup
        if self.schedule == "step":
            return float(self.decay_factor ** (done // self.decay_rounds))
        if self.schedule == "cosine" and self.decay_rounds:
            length = self.decay_rounds - self.warmup
            return (1 + math.cos(math.pi * min(done, length - 1) / length)) / 2  # later rounds keep the last rate
        return 1.0
