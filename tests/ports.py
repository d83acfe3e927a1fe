"""Ports for servers that tests start in other processes."""

from __future__ import annotations

import random
import socket

_given: set[int] = set()
_random = random.SystemRandom()  # tests that run at the same time, with the same seeds, must not choose alike


def free_port() -> int:
    """A free port that the system gives to nobody by itself.

    A port that the system chose, and that was closed again, may be given to another program before the server that
    it was meant for listens. The ports below 32768 are not given out on Linux, nor are they on macOS.
    """
    while True:
        port = _random.randrange(20_000, 32_000)
        if port in _given:
            continue
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        return port
