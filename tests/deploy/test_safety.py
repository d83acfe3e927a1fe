"""Neither side can harm the other: ranges of all that arrives, what a site allows, and messages that come again."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedkin[flower]'")

import fedkin
from fedkin.cli import main
from fedkin.deploy import codec
from fedkin.deploy.codec import Answer, Malformed, SiteInfo
from fedkin.deploy.plan import read
from fedkin.deploy.site import SiteConfig, answer, introduce, perform, refused, unable
from fedkin.protocol import Message
from fedkin.results.store import load_state
from fedkin.task import Classification
from tests.deploy.test_server import NAMES, Once, World, _clock, data  # noqa: F401  (fixtures)
from tests.deploy.test_site import CONFIG, RUN, model, request, state, states

GOOD = Answer("west", False, 1.0, 1.0, "", "", "")
INFO = SiteInfo("west", "own", "6", "", 3, 60, 5, 10)


@pytest.fixture
def config(tmp_path) -> SiteConfig:
    return SiteConfig.read(
        {"name": "west", "data": "digits", "state": str(tmp_path / "state"), "clients": 2, "part": 1}
    )


# ---- what comes from a site
@pytest.mark.parametrize(
    ("changes", "scores"),
    [
        ({"flops": float("nan")}, {}),
        ({"flops": float("inf")}, {}),
        ({"flops": -1.0}, {}),
        ({"seconds": 1e12}, {}),
        ({"released": -1}, {}),
        ({"error": "x" * 5000}, {}),
        ({}, {"personal": 5.0}),
        ({}, {"personal": -0.1}),
        ({}, {"personal_loss": 1e36}),
    ],
)
def test_an_answer_out_of_range_is_refused(changes, scores):
    record = codec.encode_answer(GOOD._replace(**changes), (), scores)
    with pytest.raises(Malformed, match="must lie in"):
        codec.decode_answer(record)


def test_a_score_that_is_not_finite_counts_as_not_measured():
    record = codec.encode_answer(GOOD, (), {"personal": float("nan"), "received": 0.5, "received_loss": float("inf")})
    assert codec.decode_answer(record)[2] == {"received": 0.5}


def test_scores_are_those_of_the_task():
    task = Classification(metrics=("accuracy", "auc", "log_loss"), headline="auc")
    scores = {"personal": 0.9, "personal_accuracy": 0.8, "personal_log_loss": 3.0, "received_loss": 2.0}
    assert codec.decode_answer(codec.encode_answer(GOOD, (), scores), task)[2] == scores
    described = {"personal": 0.5, "model_weight_of_own": 0.25}  # what a method says of a personal model
    assert codec.decode_answer(codec.encode_answer(GOOD, (), described))[2] == described
    many = {f"model_{'x' * k}": 0.0 for k in range(1, 25)}
    with pytest.raises(Malformed, match="the score model_"):
        codec.decode_answer(codec.encode_answer(GOOD, (), many))
    with pytest.raises(Malformed, match="the score personal_accuracy"):
        codec.decode_answer(codec.encode_answer(GOOD, (), scores))
    with pytest.raises(Malformed, match="must lie in"):
        codec.decode_answer(codec.encode_answer(GOOD, (), {"personal_accuracy": 1.5}), task)


@pytest.mark.parametrize(
    "changes",
    [{"train": 2**62}, {"train": 0}, {"classes": 10**10}, {"classes": 0}, {"test": -1}, {"shape": "1000000 1000000"},
     {"shape": "-3"}, {"shape": ""}, {"shape": "x"}, {"fedkin": "1\nnorth is connected"}],
)  # fmt: skip
def test_a_card_out_of_range_is_refused(changes):
    with pytest.raises(Malformed):
        codec.decode_info(codec.encode_info(INFO._replace(**changes)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train": 20_000_000}, "20000000 training examples; run.max_examples allows 10000000"),
        ({"classes": 5000}, "5000 classes; run.max_classes allows 1000"),
        ({"train": 2**62}, "must lie in"),
        ({"error": "ValueError: no column 'y'"}, "no column 'y'"),
    ],
)
def test_a_site_that_cannot_take_part_is_named_at_once(tmp_path, data, changes, words):  # noqa: F811
    def lie(grid, node, message):
        if grid.homes[node]["name"] == "west" and message.metadata.message_type == "query.hello":
            return codec.encode_info(INFO._replace(**changes))
        return None

    world = World(tmp_path, data, lie, run__wait=1e9)
    with pytest.raises(RuntimeError, match=f"west cannot take part: .*{words}.*fedkin deploy check"):
        world.serve()


def test_a_site_with_another_fedkin_is_named(tmp_path, data, capsys):  # noqa: F811
    def older(grid, node, message):
        if grid.homes[node]["name"] == "west" and message.metadata.message_type == "query.hello":
            return codec.encode_info(introduce(SiteConfig.read(grid.homes[node]))._replace(fedkin="0.1.0"))
        return None

    World(tmp_path, data, older).serve()
    shown = capsys.readouterr().out
    assert f"west has fedkin 0.1.0, the server has {fedkin.__version__}" in shown
    assert "north has fedkin" not in shown


def test_metrics_of_the_task_come_over_the_wire(tmp_path, data):  # noqa: F811
    world = World(tmp_path, data, method__name="fedavg", task__metrics="accuracy auc", task__headline="auc")
    summary = world.serve().summary
    assert summary["headline"]["metric"] == "auc"
    assert 0 < summary["metrics"]["accuracy"] <= 1


def test_privacy_over_the_wire_is_counted_and_cannot_be_repeated_by_the_server(tmp_path, data):  # noqa: F811
    pytest.importorskip("dp_accounting", reason="pip install 'fedkin[privacy]'")
    world = World(tmp_path, data, method__name="fedavg", run__privacy="client:clip=1,noise=2")
    run = world.serve()
    federation = fedkin.federate(fedkin.from_folder(data), partition="by_group")
    here = fedkin.run("fedavg", federation, rounds=2, evaluate_every=0, privacy="client:clip=1,noise=2")
    assert run.summary["privacy"] == here.summary["privacy"]
    assert not torch.equal(run.state["model"], here.state["model"]), "the noise of a site has a key of its own"
    for name in NAMES:
        assert stat.S_IMODE((tmp_path / name / "noise.key").stat().st_mode) == 0o600


# ---- tables prepared alike, without sharing more than a site allows
def tables(world: World, tmp_path: Path, share: str) -> None:
    """Three tables of one kind; only the last has the level `c`."""
    rng = np.random.default_rng(3)
    for part, name in enumerate(NAMES):
        levels = ["a", "b"] if part < 2 else ["a", "b", "c"]
        rows = [f"{levels[k % len(levels)]},{rng.normal(10 * part):.4f},{'yes' if k % 3 else 'no'}" for k in range(60)]
        (tmp_path / f"{name}.csv").write_text("kind,size,y\n" + "\n".join(rows) + "\n")
        world.grid.homes[world.node[name]] |= {"data": str(tmp_path / f"{name}.csv"), "share": share}


def test_tables_with_other_levels_are_prepared_alike(tmp_path, data):  # noqa: F811
    for fit in ("each", "sites"):
        world = World(tmp_path / fit, data, method__name="fedavg", run__fit=fit)
        tables(world, tmp_path, share=fit)
        there = world.serve()
        whole = fedkin.federate(fedkin.from_folder(tmp_path), partition="by_group", fit=fit)
        here = fedkin.run("fedavg", whole, rounds=2, evaluate_every=0)
        assert there.config["inputs"]["shape"] == here.config["inputs"]["shape"]
        torch.testing.assert_close(there.state["model"], here.state["model"], atol=1e-5, rtol=1e-4)
        stored = json.loads((tmp_path / fit / "out" / "preprocessing.json").read_text())
        assert ("" in stored["scales"]) == (fit == "sites")
        again = World(tmp_path / fit, data, method__name="fedavg", run__fit=fit, run__rounds=3)
        tables(again, tmp_path, share="")  # what was agreed is kept: nobody is asked again
        assert again.serve().summary["rounds"] == 3


def test_a_site_shares_no_more_than_its_file_allows(tmp_path, data):  # noqa: F811
    world = World(tmp_path, data, method__name="fedavg", run__fit="sites")
    tables(world, tmp_path, share="each")
    with pytest.raises(RuntimeError, match=r"north: Malformed: this site shares 'each'; the run asks for 'sites'"):
        world.serve()


@pytest.mark.parametrize(
    "change",
    [{"mean": float("nan")}, {"variance": -1.0}, {"known": 10**12}, {"levels": [1]}, {"kind": "secret"}, {"rows": [1]},
     {"mean": 1e40}, {"name": 3}],
)  # fmt: skip
def test_statistics_out_of_range_are_refused(change):
    column = {"name": "size", "kind": "number", "levels": [], "known": 3, "missing": 0, "mean": 1.0, "variance": 2.0}
    statistics = {"columns": [column], "classes": ["no", "yes"], "task": "classification", "targets": []}
    assert codec.decode_statistics(codec.encode_text(json.dumps(statistics))) == statistics
    with pytest.raises(Malformed, match="statistics"):
        codec.decode_statistics(codec.encode_text(json.dumps({**statistics, "columns": [{**column, **change}]})))


# ---- what comes to a site
def sent(config: SiteConfig, **changes) -> object:
    plan = read(CONFIG)
    return codec.encode_request(request(**changes), Message((model(plan, config),)))


@pytest.mark.parametrize("key", ["model.name", "method.name"])
def test_a_site_runs_only_what_its_file_allows(config, key, monkeypatch):
    called = []
    monkeypatch.setattr("subprocess.getoutput", lambda *words: called.append(words))
    answered = answer(config, {**CONFIG, key: "subprocess:getoutput"}, sent(config))
    error = codec.decode_answer(answered)[0].error
    assert "subprocess:getoutput' is not fedkin's own: this site's file must name it under `allow`" in error
    assert called == []


def test_code_that_the_sites_file_allows_is_run(config):
    own = {**CONFIG, "method.name": "fedkin.methods.local:Local"}
    assert "must name it under `allow`" in codec.decode_answer(answer(config, own, sent(config)))[0].error
    allowing = replace(config, allow="other:Thing, fedkin.methods.local:Local")
    assert codec.decode_answer(answer(allowing, own, sent(config)))[0].error == ""


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"functions": "settle"}, "this site runs settle; 'local' is not among them"),
        ({"max_rounds": 1}, "this site answers 1 rounds; this is round 2"),
        ({"max_bytes": 10}, "this site sends at most 10"),
    ],
)
def test_a_site_caps_what_it_answers(config, limits, words):
    plan = {**CONFIG, "method.name": "fedavg"}
    decoded = codec.decode_answer(answer(replace(config, **limits), plan, sent(config, round=2)))
    assert words in decoded[0].error
    assert decoded[1] == ()


def test_a_site_caps_the_number_of_requests_and_logs_each(config):
    capped = replace(config, max_requests=2)
    errors = [codec.decode_answer(answer(capped, CONFIG, sent(config, round=k)))[0].error for k in (1, 2, 3)]
    assert errors[:2] == ["", ""]
    assert "has already answered 2 requests of this run" in errors[2]
    other = answer(capped, CONFIG, sent(config, run="f" * 16))
    assert codec.decode_answer(other)[0].error == "", "another run has its own count"
    lines = [json.loads(line) for line in Path(config.state, "requests.jsonl").read_text().splitlines()]
    assert [(line["run"], line["round"], line["function"], bool(line["error"])) for line in lines] == [
        (RUN, 1, "local", False), (RUN, 2, "local", False), (RUN, 3, "local", True), ("f" * 16, 1, "local", False),
    ]  # fmt: skip
    assert all(line["bytes_received"] > 1000 for line in lines)


def test_what_a_site_keeps_is_its_own(config):
    answer(config, CONFIG, sent(config))
    kept = list(Path(config.state).rglob("*"))
    assert any(path.name == state(1) for path in kept)
    for path in (Path(config.state), *kept):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, f"others can read {path}"


def test_a_huge_client_number_is_refused(config):
    assert "below 2" in codec.decode_answer(answer(config, CONFIG, sent(config, number=10**12)))[0].error


@pytest.mark.parametrize("changes", [{"classes": 10**10}, {"classes": 0}, {"round": 2**60}])
def test_a_request_out_of_range_is_refused(config, changes):
    assert "must lie in" in codec.decode_answer(answer(config, CONFIG, sent(config, **changes)))[0].error


def test_old_messages_that_come_again_change_nothing(config):
    plan = read(CONFIG)
    message = Message((model(plan, config),))
    first = request()
    requests = [
        first,
        *(request(round=k, state=state(k - 1), new_state=state(k), keep=state(k - 1)) for k in (2, 3, 4)),
    ]
    for one in requests:
        perform(config, plan, one, message)
    kept = {name: load_state(Path(config.state, RUN, "west", name)) for name in states(config)}
    assert sorted(kept) == [state(3), state(4)]
    with pytest.raises(Malformed, match="round 2 is over"):
        perform(config, plan, requests[1], message)
    with pytest.raises(Malformed, match="round 3 is over"):
        perform(config, plan, requests[2], message)
    perform(config, plan, first, message)  # it starts from nothing, so it can be done; its state is round 1's
    after = {name: load_state(Path(config.state, RUN, "west", name)) for name in kept}
    assert all(torch.equal(after[n]["model"], kept[n]["model"]) for n in kept)


# ---- no value of an example leaves in an error
def test_an_error_of_another_library_does_not_leave_the_site(config):
    with pytest.raises(ValueError, match="4711") as caught:  # raised in this test, which is not fedkin
        int("patient 4711 has a secret")
    assert "4711" not in refused(config, caught.value).error
    assert "ValueError; the details are in the site's own log" in refused(config, caught.value).error
    assert "4711" not in unable("west", caught.value).error


def test_fedkins_own_errors_arrive_whole(config):
    with pytest.raises(ValueError, match="must set data") as caught:
        SiteConfig.read({"name": "west"})
    assert "must set data" in unable("west", caught.value).error


def test_labels_out_of_range_do_not_leave_the_site(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "rows.npz", x=rng.normal(size=(30, 4)).astype(np.float32), y=np.arange(30) % 3)
    own = SiteConfig.read({"name": "west", "data": str(tmp_path / "rows.npz"), "state": str(tmp_path / "state")})
    plan = {**CONFIG, "method.name": "fedavg", "model.name": "mlp"}
    narrow = codec.encode_request(request(classes=2, data="own"), Message((torch.zeros(4 * 64 + 64 + 64 * 2 + 2),)))
    error = codec.decode_answer(answer(own, plan, narrow))[0].error
    assert error
    assert "Target" not in error


# ---- at the site itself
def test_check_says_what_would_be_told(tmp_path, capsys):
    path = tmp_path / "west.toml"
    path.write_text(f'name = "west"\ndata = "digits"\nclients = 2\nstate = "{tmp_path / "state"}"\nmax_rounds = 7\n')
    with pytest.raises(SystemExit) as stop:
        main(["deploy", "check", str(path)])
    assert not stop.value.code
    said = capsys.readouterr().out
    assert "west is ready" in said
    assert "max_rounds 7" in said
    assert not (tmp_path / "state").exists(), "nothing is written"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('name = "west"', "must set data"),
        ('name = "west"\ndata = "/nowhere/x.csv"\nstate = "/tmp/s"', "There is no .npz or .csv file"),
        ('name = "west"\ndata = "digits"\nstate = "/tmp/s"\nprivacy = "much"', "privacy='much'"),
        ('name = "west"\ndata = "digits"\nstate = "/dev/null/state"', "is not writable"),
        ("name = ", "is not TOML"),
    ],
)
def test_check_says_what_is_wrong(tmp_path, capsys, text, words):
    path = tmp_path / "west.toml"
    path.write_text(text)
    with pytest.raises(SystemExit) as stop:
        main(["deploy", "check", str(path)])
    assert stop.value.code == 2
    assert words in capsys.readouterr().err


def test_predict_works_on_a_sites_own_disk(tmp_path, data, capsys):  # noqa: F811
    World(tmp_path, data, method__name="fedavg").serve()
    (folder,) = (tmp_path / "north").glob("*/north")
    run = fedkin.load(folder)
    assert run.clients == ("north",)
    with np.load(data / "north.npz") as examples:
        found = run.evaluate("north", examples["x"], examples["y"])
        np.save(tmp_path / "new.npy", examples["x"])
    assert found["accuracy"] > 0.4
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(["predict", str(folder), "--client", "north", "--data", str(tmp_path / "new.npy")])
    assert not stop.value.code
    assert capsys.readouterr().out.count("\n") == len(run.predict("north", np.load(tmp_path / "new.npy"))) + 1
    with pytest.raises(ValueError, match="use the folder of the run itself"):
        run.join("east", np.load(tmp_path / "new.npy"), np.zeros(60))


def test_a_site_says_once_that_its_model_holds_examples(tmp_path, data, capsys):  # noqa: F811
    World(tmp_path, data, method__name="knnper", run__evaluate_every=1).serve()
    (folder,) = (tmp_path / "north").glob("*/north")
    said = f"The models in {folder / 'models'} hold features and labels of training examples"
    assert capsys.readouterr().out.count(said) == 1


def test_introduce_tells_counts_alone(config):
    info = introduce(config)
    assert set(info._asdict()) == {"client", "data", "shape", "columns", "classes", "train", "validation", "test",
                                   "error", "task", "outputs", "fedkin"}  # fmt: skip
