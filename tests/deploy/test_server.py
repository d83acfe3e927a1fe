"""The server's side over a grid in memory: the same numbers as in one process, and what happens when things break."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedkin[flower]'")

import fedkin
from fedkin.deploy import codec, directory, server
from fedkin.deploy.plan import read
from fedkin.engine.runner import ClientError
from fedkin.results.history import History
from tests.deploy.memory import Memory
from tests.deploy.sites import FIRST_CIRCLE, NAMES

pytestmark = pytest.mark.processes


class Clock:
    """Time that passes only where the server waits: no site is too slow because the machine is busy."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def _clock(monkeypatch):
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    monkeypatch.setattr(directory, "LOOK_EVERY", 0.0)
    clock = Clock()
    for module in (directory, server):
        monkeypatch.setattr(module, "time", clock)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Three files: two kinds of clients."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for part, name in enumerate(NAMES):
        x = rng.normal(size=(60 + 10 * part, 6)).astype(np.float32)
        y = (x[:, 0] > 0) * 1 + (x[:, part % 2] > 0.5) * 1
        np.savez(folder / f"{name}.npz", x=x, y=y)
    return folder


class World:
    """A plan, and sites on a grid in memory."""

    def __init__(self, tmp: Path, data: Path, fault: Any = None, **config: Any) -> None:
        given = {key.replace("__", "."): value for key, value in config.items()}
        self.config = {
            "method.name": "ditto", "run.rounds": 2, "run.evaluate_every": 0, "run.clients": " ".join(NAMES),
            "run.out": str(tmp / "out"), "run.time_limit": 30, "run.wait": 1, **given,
        }  # fmt: skip
        self.tmp, self.data = tmp, data
        self.grid = Memory(self.config, fault)
        self.node = {name: self.join(name) for name in NAMES}

    def join(self, name: str, *, like: str = "", **more: Any) -> int:
        config = {"name": name, "data": str(self.data / f"{like or name}.npz"), "state": str(self.tmp / (like or name))}
        return self.grid.join(config, **more)

    def serve(self):
        return server.serve(self.grid, read(self.config))

    @property
    def history(self) -> History:
        return History.load(self.tmp / "out")

    def reported(self, metric: str) -> list[tuple[int, int, str]]:
        return [(r.round, r.client, r.value) for r in self.history.select(metric)]


@cache
def inside(data: Path, method: str = "ditto", **settings: Any):
    federation = fedkin.federate(fedkin.from_folder(data), partition="by_group")
    return fedkin.run(method, federation, **{"rounds": 2, "evaluate_every": 0, **settings})


def assert_same(there, here) -> None:
    """Every number, but for what a server cannot know and what happened on the way."""
    unknown = {"mean_kld", "labels", "majority_rate", "note"}
    one, two = (
        {(r.round, r.client, r.metric, r.scope): r.value for r in history.records if r.metric not in unknown}
        for history in (there, here)
    )
    assert one == two


# ---- the same numbers


@pytest.mark.parametrize("method", FIRST_CIRCLE)
def test_a_method_gives_the_same_numbers_as_in_process(method, tmp_path, data):
    world = World(tmp_path, data, method__name=method)
    assert_same(world.serve().history, inside(data, method).history)


def test_the_order_of_nodes_and_names_does_not_matter(tmp_path, data):
    world = World(tmp_path, data, run__clients="west north south")
    for name in ("north", "south"):  # they come back later, under higher ids
        world.grid.leave(world.node[name])
    for name in ("south", "north"):
        world.join(name)
    assert_same(world.serve().history, inside(data).history)


def test_personal_models_stay_at_the_sites(tmp_path, data):
    World(tmp_path, data).serve()
    for name in NAMES:
        (model,) = (tmp_path / name).glob(f"*/{name}/personal.safetensors")
        assert json.loads(model.with_suffix(".json").read_text())["after_round"] == 2
    assert not list((tmp_path / "out").rglob("models/*.safetensors"))


def test_received_model_is_measured_in_the_message_that_trains(tmp_path, data):
    world = World(tmp_path, data, method__name="fedavg", run__rounds=3)
    world.serve()
    # for each site: hello, three rounds, the last measurement
    assert len(world.grid.asked) == 3 * 5
    assert set(world.history.values("received", round=2, scope="participants")) == {0, 1, 2}


# ---- things that break


class Once:
    """A fault in one task of one client: the count-th that it is asked."""

    def __init__(self, name: str, at: int, what: Any) -> None:
        self.name, self.at, self.what, self.seen = name, at, what, 0

    def __call__(self, grid: Memory, node: int, message: Any) -> Any:
        if message.metadata.message_type != "train" or grid.homes[node]["name"] != self.name:
            return None
        self.seen += 1
        return self.what(grid, node, message) if self.seen == self.at else None


