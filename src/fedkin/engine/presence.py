"""Clients that come and go: who is present in which round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from fedkin.protocol import Server


class Presence:
    """`arrive` and `leave` map a client to the first round in which it is present, or absent from then on."""

    def __init__(self, fed: Server, arrive: Mapping[int, int], leave: Mapping[int, int], rounds: int) -> None:
        self._fed, self._arrive, self._leave = fed, arrive, leave
        for word, times in (("arrive", arrive), ("leave", leave)):
            for client in times:
                if not 0 <= client < fed.size:
                    raise ValueError(f"{word} names client {client}; there are clients 0 to {fed.size - 1}.")
        for client in arrive.keys() | leave.keys():
            first, gone = arrive.get(client, 1), leave.get(client)
            if first < 1 or (gone is not None and gone <= first):
                raise ValueError(
                    f"Client {client} arrives in round {first} and leaves in round {gone}: it must arrive in round 1 "
                    "or later, and leave after that."
                )
        # who is present changes only in these rounds
        for round in sorted({1, *arrive.values(), *leave.values()}):
            if round <= rounds and not len(self.server(round).ids):
                raise ValueError(f"Nobody is present in round {round}: change arrive={dict(arrive)} or leave.")

    def server(self, round: int) -> Server:
        """The server's view of the federation in this round."""
        if not self._arrive and not self._leave:
            return self._fed
        present = [c for c in range(self._fed.size) if self._arrive.get(c, 1) <= round < self._leave.get(c, round + 1)]
        return replace(self._fed, ids=torch.tensor(present, dtype=torch.long))
