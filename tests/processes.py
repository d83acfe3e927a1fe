"""Looking at processes that tests start, and waiting for their end. Only where there is /proc, that is on Linux."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="it looks at processes in /proc, which is Linux's")


def family(pid: int) -> list[int]:
    """A process and everything that it started, and what that started."""
    out = [pid]
    for one in out:
        for thread in Path(f"/proc/{one}/task").glob("*/children"):
            try:
                out += [int(word) for word in thread.read_text().split()]
            except OSError:  # it has just ended
                continue
    return out


def wait_until_gone(pids: Iterable[int]) -> None:
    """Returns when all of these processes have ended. The system says so: nothing is looked at again and again."""
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            select.select([handle], [], [])
        finally:
            os.close(handle)
