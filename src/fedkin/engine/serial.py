"""The serial engine, for debugging: everything in this process. The first error of a client's code stops the run."""

from __future__ import annotations

from collections.abc import Sequence

from fedkin.engine.ahead import copied
from fedkin.engine.device import open_device
from fedkin.engine.runner import ClientError, ClientRunner, Outcome, RunSpec, Task, Work
from fedkin.maths.threads import one_thread
from fedkin.protocol import Message


class Serial:
    def __init__(self, spec: RunSpec, device: str = "cpu") -> None:
        self._runner = ClientRunner(spec, device=open_device(device))

    def run(self, work: Sequence[Work], message: Message) -> list[Outcome]:
        outcomes = []
        with one_thread():  # as in a worker, for the same bits
            for item in work:
                outcome = self._runner.perform(item, copied(message.for_position(item.position)))
                simulated = isinstance(item, Task) and item.fault
                if (why := outcome.error or outcome.unmeasured) and not simulated and outcome.kind != "storage":
                    raise ClientError(why, outcome.trace)
                outcomes.append(outcome)
        return outcomes

    def close(self) -> None:
        pass
