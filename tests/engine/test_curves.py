"""A learning curve shows one thing: round k is the state after its merge, wherever it was measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import fedkin
from fedkin.engine.trackers import Tracker
from fedkin.methods import METHODS
from fedkin.methods.fedavg import FedAvg
from fedkin.report import read
from fedkin.report.page_data import page_data
from fedkin.results.history import History


@pytest.fixture(scope="module")
def fed() -> fedkin.Federation:
    return fedkin.federate("digits", clients=6, samples_per_client=40, seed=2)


SETTINGS = {"rounds": 7, "lr": 0.1, "participation": 0.7, "lost": 0.2, "engine": "serial"}


def tables(history: History, scope: str) -> dict[tuple[int, str], dict[int, float]]:
    out: dict[tuple[int, str], dict[int, float]] = {}
    for record in history.records:
        if record.scope == scope and record.client is not None and record.metric not in ("note", "unmeasured"):
            out.setdefault((record.round, record.metric), {})[record.client] = record.value
    return out


def agree(method, fed, *, from_start: bool = True, **changes) -> None:
    """What participants are scored with in round k + 1 is what an evaluation after round k gives them. Without
    `from_start` the first round sends something else than an evaluation before it would, so that is not measured."""
    settings = {**SETTINGS, **changes}
    often = fedkin.run(method, fed, evaluate_every=1, **settings)
    seldom = fedkin.run(method, fed, evaluate_every=4, **settings)
    truth, shown = tables(often.history, "all"), tables(seldom.history, "participants")
    rounds = {round for round, _ in shown}
    expected_rounds = {0, 1, 2, 3, 5, 6} if from_start else {1, 2, 3, 5, 6}
    assert rounds == expected_rounds, "no round twice: after rounds 4 and 7 all clients are evaluated"
    for (round, metric), values in shown.items():
        if round:
            expected = [truth[round, metric][client] for client in values]
            # not to the bit: send() for some clients may round otherwise than for all
            np.testing.assert_allclose([*values.values()], expected, rtol=1e-4, atol=1e-5, err_msg=f"{round} {metric}")
    everybody = tables(seldom.history, "all")
    assert {round for round, _ in everybody} == {4, 7}
    assert all(everybody[key] == truth[key] for key in everybody), "measuring changes nothing"


@pytest.mark.parametrize(
    "name", ["local", "fedavg", "fedavg-ft", "ditto", "fedrep", "knnper", "scaffold", "fedbn", "pfedgat-v2", "fedcedar"]
)
def test_participants_show_the_state_after_the_round_before(fed, name):
    agree(fedkin.method(name), fed)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("pflic", {"clusters": 2, "restarts": 2, "stable_rounds": 2}),  # several exchanges in a round
        ("dcpfl", {"tau": 1, "start_rounds": 2, "window": 1, "patience": 1}),  # and trials
    ],
)
def test_also_where_a_round_has_several_exchanges(fed, name, fields):
    agree(fedkin.method(name, **fields), fed, lost=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_method(fed, name):
    agree(fedkin.method(name), fed, from_start=name != "feddbe")  # FedDBE measures its mean features first


@dataclass(frozen=True)
class Careless(FedAvg):
    """Writes into its message and its state, and uses random numbers to predict."""

    def local(self, client, message):
        reply = super().local(client, message)
        for array in message.shared:
            array.zero_()
        count = client.state.setdefault("count", 0)
        client.state["count"] = count + 1
        torch.rand(3)
        return reply._replace(state=client.state)

    def init_client(self):
        return {"count": 0}

    def personal(self, client, message, trained):
        row = trained().body[0]
        return row * (1 + client.state["count"] / 10 + torch.rand(1).item() / 10)


def test_what_the_work_writes_to_does_not_matter(fed):
    agree(Careless(), fed)


@dataclass(frozen=True)
class Other(FedAvg):
    """Sends its participants something else than `send` makes: there is nothing to learn about the round before."""

    def round(self, state, clients):
        sent = self.send({**state, "model": state["model"] * 2}, clients.ids)
        return self.merge(state, sent, clients.run(self.local, sent))


def test_a_message_that_is_not_that_of_an_evaluation_is_not_measured(fed):
    history = fedkin.run(Other(), fed, evaluate_every=4, **SETTINGS).history
    assert tables(history, "participants") == {}
    assert {round for round, _ in tables(history, "all")} == {4, 7}


def test_the_report_draws_each_state_once(fed, tmp_path):
    out = tmp_path / "seldom"
    fedkin.run("fedavg", fed, evaluate_every=4, out=out, save_models=False, **{**SETTINGS, "participation": 1.0})
    often = fedkin.run("fedavg", fed, evaluate_every=1, **{**SETTINGS, "participation": 1.0})
    curve = page_data([read.load(out)])["methods"][0]["curves"]["personal"]
    assert curve["round"] == [1, 2, 3, 4, 5, 6, 7]
    expected = [np.mean(list(often.history.values("personal", round=r).values())) for r in range(1, 8)]
    np.testing.assert_allclose(curve["mean"], expected, atol=1e-5)


def test_without_curves_the_numbers_are_the_same_and_only_evaluations_of_all_are_recorded(fed):
    settings = {**SETTINGS, "evaluate_every": 4}
    short, long = (fedkin.run("ditto", fed, curves=curves, **settings) for curves in (False, True))
    assert short.history.rounds("personal") == [4, short.summary["rounds"]]
    assert {record.scope for record in short.history.select("personal")} == {"all"}
    for round in short.history.rounds("personal"):
        assert short.history.values("personal", round=round) == long.history.values("personal", round=round)


def test_scores_of_the_state_before_a_round_are_not_drawn(fed, tmp_path):
    """As histories of fedkin 0.1 have them."""
    fedkin.run("fedavg", fed, rounds=2, evaluate_every=0, out=tmp_path, save_models=False, engine="serial")
    history = History.load(tmp_path)
    made = History(tmp_path / "history.jsonl")
    for record in history.records:
        made.add(*record[:4], "round" if record.scope == "participants" else record.scope)
    made.close()
    (tmp_path / "checksums.json").unlink()
    assert page_data([read.load(tmp_path)])["methods"][0]["curves"]["personal"]["round"] == [2]


class Seen(Tracker):
    def __init__(self) -> None:
        self.scores: dict[int, list[float]] = {}

    def round(self, round, metrics):
        if "personal" in metrics:
            self.participants(round, metrics)

    def participants(self, round, metrics):
        self.scores.setdefault(round, []).append(metrics["personal"])


def test_trackers_hear_of_each_state_once(fed):
    seen, settings = Seen(), {**SETTINGS, "participation": 1.0, "lost": 0.0}
    fedkin.run("fedavg", fed, evaluate_every=4, trackers=[seen], **settings)
    often = fedkin.run("fedavg", fed, evaluate_every=1, **settings)
    assert list(seen.scores) == [0, 1, 2, 3, 4, 5, 6, 7]
    for round in range(1, 8):
        values = often.history.values("personal", round=round).values()
        assert seen.scores[round] == [pytest.approx(np.mean([*values]))]
