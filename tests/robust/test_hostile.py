"""Runs with hostile clients: what attacks do, and what defenses keep."""

from __future__ import annotations

import json

import pytest
import torch

import fedkin
from fedkin.cli import main
from fedkin.methods import METHODS
from fedkin.protocol import Data, Examples
from fedkin.results.store import equal
from fedkin.robust.attacks import Attack, triggered
from fedkin.robust.defenses import NUMBERS

SETTINGS = {"rounds": 8, "engine": "serial", "evaluate_every": 0, "lr": 0.1, "save_models": False}


@pytest.fixture(scope="module")
def fed() -> fedkin.Federation:
    return fedkin.federate("digits", clients=10, partition="iid", seed=1)


@pytest.fixture(scope="module")
def clean(fed) -> float:
    return fedkin.run("fedavg", fed, **SETTINGS).summary["personal"]["mean"]


# ---- attacks
SENT, REPLY = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.5, 2.0, 2.0])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("scale:0.1", [501.0, 2.0, -997.0]),
        ("scale:0.1:2", [2.0, 2.0, 1.0]),
        ("signflip:0.1", [0.5, 2.0, 4.0]),
        ("freerider:0.1", [1.0, 2.0, 3.0]),
        ("labelflip:0.1", [1.5, 2.0, 2.0]),
    ],
)
def test_what_a_hostile_client_sends(text, expected):
    attack = Attack.read(text)
    assert attack is not None
    counts = torch.tensor([4])
    body = attack.body((REPLY, counts), (SENT, None), seed=3)
    torch.testing.assert_close(body[0], torch.tensor(expected))
    assert body[1] is counts


def test_noise_is_as_large_as_asked():
    attack = Attack("noise", 0.1, 10.0)
    sent, reply = torch.zeros(20_000), torch.full((20_000,), 0.3)
    (noise,) = attack.body((reply,), (sent,), seed=3)
    assert float(noise.std()) == pytest.approx(3.0, rel=0.05)
    assert torch.equal(noise, attack.body((reply,), (sent,), seed=3)[0])


def test_attacks_on_data():
    def data() -> Data:
        examples = Examples(torch.zeros(4, 1, 8, 8), torch.tensor([0, 1, 2, 9]))
        return Data(lambda: examples, lambda: examples, 10)

    assert Attack("labelflip", 0.1, 0).data(data()).y.tolist() == [9, 8, 7, 0]
    poisoned = Attack("backdoor", 0.1, 0.5).data(data())
    assert poisoned.y.tolist() == [0, 0, 2, 9]
    assert float(poisoned.x[:2, 0, :3, :3].min()) == 3.0
    assert float(poisoned.x[2:].abs().max()) == 0.0
    assert triggered(torch.zeros(2, 5)).sum(1).tolist() == [9.0, 9.0]


def test_the_hostile_are_a_function_of_the_seed():
    attack = Attack("scale", 0.3, 1.0)
    assert attack.hostile(10, 4) == attack.hostile(10, 4)
    assert len(attack.hostile(10, 4)) == 3
    assert len({tuple(attack.hostile(10, seed)) for seed in range(10)}) > 3
    assert len(Attack("scale", 0.01, 1.0).hostile(10, 0)) == 1
    assert len(Attack("scale", 0.99, 1.0).hostile(10, 0)) == 9


@pytest.mark.parametrize("text", ["signflip", "signflip:0", "signflip:1", "flip:0.2", "scale:0.1:-1", "scale:a",
                                  "backdoor:0.1:2", "scale:0.1:1:1", "scale:nan", "scale:0.1:inf"])  # fmt: skip
def test_attacks_that_are_none(fed, text):
    with pytest.raises(ValueError, match=r"is not an attack.*Known: scale"):
        fedkin.run("fedavg", fed, attack=text, **SETTINGS)


def test_labels_of_a_regression_cannot_be_flipped():
    with pytest.raises(ValueError, match="changes class labels"):
        Attack("labelflip", 0.2, 0).data(
            Data(
                lambda: Examples(torch.zeros(2, 3), torch.zeros(2)), lambda: Examples(torch.zeros(0), torch.zeros(0)), 1
            )
        )


# ---- runs
def test_attacks_hurt_without_a_defense(fed, clean):
    for attack in ("scale:0.2", "signflip:0.3:5"):
        broken = fedkin.run("fedavg", fed, attack=attack, **SETTINGS).summary
        assert broken["honest"]["mean"] < clean - 0.3, attack


