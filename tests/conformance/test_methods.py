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
    "fedcedar",
    "fedcedar-soft",
    "fedcedar-memory",
    "fedcedar-as1",
    "fedcedar-as2",
    "fedcedar-as3",
    "pflic",
    "pflic-restarts",
    "dcpfl",
    "dcpfl-nola",
    "dcpfl-nodc",
    "fedamp",
    "heurfedamp",
    "perfedavg",
    "perfedavg-hf",
    "scaffold",
    "ifca",
    "ifca-shared",
    "fednova",
    "pfedme",
    "cfl",
    "moon",
    "fedbn",
    "fedsem",
    "fedrod",
    "fedrod-hyper",
    "sfl",
    "sfl-star",
    "knnper",
    "pfedgat",
    "pfedgat-v2",
    "pfedgat-direct",
    "pfedgat-v2-direct",
    "fedah",
    "clusterfl",
    "clusterfl-kmeans",
    "pfedbayes",
    "pfedhn",
    "pfedhn-pc",
    "clustered-sampling",
    "clustered-sampling-2",
    "ditto",
    "apfl",
    "pfedgraph",
    "fedfomo",
    "fedrep",
    "fedper",
    "fedala",
    "fedaghn",
    "lg-fedavg",
    "fedbabu",
    "fedgroup",
    "fedavg-lpft",
    "feddbe",
    "pfedfda",
    "fedpac",
    "fedproto",
    "floco",
    "floco-plus",
    "fedas",
    "fedcp",
    "gpfl",
    "kin",
    "kin-lite",
]


def test_the_list_is_complete():
    assert list(METHODS) == NAMES


ENGINES = "engines agree to the bit"
OF_EVERY_NAME = {ENGINES, "lost replies are survived", "rows of the mixing matrix sum to 1"}
"""Checked for named variants too; their other properties, which they share with their class, are in the slow set."""


def cases():
    classes = set()
    for name in NAMES:
        variant = METHODS[name].target in classes
        classes.add(METHODS[name].target)
        for label in PROPERTIES:
            marks = [pytest.mark.processes] if label == ENGINES else []
            marks += [pytest.mark.slow] if variant and label not in OF_EVERY_NAME else []
            yield pytest.param(name, label, marks=marks, id=f"{name}-{label}")


def test_the_properties_of_every_name_exist():
    assert set(PROPERTIES) >= OF_EVERY_NAME


@pytest.mark.parametrize(("name", "label"), list(cases()))
def test_property(name, label):
    PROPERTIES[label](method(name))
