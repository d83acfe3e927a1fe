"""A site does what it may be asked for and nothing else, and never applies a round twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedkin[flower]'")

import fedkin
from fedkin.deploy.codec import Malformed, Request
from fedkin.deploy.plan import Plan, read
from fedkin.deploy.site import SiteConfig, introduce, perform, refused
from fedkin.protocol import Message
from fedkin.results.store import equal, load_state

RUN = "0123456789abcdef"
CONFIG = {"method.name": "local", "run.clients": "west north", "run.out": "/nowhere", "training.lr": 0.1}


def state(round: int, exchange: int = 1) -> str:
    return f"client-000001-{round:06d}-{exchange}.safetensors"


def request(**changes) -> Request:
    usual = Request(RUN, "west", 1, 1, "local", "", state(1), "", True, False, 10, "digits")
    return usual._replace(**changes)


@pytest.fixture
def plan() -> Plan:
    return read(CONFIG)


@pytest.fixture
def config(tmp_path) -> SiteConfig:
    return SiteConfig.read({"name": "west", "data": "digits", "state": str(tmp_path), "clients": 2, "part": 1})


def states(config: SiteConfig) -> list[str]:
    return sorted(p.name for p in (Path(config.state) / RUN / "west").glob("client-*"))


# ---- what may be asked for


@pytest.mark.parametrize("name", ["init_client", "personal", "predict", "__init__", "__class__", "merge", "nothing"])
def test_only_client_functions_can_be_called(config, plan, name):
    with pytest.raises(Malformed, match=f"'{name}' is not a client function of local"):
        perform(config, plan, request(function=name), Message())
    assert not Path(config.state, RUN).exists()


def test_all_client_functions_of_a_method_can_be_called():
    from fedkin.protocol import is_client_function

    dcpfl = fedkin.method("dcpfl")
    assert is_client_function(dcpfl, "local")
    assert is_client_function(dcpfl, "settle")
    assert not is_client_function(dcpfl, "merge")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"client": "north"}, "this is 'west'; the message is for 'north'"),
        ({"run": "../../etc"}, "not the name of a run"),
        ({"state": "../secret.safetensors"}, "not the name of a state"),
        ({"new_state": "/etc/passwd"}, "not the name of a state"),
        ({"keep": f"{state(1)} ../x"}, "not the name of a state"),
        ({"number": -1}, "at least 0"),
    ],
)
def test_a_request_that_is_not_for_this_site_is_refused(config, plan, change, word):
    with pytest.raises(Malformed, match=word):
        perform(config, plan, request(**change), Message())


def test_a_refusal_comes_back_as_an_answer(config):
    import time

    from flwr.app import Context, Metadata, RecordDict
    from flwr.app.message import make_message

    from fedkin.deploy import client, codec

    node = {"name": "west", "data": "digits", "state": config.state, "clients": 2, "part": 1}
    context = Context(1, 2, node, RecordDict(), dict(CONFIG))
    record = codec.encode_request(request(function="merge"), Message())
    metadata = Metadata(1, "m", 1, 2, "", "", time.time(), 60.0, "train")
    letter = make_message(metadata=metadata, content=record)
    answer, body, scores = codec.decode_answer(client.task(letter, context).content)
    assert "west refused: Malformed: 'merge' is not a client function" in answer.error
    assert (body, scores) == ((), {})


# ---- rounds


def model(plan: Plan, config: SiteConfig) -> torch.Tensor:
    from fedkin.models.build import maker
    from fedkin.models.network import Network

    mine = config.load()
    net = Network(maker("mlp", mine.shape, mine.classes, 0, {})(0), mine.example)
    return net.layout.flatten({k: v.detach() for k, v in net.module.named_parameters()})


def test_a_round_asked_for_again_is_not_applied_twice(config, plan):
    message = Message((model(plan, config),))
    perform(config, plan, request(), message)
    first = load_state(Path(config.state, RUN, "west", state(1)))
    second = request(round=2, state=state(1), new_state=state(2), keep=state(1))
    perform(config, plan, second, message)
    once = load_state(Path(config.state, RUN, "west", state(2)))
    perform(config, plan, second, message)
    assert equal(load_state(Path(config.state, RUN, "west", state(2))), once)
    assert not equal(first, once)
    assert states(config) == [state(1), state(2)]


def test_a_failed_round_leaves_the_state_and_old_ones_go(config):
    plan = read({**CONFIG, "method.name": "ditto"})
    message = Message((model(plan, config),))
    perform(config, plan, request(), message)
    broken = request(round=2, state=state(1), new_state=state(2), keep=state(1))
    answer, _ = perform(config, replace(plan, training=replace(plan.training, lr=1e30)), broken, message)
    assert answer.error
    assert states(config) == [state(1)]
    perform(config, plan, request(round=3, state=state(1), new_state=state(3), keep=state(1)), message)
    perform(config, plan, request(round=4, state=state(3), new_state=state(4), keep=state(3)), message)
    assert states(config) == [state(3), state(4)]


def test_a_state_that_is_gone_is_told(config, plan):
    answer, _ = perform(
        config, plan, request(round=5, state=state(4), new_state=state(5)), Message((model(plan, config),))
    )
    assert not answer.error
    assert f"started from scratch: its private state {state(4)}" in answer.notes


def test_runs_are_kept_apart(config, plan):
    message = Message((model(plan, config),))
    perform(config, plan, request(), message)
    perform(config, plan, request(run="f" * 16), message)
    assert states(config) == [state(1)]
    assert (Path(config.state) / ("f" * 16) / "west" / state(1)).exists()


# ---- the site's own file


def test_a_site_has_the_examples_of_its_part(config):
    whole = fedkin.federate("digits", clients=2)
    mine = config.load()
    assert equal(mine.data(0).x, whole.data(1).x)
    info = introduce(config)
    assert (info.client, info.data, info.classes, info.train) == ("west", "digits", 10, int(whole.sizes[1]))


@pytest.mark.parametrize("suffix", ["csv", "npz"])
def test_a_site_reads_its_own_file_as_a_simulation_reads_a_folder(tmp_path, suffix):
    rng = np.random.default_rng(0)
    for name, rows in (("a", 30), ("b", 40)):
        x, y = rng.normal(size=(rows, 3)).round(3), rng.integers(0, 2, rows)
        if suffix == "npz":
            np.savez(tmp_path / f"{name}.npz", x=x, y=y)
        else:
            table = "\n".join(",".join(map(str, [*row, label])) for row, label in zip(x, y))
            (tmp_path / f"{name}.csv").write_text(f"p,q,r,y\n{table}\n")
    whole = fedkin.federate(fedkin.from_folder(tmp_path), partition="by_group")
    config = SiteConfig.read({"name": "b", "data": str(tmp_path / f"b.{suffix}"), "state": str(tmp_path)})
    mine = config.load()
    assert equal(mine.data(0).x, whole.data(1).x)
    assert equal(mine.test(0).y, whole.test(1).y)


def test_a_sites_file_says_how_its_table_is_read(tmp_path):
    rng = np.random.default_rng(0)
    rows = [f"P{i};{rng.normal(50, 9):.1f}".replace(".", ",") + f";{i % 3};{i % 2}" for i in range(40)]
    (tmp_path / "b.csv").write_text("id;age;kind;sick\n" + "\n".join(rows) + "\nP40;-9;1;0\n")
    given = {"name": "b", "data": str(tmp_path / "b.csv"), "state": str(tmp_path), "label": "sick", "ordered": True}
    more = {"ignore": "id", "categorical": "kind", "missing": "-9, none", "decimal": ","}
    mine = SiteConfig.read({**given, **more}).load()
    assert mine.preprocessing.feature_names == ("age", "kind=0", "kind=1", "kind=2")
    assert mine.arrays.ordered
    assert mine.names == ("b",)
    assert not SiteConfig.read({**given, "ordered": False}).ordered


def test_an_error_in_a_sites_table_does_not_show_a_cell(tmp_path):
    """It travels to the server."""
    rows = "\n".join(f"{i},{i % 2}" for i in range(20))
    (tmp_path / "b.csv").write_text(f"age,y\n{rows}\nHenriette,1\n")
    config = SiteConfig.read({"name": "b", "data": str(tmp_path / "b.csv"), "state": str(tmp_path)})
    with pytest.raises(ValueError, match=r"b\.csv, column 'age', row 22: not a number") as caught:
        introduce(config)
    assert "Henriette" not in refused(config, caught.value).error


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"name": "../x"}, "letters, digits"),
        ({"name": ""}, "letters, digits"),
        ({"state": "relative"}, "absolute path"),
        ({"data": "rows.csv"}, "absolute path"),
        ({"part": 2}, r"0\.\.1"),
        ({"part": "1"}, "a int is expected"),
        ({"color": "red"}, "known are name"),
    ],
)
def test_a_bad_site_file_says_what_is_wrong(tmp_path, change, word):
    good = {"name": "west", "data": "digits", "state": str(tmp_path), "clients": 2, "part": 1}
    with pytest.raises(ValueError, match=word):
        SiteConfig.read({**good, **change})


def test_an_empty_site_file_says_what_is_missing():
    with pytest.raises(ValueError, match=r"must set name: start the supernode with --node-config"):
        SiteConfig.read({})


def test_a_file_that_is_not_there(tmp_path):
    config = SiteConfig.read({"name": "b", "data": str(tmp_path / "b.csv"), "state": str(tmp_path)})
    with pytest.raises(ValueError, match=r"There is no \.npz or \.csv file"):
        introduce(config)


# ---- the plan


def test_clients_have_the_same_numbers_in_whatever_order_they_are_written():
    assert read(CONFIG).clients == ("north", "west")
    assert read({**CONFIG, "run.clients": "north west"}).clients == ("north", "west")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"run.clients": "north north"}, "name each client once"),
        ({"run.clients": "no/rth"}, "letters, digits"),
        ({"run.out": "here"}, "absolute path"),
        ({"run.rounds": 0}, "rounds=0 must be at least 1"),
        ({"run.rounds": 2.5}, "run.rounds=2.5 must be a int"),
        ({"run.time_limit": 0.0}, "wait forever"),
        ({"run.engine": "pool"}, "known are rounds"),
        ({"training.speed": 1}, "known are lr"),
        ({"method.name": "fedprox", "method.lam": 1.0}, "The app's config has method.lam; fedprox has mu"),
        ({"method.name": "fedprox", "method.lam": 1.0}, "fedkin deploy init OTHER_FOLDER --method fedprox"),
        ({"method.mu": 1.0}, "the app's config has method.mu|The app's config has method.mu"),
        ({"method.name": "fedavgg"}, "Did you mean fedavg"),
        ({"color": "red"}, "its tables are method"),
    ],
)
def test_a_bad_config_says_what_is_wrong(change, word):
    with pytest.raises(ValueError, match=word):
        read({**CONFIG, **change})


def test_values_take_the_fields_types():
    plan = read({**CONFIG, "method.name": "fedprox", "method.mu": 1, "training.lr": 1})
    assert plan.method == fedkin.method("fedprox", mu=1.0)
    assert plan.training.lr == 1.0
    assert read({**CONFIG, "method.name": "fedcedar", "method.nodes": "()"}).method == fedkin.method("fedcedar")
