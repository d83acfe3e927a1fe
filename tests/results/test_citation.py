"""Every method with a paper can be cited."""

from __future__ import annotations

import pytest

from fedkin.methods import METHODS
from fedkin.results.citation import citation


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_what_it_is(name):
    kind = METHODS[name].load()
    assert kind.travels
    assert kind.stays
    assert not kind.paper or citation([name]).count("@") >= 2, "a method with a paper has its entry"


def test_a_variant_cites_its_method_once():
    assert citation(["fedavg", "fedavg-ft", "fedprox,mu=1"]).count("@") == 3


@pytest.mark.parametrize("name", METHODS)
def test_entries_are_whole(name):
    text = METHODS[name].load().citation
    assert text.count("{") == text.count("}")
    assert not text or all(word in text for word in ("title", "author", "year"))
