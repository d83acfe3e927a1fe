"""Every method with a paper can be cited."""

from __future__ import annotations

from fedkin.methods import METHODS
from fedkin.results.citation import BIBTEX, citation


def test_every_method_with_a_paper_has_its_entry():
    for name, entry in METHODS.items():
        assert not entry.paper or citation([name]).count("@") == 2, name


def test_a_variant_cites_its_method_once():
    assert citation(["fedavg", "fedavg-ft", "fedprox,mu=1"]).count("@") == 3


def test_entries_are_whole():
    for name, text in BIBTEX.items():
        assert text.count("{") == text.count("}"), name
        assert all(word in text for word in ("title", "author", "year")), name
