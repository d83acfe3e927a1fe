"""The serial engine, for debugging: everything in this process. The first error of a client's code stops the run."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedkin.engine.ahead import copied
from fedkin.engine.device import open_device
from fedkin.engine.runner import ClientError, ClientRunner, Outcome, RunSpec, Task, Work
from fedkin.protocol import Message


class Serial:
    def __init__(self, spec: RunSpec, device: str = "cpu") -> None:
        self._runner = ClientRunner(spec, device=open_device(device))

    def run(self, work: Sequence[Work], message: Message) -> list[Outcome]:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as in a worker, for the same bits
        try:
            outcomes = []
            for item in work:
                outcome = self._runner.perform(item, copied(message.for_position(item.position)))
                simulated = isinstance(item, Task) and item.fault
                if (why := outcome.error or outcome.unmeasured) and not simulated and outcome.kind != "storage":
                    raise ClientError(why, outcome.trace)
                outcomes.append(outcome)
            return outcomes
        finally:
            torch.set_num_threads(threads)

    def close(self) -> None:
        pass
