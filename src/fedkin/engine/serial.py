"""The one-by-one engine, for debugging: everything in this process, errors raised with round, client and hook."""

from __future__ import annotations

import torch

from fedkin.engine.runner import ClientError, ClientRunner, Outcome, RunSpec, Task
from fedkin.protocol import Message


class Serial:
    def __init__(self, spec: RunSpec) -> None:
        self._runner = ClientRunner(spec)

    def run(self, tasks: list[Task], message: Message) -> list[Outcome]:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as in a worker, for the same bits
        try:
            out = []
            for task in tasks:
                outcome = self._runner.perform(task, copied(message.for_position(task.position)))
                if outcome.error:
                    raise ClientError(f"{outcome.error}\n\n{outcome.trace}")
                out.append(outcome)
            return out
        finally:
            torch.set_num_threads(threads)

    def close(self) -> None:
        pass


def copied(message: Message) -> Message:
    """A client may write into what it received; nobody else is to see that."""
    return Message(
        tuple(a.clone() for a in message.shared), tuple(a.clone() if hasattr(a, "clone") else a for a in message.own)
    )
