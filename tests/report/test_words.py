"""Charts and tables use the names that the data has, and words that a reader understands."""

import matplotlib
import pytest

from fedkin.report import figures, page
from fedkin.report.words import KNOWN, class_names, partition_words


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({"federation": {"data": "own"}, "inputs": {"class_names": ["ill", "well"]}}, ["ill", "well"]),
        ({"federation": {"data": "own"}, "inputs": {"class_names": ["1", "2"]}}, ["1", "2"]),
        ({"federation": {"data": "own", "preprocessing": {"classes": ["no", "yes"]}}}, ["no", "yes"]),
        ({"federation": {"data": "own", "preprocessing": {"classes": ["0", "1"]}}}, None),
        ({"federation": {"data": "digits"}, "inputs": {"class_names": []}}, None),
        ({"federation": {"data": "har"}, "inputs": {"class_names": []}}, list(KNOWN["har"])),
        ({"federation": {}}, None),
    ],
)
def test_class_names(config, names):
    assert class_names(config) == names


def test_every_known_data_set_has_a_name_for_each_class():
    assert {name: len(names) for name, names in KNOWN.items()} == {"cifar10": 10, "fashion-mnist": 10, "har": 6}


def test_the_settings_say_in_words_whose_clients_they_are(hospitals):
    assert dict(page.build([hospitals])["setting"])["partition"] == "the data's own clients"
    assert partition_words("dirichlet") == "dirichlet"


def test_the_figure_of_the_partition_names_classes_and_clients(hospitals, comparison):
    with matplotlib.rc_context(figures.STYLE):
        (axes,) = figures.partition(page.build([hospitals])).axes
        (numbered,) = figures.partition(page.build([comparison])).axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["healthy", "ill"]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["north", "south", "west"]
    assert not any("client" in text.get_text() for text in numbered.get_xticklabels())
