"""The defaults that decide whether a method is its paper's: a change of one of them must be meant."""

from __future__ import annotations

import pytest

import fedkin
from fedkin.experiments.papers import dcpfl, fedcedar, pfedgat

DEFAULTS = {
    # sec. 4.1: P = 2, K = 5; sec. 3.5: a client that was away gets the plain mean of the clusters
    "fedcedar": {"propagations": 2, "clusters": 5, "memory": 0, "weighting": "equal", "features": "weights"},
    "fedcedar-memory": {"memory": 10, "weighting": "size"},
    # one start, an empty cluster keeps its model; ours is the variant
    "pflic": {"restarts": 1, "reseed_empty": False, "shared": ("-1",)},
    "pflic-restarts": {"restarts": 3, "reseed_empty": True},
    # sec. 4.1: 8 heads, slope 0.2, SGD 0.01; algorithm 1 trains before it measures
    "pfedgat": {"use": "trained", "heads": 8, "slope": 0.2, "gat_optimizer": "sgd", "gat_lr": 0.01, "prior": 0.0},
    # sec. V-A; S over the whole model, a share of the sum over layers; the round is the interval
    "dcpfl": {
        "start_rounds": 5, "step": 0.2, "patience": 3, "hold": 6, "window": 5, "alpha": 3, "low": 0.1, "tau": 0,
        "layer_scale": "model", "layer_reference": "sum", "scale": "common",
    },
    "dcpfl-nodc": {"dynamic": False, "gamma": 0.8},
    # this round's answers, not models that are many rounds old
    "fedsem": {"average": "round", "first": "kmeans"},
    "sfl": {"average": "round"},
    "sfl-star": {"average": "round"},
    "pfedhn": {"step": "mean", "inner_clip": 50.0, "server_clip": 50.0},
    "pfedbayes": {"rho": -5.0, "keep_adam": True, "updates": 5},
    "fedbabu": {"fine_tune_epochs": 5},
    "cfl": {"scale": "relative", "wait": 5},
    "clusterfl": {"alpha": 0.1, "beta": 0.1, "rho": 0.8},
    "floco": {"endpoints": 10, "rho": 0.1},
}  # fmt: skip


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults(name):
    method = fedkin.method(name)
    assert {field: getattr(method, field) for field in DEFAULTS[name]} == DEFAULTS[name]


def test_without_gat_is_its_counterpart_in_all_but_the_attention():
    """Table 4 of pFedGAT, as it is run: the same optimizer, rate, prior and model to use."""
    labels = {cell.row: cell.method for cell in pfedgat.ITEMS["table4"].cells}
    for without, counterpart in (("without GAT", "pFedGAT"), ("v2 without GAT (ours)", "pFedGAT v2 (ours)")):
        one, other = fedkin.method(labels[without]), fedkin.method(labels[counterpart])
        assert one.attention == "direct" != other.attention
        for field in ("gat_optimizer", "gat_lr", "prior", "feedback", "feedback_split", "use"):
            assert getattr(one, field) == getattr(other, field), field


def test_naive_dynamic_is_one_group_for_50_rounds_and_then_two():
    """Figure 3 of DC-PFL; figure 2 and 3 group by the KLD of the data."""
    labels = {cell.row: cell.method for cell in dcpfl.ITEMS["fig3"].cells}
    assert "split_after=50" in labels["naive dynamic"]
    assert "oracle=count:2" in labels["naive dynamic"]
    assert all("oracle=share:" in cell.method for cell in dcpfl.ITEMS["fig2"].cells)
    assert all(cell.setting.rounds > 50 for cell in dcpfl.ITEMS["fig3"].cells)
    assert all(cell.desk is None or cell.desk.rounds > 50 for cell in dcpfl.ITEMS["fig3"].cells)


def test_every_method_with_clusters_has_the_same_number_in_fedcedars_table():
    rows = {cell.row: fedkin.method(cell.method) for cell in fedcedar.ITEMS["table1"].cells}
    assert {row: method.clusters for row, method in rows.items() if hasattr(method, "clusters")} == dict.fromkeys(
        ("FedCEDAR", "FedCEDAR soft (ours)", "FedCEDAR memory (ours)", "IFCA", "FedSem"), 5
    )
    assert "FedAvg fine-tuned (ours)" in rows
