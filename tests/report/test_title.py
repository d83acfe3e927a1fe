"""The page's title names the user's folder, not fedkin's words for it."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from fedkin.report.page_data import _title

FOLDER = {"data": "own", "data_options": {"folder": "/home/me/hospitals"}, "partition": "by_group", "clients": 4}
DIGITS = {"data": "digits", "data_options": {}, "partition": "rotated", "clients": 8}


@pytest.mark.parametrize(
    ("federation", "title"),
    [(FOLDER, "kin on hospitals, 4 clients"), (DIGITS, "kin on digits, rotated partition")],
)
def test_the_title_names_the_data(federation, title):
    run = SimpleNamespace(config={"federation": federation}, folder=Path("x"))
    assert _title({"kin": [run]}) == title
