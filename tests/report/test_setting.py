"""The report says which settings of the training hold for all methods, and which for one."""

from __future__ import annotations

import fedkin
from fedkin.report.page_data import page_data
from fedkin.report.read import folders, load


def test_a_rate_of_ones_own_is_shown_with_its_method(tmp_path):
    clients = fedkin.federate("digits", clients=3, samples_per_client=40)
    fedkin.compare(["local,lr=0.02", "fedavg,lr=0.1", "fedprox"], clients, rounds=1, lr=0.3, epochs=2, out=tmp_path)
    shown = page_data([load(folder) for folder in folders([tmp_path])])
    assert dict(shown["setting"])["training"] == "lr by method, epochs 2, batch size 16, momentum 0, weight decay 0"
    assert [method["parameters"]["lr"] for method in shown["methods"]] == [0.02, 0.1, 0.3]
    assert all("epochs" not in method["parameters"] for method in shown["methods"])
    assert shown["reference"] == "local,lr=0.02"


def test_one_rate_for_all_is_shown_once(tmp_path):
    clients = fedkin.federate("digits", clients=3, samples_per_client=40)
    fedkin.compare(["local", "fedavg"], clients, rounds=1, lr=0.3, out=tmp_path)
    shown = page_data([load(folder) for folder in folders([tmp_path])])
    assert dict(shown["setting"])["training"].startswith("lr 0.3, epochs 1")
    assert all("lr" not in method["parameters"] for method in shown["methods"])