@pytest.mark.parametrize("defense", [d for d in NUMBERS if d != "report"])
def test_defended_fedavg_keeps_its_accuracy(fed, clean, defense):
    assert clean > 0.8
    for attack in ("scale:0.2", "signflip:0.2:5", "noise:0.2"):
        summary = fedkin.run("fedavg", fed, attack=attack, defend=defense, **SETTINGS).summary
        kept = summary["honest"]["mean"]
        assert kept > clean - 0.1, (attack, kept, clean)
        if not attack.startswith("signflip"):
            assert {str(c) for c in summary["hostile"]} <= set(summary["outliers"]), "the report names them"


def test_what_is_written_down(fed):
    result = fedkin.run("fedavg", fed, attack="scale:0.2", defend="multikrum", **SETTINGS)
    hostile = result.summary["hostile"]
    assert len(hostile) == 2
    assert result.config["options"]["attack"] == "scale:0.2"
    assert result.config["options"]["defend"] == "multikrum"
    assert result.summary["left_out"] == {str(c): 8 for c in hostile}
    assert [r.client for r in result.history.select("hostile")] == hostile
    personal = result.history.values("personal", round=8)
    honest = [personal[c] for c in personal if c not in hostile]
    assert result.summary["honest"]["mean"] == pytest.approx(sum(honest) / 8)


def test_a_report_alone_changes_no_number(fed):
    plain = fedkin.run("fedavg", fed, **SETTINGS)
    watched = fedkin.run("fedavg", fed, defend="report", **SETTINGS)
    assert equal(plain.state, watched.state)
    assert "outliers" in watched.summary
    assert "outliers" not in plain.summary


def test_a_norm_bound_without_outliers_is_close_to_no_defense(fed, clean):
    bounded = fedkin.run("fedavg", fed, defend="normbound:100", **SETTINGS)
    plain = fedkin.run("fedavg", fed, **SETTINGS)
    torch.testing.assert_close(bounded.state["model"], plain.state["model"], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("engine", ["serial", "pool"])
def test_engines_agree_and_a_stopped_run_goes_on(fed, engine, tmp_path):
    chosen = {"attack": "noise:0.2", "defend": "trimmed", "lr": 0.1}
    straight = fedkin.run("ditto", fed, rounds=4, engine="serial", **chosen)
    for rounds in (2, 4):
        stopped = fedkin.run("ditto", fed, rounds=rounds, engine=engine, out=tmp_path, checkpoint_every=1,
                             evaluate_every=2, **chosen)  # fmt: skip
    assert equal(straight.state, stopped.state)
    assert stopped.summary["hostile"] == straight.summary["hostile"]
    with pytest.raises(ValueError, match=r"options\.defend: trimmed there, median now"):
        fedkin.run("ditto", fed, rounds=4, out=tmp_path, **(chosen | {"defend": "median"}))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_finishes_under_attack(name):
    fed = fedkin.federate("digits", clients=8, samples_per_client=24, seed=2)
    defense = [d for d in NUMBERS if d != "report"][hash_of(name) % 5]
    result = fedkin.run(name, fed, rounds=2, engine="serial", evaluate_every=0, save_models=False,
                        attack="scale:0.2", defend=defense)  # fmt: skip
    assert result.summary["measured"] == 8
    losses = result.history.values("personal_loss", round=2)
    assert all(losses[c] < 1e4 for c in losses if c not in result.summary["hostile"])


def hash_of(name: str) -> int:
    return sum(map(ord, name))


def test_command_line(capsys, tmp_path):
    words = "run fedavg --data digits --clients 6 --rounds 2 --quiet --attack signflip:0.2"
    with pytest.raises(SystemExit) as stop:
        main([*words.split(), "--defend", "normbound", "--out", str(tmp_path / "run")])
    assert not stop.value.code
    assert "honest clients have" in capsys.readouterr().out
    options = json.loads((tmp_path / "run" / "config.json").read_text())["options"]
    assert (options["attack"], options["defend"]) == ("signflip:0.2", "normbound")
    with pytest.raises(SystemExit) as stop:
        main([*words.split(), "--defend", "krumm"])
    assert stop.value.code == 2
    assert "is not a defense" in capsys.readouterr().err


def test_the_page_names_outliers(fed, tmp_path):
    fedkin.run("fedavg", fed, attack="scale:0.2", defend="normbound", out=tmp_path / "run", **SETTINGS)
    from fedkin.report.page_data import page_data
    from fedkin.report.read import load

    data = page_data([load(tmp_path / "run")])
    assert ["attack", "scale:0.2"] in [list(row) for row in data["setting"]]
    named = [client for client, _ in data["methods"][0]["runs"][0]["outliers"]]
    assert set(Attack("scale", 0.2, 1.0).hostile(10, 0)) <= set(named)
