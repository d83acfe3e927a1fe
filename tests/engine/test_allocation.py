"""A training process keeps memory that it frees: it needs it again in the next step."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fedkin.engine.allocation import keep_freed_memory

STEPS = """
import resource, torch
from fedkin.engine.allocation import keep_freed_memory
keep_freed_memory()
def step():
    arrays = [torch.ones(1_000_000) for _ in range(8)]
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.processes
@pytest.mark.skipif(not keep_freed_memory(), reason="the C library of this system has no mallopt")
def test_steps_use_the_memory_of_earlier_ones():
    """The system provides fewer new pages for 20 steps than one step needs. Without the setting it is more than twice
    as many, and up to all of them."""
    done = subprocess.run([sys.executable, "-c", STEPS], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 8 * 4_000_000 // 4096