def died(grid, node, message):
    return 8


def moved(grid, node, message):
    """The supernode dies with the task, and comes back under another id."""
    grid.join(grid.leave(node))
    return "lost"


def moved_after_work(grid, node, message):
    """As above, but the client's work was done: only the reply is lost."""
    grid.fault, fault = None, grid.fault
    (sent,) = grid.push_messages([message])
    del grid.replies[sent]
    grid.fault = fault
    grid.join(grid.leave(node))
    return "lost"


def restarted(grid, node, message):
    grid.restart(node)
    return "lost"


def unavailable(grid, node, message):
    return 5


def unavailable_and_moved(grid, node, message):
    """Flower gives the old node up before the new one is there, as on a busy machine."""
    grid.join(grid.leave(node))
    return 5


@pytest.mark.parametrize(
    ("what", "note"),
    [
        (unavailable_and_moved, "it came back as another node"),
        (unavailable, "asked again: as ordered (Flower's code 5)"),
        (died, "asked again: as ordered (Flower's code 8)"),
        (moved, "it came back as another node"),
        (moved_after_work, "it came back as another node"),
        (restarted, "its supernode was restarted"),
    ],
)
@pytest.mark.parametrize("at", [1, 2, 3])
def test_nothing_is_lost_and_nothing_applied_twice(tmp_path, data, what, note, at):
    world = World(tmp_path, data, Once("south", at, what))
    assert_same(world.serve().history, inside(data).history)
    ((round, client, text),) = world.reported("note")
    assert (round, client) == (min(at, 2), 1)
    assert note in text


def test_a_site_that_fails_three_times_is_left_out_of_the_round(tmp_path, data):
    def fault(grid, node, message):
        ask = message.metadata.message_type == "train" and codec.decode_request(message.content)[0]
        return 8 if ask and ask.client == "south" and ask.round == 1 else None

    world = World(tmp_path, data, fault)
    world.serve()
    ((round, client, why),) = world.reported("dropped")
    assert (round, client) == (1, 1)
    assert "failed 3 times, finally with as ordered (Flower's code 8)" in why
    federation = fedkin.federate(fedkin.from_folder(data), partition="by_group")
    absent = fedkin.run("ditto", federation, rounds=2, evaluate_every=0, arrive={1: 2})
    assert world.history.values("personal", round=2) == absent.history.values("personal", round=2)


def test_a_site_that_is_gone_is_waited_for_until_the_limit(tmp_path, data):
    def fault(grid, node, message):
        if message.metadata.message_type == "train" and grid.homes[node]["name"] == "west" and node in grid.nodes:
            grid.leave(node)
            return "lost"
        return None

    world = World(tmp_path, data, fault, run__time_limit=0.5)
    world.serve()
    assert [(round, client) for round, client, _ in world.reported("dropped")] == [(1, 2), (2, 2)]
    assert all("did not answer within 0.5 s (it is not connected)" in why for _, _, why in world.reported("dropped"))
    assert world.history.values("unmeasured", round=2).keys() == {2}


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"body": (torch.tensor([float("nan")]),)}, "NaN or infinity"),
        ({"body": (torch.ones(3),)}, "replied"),
        ({"client": "north"}, "the answer is from 'north'"),
        (None, "no fields"),
    ],
)
def test_a_reply_that_is_nonsense_is_dropped(tmp_path, data, answer, why):
    def lie(grid, node, message):
        if answer is None:
            return codec.RecordDict()
        fields = codec.Answer(answer.get("client", "south"), False, 0.0, 0.0, "", "", "")
        return codec.encode_answer(fields, answer.get("body", ()), {})

    world = World(tmp_path, data, Once("south", 1, lie))
    world.serve()
    ((round, client, text),) = world.reported("dropped")
    assert (round, client) == (1, 1)
    assert why in text


def test_when_every_site_refuses_the_run_stops_and_says_why(tmp_path, data):
    with pytest.raises(ClientError, match="All 3 clients failed"):
        World(tmp_path, data, training__lr=1e30, training__epochs=5, run__rounds=20).serve()


