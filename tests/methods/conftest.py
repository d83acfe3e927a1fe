"""A federation for tests that do not need one of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest

import fedkin
from fedkin.data.digits import load


@pytest.fixture(scope="module")
def fed():
    """Clients of unlike sizes."""
    data = load()
    data = replace(data, x=data.x[:400], y=data.y[:400])
    return fedkin.federate(data, partition="dirichlet", clients=6, alpha=0.5, minimum=20, seed=3)
