"""The script that compares results before and after a change does notice a difference."""

from __future__ import annotations

from fedkin.methods import METHODS
from scripts.same_histories import METHODS as COMPARED
from scripts.same_histories import difference

RECORDS = ['{"round": 1, "value": 0.5}', '{"round": 2, "value": 0.25}']


def test_equal_histories_have_no_difference():
    assert difference(RECORDS, list(RECORDS)) == ""


def test_the_first_record_that_differs_is_named():
    other = [RECORDS[0], '{"round": 2, "value": 0.26}']
    assert difference(RECORDS, other) == f"record 2 was {RECORDS[1]} and is {other[1]}"


def test_a_missing_record_is_noticed():
    assert difference(RECORDS, RECORDS[:1]) == "2 records became 1"
    assert difference([], RECORDS) == "0 records became 2"


def test_ten_methods_are_compared():
    assert len(set(COMPARED) & set(METHODS)) == 10