def test_a_server_that_was_stopped_goes_on(tmp_path, data):
    class Stop(Exception):
        pass

    def stop(grid, node, message):
        raise Stop

    world = World(tmp_path, data, Once("west", 2, stop), run__rounds=3)
    with pytest.raises(Stop):
        world.serve()
    name = json.loads((tmp_path / "out" / "run.json").read_text())
    world.grid.fault = None
    world.grid.asked.clear()
    for node in list(world.grid.nodes):  # Flower calls them otherwise in the next run
        world.grid.join(world.grid.leave(node))
    assert_same(world.serve().history, inside(data, rounds=3).history)
    assert sorted(world.reported("note")) == [
        (2, client, "the server was started again after round 1") for client in range(3)
    ]
    assert json.loads((tmp_path / "out" / "run.json").read_text()) == name
    assert len(world.grid.asked) == 3 * (1 + 2 + 1)  # hello, rounds 2 and 3, the last measurement


def test_another_run_does_not_go_on_there(tmp_path, data):
    World(tmp_path, data).serve()
    with pytest.raises(ValueError, match=r"(?s)holds another run.*lr"):
        World(tmp_path, data, training__lr=0.5).serve()
    with pytest.raises(ValueError, match=r"(?s)holds another run.*clients"):
        World(tmp_path, data, run__clients="north south").serve()


def test_a_disk_that_was_lost_is_told(tmp_path, data):
    import shutil

    def fault(grid, node, message):
        shutil.rmtree(tmp_path / "south")

    world = World(tmp_path, data, Once("south", 2, fault))
    world.serve()
    ((round, client, text),) = world.reported("note")
    assert (round, client) == (2, 1)
    assert "started from scratch" in text


# ---- who is let in


def test_nobody_starts_without_all_clients(tmp_path, data):
    world = World(tmp_path, data, run__wait=0.2)
    world.grid.leave(world.node["west"])
    with pytest.raises(RuntimeError, match=r"west did not connect within 0\.2 s: start their supernodes"):
        world.serve()


def test_a_stranger_is_not_let_in(tmp_path, data, capsys):
    world = World(tmp_path, data)
    world.join("east", like="west")
    assert_same(world.serve().history, inside(data).history)
    assert "is refused: 'east' is not one of north, south, west" in capsys.readouterr().out


def test_a_name_belongs_to_its_key(tmp_path, data, capsys):
    def usurp(grid, node, message):
        world.join("south", like="west", key=b"west's")

    world = World(tmp_path, data, Once("north", 1, usurp), run__bind_keys=True, run__time_limit=2)
    for name in NAMES:
        world.grid.nodes[world.node[name]].public_key = name.encode()
    assert_same(world.serve().history, inside(data).history)
    assert "it calls itself 'south', but has another key" in capsys.readouterr().out
    # nor when the server is started again
    again = World(tmp_path, data, run__bind_keys=True, run__rounds=3, run__time_limit=2)
    for name in NAMES:
        again.grid.nodes[again.node[name]].public_key = b"west's" if name == "south" else name.encode()
    again.serve()
    out = capsys.readouterr().out
    assert "it calls itself 'south', but has another key" in out
    assert "south is not connected; the run continues without it" in out
    assert [(round, client) for round, client, _ in again.reported("dropped")] == [(3, 1)]


def test_a_site_without_its_data_says_so(tmp_path, data, capsys):
    world = World(tmp_path, data, run__wait=1e9)
    world.grid.homes[world.node["west"]]["data"] = "/nowhere/rows.csv"
    with pytest.raises(RuntimeError, match=r"west cannot take part: ValueError: There is no \.npz or \.csv file"):
        world.serve()
    assert "('west') cannot take part: ValueError: There is no .npz or .csv file" in capsys.readouterr().out


def test_examples_of_different_shapes_are_refused(tmp_path, data):
    world = World(tmp_path, data)
    np.savez(tmp_path / "other.npz", x=np.ones((20, 3)), y=np.zeros(20))
    world.grid.homes[world.node["west"]]["data"] = str(tmp_path / "other.npz")
    with pytest.raises(ValueError, match=r"different shapes \(north: \[6\].*west: \[3\]\)"):
        world.serve()


def test_columns_in_another_order_are_refused(tmp_path, data):
    world = World(tmp_path, data)
    for name, header in (("north", "a,b,y"), ("south", "a,b,y"), ("west", "b,a,y")):
        (tmp_path / f"{name}.csv").write_text(header + "\n" + "1,2,0\n3,4,1\n" * 10)
        world.grid.homes[world.node[name]]["data"] = str(tmp_path / f"{name}.csv")
    with pytest.raises(ValueError, match="differ in name or order"):
        world.serve()


def test_classes_are_those_of_all_sites(tmp_path, data):
    world = World(tmp_path, data)
    with np.load(data / "west.npz") as rows:
        np.savez(tmp_path / "fewer.npz", x=rows["x"], y=np.zeros(len(rows["y"])))
    world.grid.homes[world.node["west"]]["data"] = str(tmp_path / "fewer.npz")
    assert world.serve().summary["dropped"] == 0
