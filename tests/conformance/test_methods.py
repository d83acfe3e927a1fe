"""Every method of this literal list has every property of `fedkin verify`. A new method is one line here."""

from __future__ import annotations

import pytest

from fedkin.conformance import PROPERTIES
from fedkin.methods import METHODS, method

NAMES = [
    "local",
    "fedavg",
    "fedavg-ft",
    "fedprox",
]


def test_the_list_is_complete():
    assert list(METHODS) == NAMES


@pytest.mark.parametrize("label", PROPERTIES)
@pytest.mark.parametrize("name", NAMES)
def test_property(name, label):
    PROPERTIES[label](method(name))
