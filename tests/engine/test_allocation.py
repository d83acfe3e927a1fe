"""A training process keeps memory that it frees: it needs it again in the next step."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fedkin.engine.allocation import keep_freed_memory

STEPS = """
import resource, torch
from fedkin.engine.allocation import keep_freed_memory
{keep}
def step():
    arrays = [torch.ones(1_000_000) for _ in range(8)]
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(keep: str) -> int:
    """Pages that the system had to provide in 20 steps, after a first one."""
    code = STEPS.format(keep=keep)
    return int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


@pytest.mark.processes
@pytest.mark.skipif(not keep_freed_memory(), reason="the C library of this system has no mallopt")
def test_steps_use_the_memory_of_earlier_ones():
    pages = 8 * 4_000_000 // 4096
    assert faults("keep_freed_memory()") < pages, "less than one step's"
    assert faults("") > 10 * pages, "of 20 steps without the setting: else it would not be needed"
