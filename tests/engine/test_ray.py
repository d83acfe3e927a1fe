"""The Ray engine does what the pool does: the same bits, the same faults survived, nothing left behind."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import fedkin
from fedkin import Client, Message, Replies, Reply, Server
from fedkin.conformance.properties import ray_agrees
from fedkin.engine import ray as engine
from fedkin.engine import ray_cluster, scheduler
from fedkin.engine.ray_cluster import ray_module
from fedkin.methods import METHODS, method
from fedkin.registry import load_path
from fedkin.results.store import equal
from tests.engine.test_resume import files
from tests.processes import family, needs_linux, wait_until_gone

pytestmark = pytest.mark.processes

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: fedkin[ray]")


@pytest.fixture(scope="module")
def session():
    """One cluster for all tests: its start takes seconds."""
    with engine.cluster(workers=2):
        yield


@pytest.fixture(scope="module")
def fed() -> fedkin.Federation:
    return fedkin.federate("digits", clients=5, samples_per_client=40, seed=3)


def listening(pids: list[int]) -> set[str]:
    """Addresses, in the kernel's hexadecimal, at which these processes listen."""
    inodes = set()
    for pid in pids:
        for fd in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                inodes.add(os.readlink(fd))
            except OSError:
                continue
    out = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
                out.add(words[1].split(":")[0])
    return out


# ---- the same bits


@needs_ray
@pytest.mark.parametrize(
    "made",
    [
        method("fedavg"),
        method("ditto"),  # keeps state at clients
        method("dcpfl"),  # replies of unlike shapes
        method("pflic", restarts=2),  # several exchanges in a round
    ],
    ids=lambda made: type(made).__name__,
)
def test_the_same_bits_as_one_by_one(session, made):
    ray_agrees(made)


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_method_gives_the_same_bits(session, name):
    ray_agrees(method(name))


@needs_ray
def test_lost_replies_and_those_who_come_and_go(session, fed):
    settings = {"rounds": 5, "lost": 0.3, "arrive": {4: 3}, "leave": {0: 4}, "evaluate_every": 2}
    one, two = (fedkin.run("ditto", fed, engine=name, **settings) for name in ("serial", "ray"))
    assert any(record.value == "lost on the way" for record in two.history.select("dropped"))
    assert one.history.records == two.history.records
    assert equal(one.state, two.state)


@needs_ray
def test_a_stopped_run_goes_on_in_another_engine(session, fed, tmp_path):
    fedkin.run("ditto", fed, rounds=4, engine="serial", out=tmp_path / "a", checkpoint_every=1, evaluate_every=1)
    for rounds, name in ((1, "ray"), (2, "serial"), (4, "ray")):
        fedkin.run("ditto", fed, rounds=rounds, engine=name, out=tmp_path / "b", checkpoint_every=1, evaluate_every=1)
    models = [{p.name: p.read_bytes() for p in (tmp_path / run / "models").iterdir()} for run in "ab"]
    assert len(models[0]) == 6
    assert models[0] == models[1]
    assert (tmp_path / "a/history.jsonl").read_bytes() == (tmp_path / "b/history.jsonl").read_bytes()
    assert (tmp_path / "a/summary.json").read_bytes() == (tmp_path / "b/summary.json").read_bytes()


OWN = """
from dataclasses import dataclass
from torch import nn
from fedkin.methods.fedavg import FedAvg

SLOWER = 0.5

def helper(row):
    return row * SLOWER

@dataclass(frozen=True)
class Mine(FedAvg):
    def local(self, client, message):
        reply = super().local(client, message)
        return reply._replace(body=tuple(helper(a) if a.is_floating_point() else a for a in reply.body))

def network(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 7), nn.Tanh(), nn.Linear(7, classes))
"""


@needs_ray
def test_methods_and_models_in_files_of_ones_own_travel(session, fed, tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    made = load_path(f"{tmp_path}/mine.py:Mine")()
    settings = {"rounds": 2, "model": f"{tmp_path}/mine.py:network"}
    one, two = (fedkin.run(made, fed, engine=name, **settings) for name in ("serial", "ray"))
    assert equal(one.state, two.state)
    assert one.history.records == two.history.records


def test_all_dtypes_and_shapes_travel():
    arrays = [
        torch.tensor(3.5, dtype=torch.bfloat16),
        torch.arange(6).view(2, 3).T,
        torch.tensor([True, False]),
        torch.empty(0, 4),
        torch.randn(3).to(torch.complex64),
    ]
    for array in arrays:
        assert equal(engine.unpack(engine.pack(array)), array.contiguous())


@needs_ray
def test_equal_arrays_of_a_list_are_posted_once(session, fed):
    from fedkin.engine.runner import RunSpec

    spec = RunSpec(
        method("fedavg"), fed, lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), None, fedkin.Training(), 0
    )
    ray = engine.Ray(spec, 1)
    try:
        large = torch.zeros(engine.INLINE)
        ray.post(Message())
        assert ray._own(large) is ray._own(large)
        assert len(ray._posted) == 1
        assert isinstance(ray._own(large[:5]), engine.Packed)  # small: with the call
    finally:
        ray.close()


# ---- faults


@dataclass(frozen=True)
class Faulty(type(method("fedavg"))):  # type: ignore[misc]
    """FedAvg with a client that misbehaves in round 2. It is the first, so that a single worker begins with it."""

    fault: str = ""
    mark: str = ""

    def init(self, fed: Server):
        return {**super().init(fed), "round": 1}

    def send(self, state, ids) -> Message:
        return Message((state["model"], torch.tensor(state["round"])), (ids,))

    def local(self, client: Client, message: Message) -> Reply:
        trained = fedkin.sgd(client, message.shared[0])
        message.shared[0].zero_()  # must not be seen by anybody else
        if int(message.own[0]) == 0 and int(message.shared[1]) == 2:
            if self.fault == "raise":
                raise RuntimeError("no more battery")
            if self.fault == "hang":
                Path(self.mark).touch()
                threading.Event().wait()
            if self.fault == "die" or (self.fault == "die once" and not Path(self.mark).exists()):
                Path(self.mark).touch()
                os._exit(9)
        return Reply({"round": int(message.shared[1])}, (trained,))

    def received(self, client: Client, message: Message):
        return message.shared[0]

    def merge(self, state, sent: Message, replies: Replies):
        return {**super().merge(state, sent, replies), "round": state["round"] + 1}


def play(fed, fault: str, mark: Path, **changes):
    settings = {"rounds": 3, "workers": 2, "engine": "ray", **changes}
    return fedkin.run(Faulty(fault=fault, mark=str(mark)), fed, **settings)


@needs_ray
@pytest.mark.parametrize(
    ("fault", "word", "limit"),
    [
        ("raise", "no more battery", 0.0),
        pytest.param("hang", "did not answer within 2 s", 2.0, marks=pytest.mark.slow),
        pytest.param("die", "died 3 times", 0.0, marks=pytest.mark.slow),
    ],
)
def test_a_bad_client_is_dropped_and_named(session, fed, tmp_path, monkeypatch, fault, word, limit):
    mark = tmp_path / "mark"
    if limit:  # time stands still until the client hangs, however long the others take
        monkeypatch.setattr(scheduler, "time", SimpleNamespace(monotonic=lambda: 1000.0 if mark.exists() else 0.0))
    result = play(fed, fault, mark, time_limit=limit, workers=1)
    (record,) = result.history.select("dropped")
    assert (record.round, record.client) == (2, 0)
    assert word in record.value
    absent = play(fed, "", tmp_path / "mark", engine="serial", rounds=2, leave={0: 2})
    dropped = play(fed, "raise", tmp_path / "mark", rounds=2)
    assert equal(dropped.state, absent.state)


@needs_ray
def test_a_worker_that_dies_is_replaced_and_its_work_repeated(session, fed, tmp_path):
    result = play(fed, "die once", tmp_path / "died")
    assert (tmp_path / "died").exists()
    healthy = play(fed, "", tmp_path / "died", engine="serial")
    assert equal(result.state, healthy.state)
    assert result.history.records == healthy.history.records


@needs_ray
def test_more_workers_than_the_cluster_has_are_refused(session, fed):
    with pytest.raises(ValueError, match="workers=3, but the Ray cluster has 2 CPUs"):
        fedkin.run("fedavg", fed, rounds=1, engine="ray", workers=3)


def test_without_ray_it_says_what_to_install(fed, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    ray_module.cache_clear()
    try:
        with pytest.raises(ImportError, match=r"pip install 'fedkin\[ray\]'"):
            fedkin.run("fedavg", fed, rounds=1, engine="ray")
    finally:
        ray_module.cache_clear()


class Promise:
    def __init__(self, value) -> None:
        self.value = value


class InProcess:
    """As much of Ray as the engine uses, in this process. `node` is the machine of the workers; ours is "here"."""

    exceptions = SimpleNamespace(RayTaskError=RuntimeError, RayError=OSError, GetTimeoutError=TimeoutError)

    def __init__(self, node: str) -> None:
        self._node, self._at_worker = node, False

    def is_initialized(self) -> bool:
        return True

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 1.0}

    available_resources = cluster_resources

    def get_runtime_context(self):
        return SimpleNamespace(get_node_id=lambda: self._node if self._at_worker else "here")

    def put(self, value):
        return value

    def get(self, promises, timeout=None):
        return [p.value for p in promises] if isinstance(promises, list) else promises.value

    def wait(self, promises, **_):
        return promises, []

    def kill(self, actor) -> None:
        pass

    def remote(self, **_):
        return lambda kind: SimpleNamespace(remote=lambda: self._actor(kind()))

    def _actor(self, worker):
        def call(name):
            def remote(*arguments):
                self._at_worker = True
                try:
                    return Promise(getattr(worker, name)(*arguments))
                finally:
                    self._at_worker = False

            return SimpleNamespace(remote=remote)

        return SimpleNamespace(prepare=call("prepare"), perform=call("perform"))


@needs_ray
@pytest.mark.parametrize("node", ["here", "elsewhere"])
def test_workers_write_nothing_into_the_folder_of_a_run(fed, tmp_path, monkeypatch, node):
    """A worker may outlive a run that is stopped: what it writes then would be in the folder of the next one."""
    ray, received, came = InProcess(node), engine._received, []
    for module in (engine, ray_cluster):
        monkeypatch.setattr(module, "ray_module", lambda: ray)
    monkeypatch.setattr(ray_cluster, "_idle", None)  # not the workers of the other tests' cluster

    def kept(work, done):
        new = [path for path in done.files if path not in came]
        assert not [path for path in new if path.exists()], "the worker is done, and has written nothing"
        came.extend(new)
        outcome = received(work, done)
        assert all(path.exists() for path in done.files), "the process of the run has"
        return outcome

    monkeypatch.setattr(engine, "_received", kept)
    settings = {"rounds": 2, "checkpoint_every": 1, "evaluate_every": 1}
    fedkin.run("ditto", fed, engine="ray", workers=1, out=tmp_path / "a", **settings)
    assert {path.parent.name for path in came} == {"checkpoint", "models"}, "states and models"
    fedkin.run("ditto", fed, engine="serial", out=tmp_path / "b", **settings)
    assert files(tmp_path / "a") == files(tmp_path / "b")


class LosesAMachine(InProcess):
    """The second worker dies with its machine, and the cluster learns of it while a new worker is awaited."""

    def __init__(self) -> None:
        super().__init__("here")
        self.actors, self.killed, self.noticed = 0, 0, False

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 1.0 if self.noticed else 2.0}

    available_resources = cluster_resources

    def _actor(self, worker):
        self.actors += 1
        made = super()._actor(worker)
        if self.actors == 2:
            made.perform = SimpleNamespace(remote=lambda *_: Promise(OSError("the machine is gone")))
        if self.actors > 2:
            made.prepare = SimpleNamespace(remote=lambda *_: Promise(None))
        return made

    def get(self, promises, timeout=None):
        if not isinstance(promises, list) and isinstance(promises.value, OSError):
            raise promises.value
        return super().get(promises, timeout)

    def wait(self, promises, **_):
        if promises[0].value is None:  # the new worker's
            self.noticed = True
            return [], promises
        return promises, []

    def kill(self, actor) -> None:
        self.killed += 1


@needs_ray
def test_a_worker_is_not_awaited_on_a_machine_that_left(fed, monkeypatch):
    """Ray notices a lost machine long after its workers are dead; to wait for a new one would take ten minutes."""
    ray = LosesAMachine()
    for module in (engine, ray_cluster):
        monkeypatch.setattr(module, "ray_module", lambda: ray)
    monkeypatch.setattr(ray_cluster, "_idle", None)
    found = fedkin.run("fedavg", fed, engine="ray", workers=2, rounds=2)
    assert ray.noticed
    assert ray.actors == 3, "a new worker was tried once"
    assert ray.killed >= 2, "the dead one and the one that cannot start"
    assert found.summary["personal"] == fedkin.run("fedavg", fed, engine="serial", rounds=2).summary["personal"]


# ---- clusters


@needs_ray
@needs_linux
def test_it_listens_on_loopback_alone(session):
    addresses = listening(family(os.getpid()))
    loopback = {"0100007F", "0" * 16 + "FFFF00000100007F", "0" * 24 + "01000000"}
    assert addresses
    assert addresses <= loopback


COMMAND = [sys.executable, "-m", "fedkin", "run", "ditto", "--data", "digits", "--clients", "4", "--json", "--quiet"]


@needs_ray
@pytest.mark.slow
def test_the_command_leaves_nothing_behind(tmp_path):
    before = set(Path("/tmp").glob("fedkin-ray-*"))
    flags = ["--rounds", "2", "--samples-per-client", "40"]
    for name in ("pool", "ray"):
        command = [*COMMAND, *flags, "--engine", name, "--out", tmp_path / name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.startswith("{")
        assert not done.stderr
    assert (tmp_path / "pool/history.jsonl").read_bytes() == (tmp_path / "ray/history.jsonl").read_bytes()
    assert set(Path("/tmp").glob("fedkin-ray-*")) == before


# In its third round, in the middle of it, the run says which processes it has started, and is killed.
KILLED = """
import itertools, os, signal
import fedkin
from fedkin.cli import main
from tests.processes import family

method = type(fedkin.method("ditto"))
merge, count = method.merge, itertools.count(1)

def last(self, state, sent, replies):
    if next(count) == 3:
        print(*family(os.getpid())[1:], flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return merge(self, state, sent, replies)

method.merge = last
main()
"""


@needs_ray
@needs_linux
@pytest.mark.slow
def test_a_killed_run_takes_its_cluster_along_and_goes_on(tmp_path, spawn):
    flags = ["--rounds", "5", "--checkpoint-every", "1"]
    killed = [sys.executable, "-c", KILLED, *COMMAND[3:], *flags, "--engine", "ray", "--out", tmp_path / "b"]
    process = spawn(killed, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE)
    others = [int(word) for word in process.stdout.readline().split()]
    assert len(others) > 3
    assert process.wait() == -signal.SIGKILL
    wait_until_gone(others)
    for name in "ab":
        subprocess.run([*COMMAND, *flags, "--out", tmp_path / name], check=True, capture_output=True)
    assert (tmp_path / "a/history.jsonl").read_bytes() == (tmp_path / "b/history.jsonl").read_bytes()


TWO_MACHINES = """
import sys
import fedkin
from fedkin.engine import ray as engine
from fedkin.engine import ray_cluster, scheduler
from ray.cluster_utils import Cluster

traveled, received = [], engine._received
engine._received = lambda work, done: (traveled.extend(done.files), received(work, done))[1]
fed = fedkin.federate("digits", clients=5, samples_per_client=40, seed=3)
settings = {"checkpoint_every": 1, "evaluate_every": 1, "out": sys.argv[1]}
with engine.on_loopback():
    head = {"num_cpus": 0, "include_dashboard": False, "temp_dir": sys.argv[2]}
    machines = Cluster(initialize_head=True, head_node_args=head)
    try:
        machines.add_node(num_cpus=2, temp_dir=sys.argv[2])
        with engine.cluster(machines.address):
            for rounds in (2, 4):
                fedkin.run("ditto", fed, engine="ray", rounds=rounds, **settings)
    finally:
        machines.shutdown()
print(*(sum(path.parent.name == name for path in traveled) for name in ("checkpoint", "models")))
"""


@needs_ray
@pytest.mark.slow
def test_states_and_models_come_back_from_other_machines(fed, tmp_path):
    """Ray's own way of having several machines in one; all workers are on the one that does not run fedkin."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # Ray's sockets need a short path
        command = [sys.executable, "-c", TWO_MACHINES, tmp_path / "b", folder]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["20", "10"]  # a state in each of 4 rounds, a model after rounds 2 and 4
    fedkin.run("ditto", fed, engine="serial", rounds=4, checkpoint_every=1, evaluate_every=1, out=tmp_path / "a")
    for name in ("history.jsonl", "models/index.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    files = [{p.name: p.read_bytes() for p in (tmp_path / run / "models").iterdir()} for run in "ab"]
    assert files[0] == files[1]


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize(
    ("address", "words"), [("127.0.0.1:9", "no Ray cluster at"), ("ray://127.0.0.1:10001", "run fedkin on a machine")]
)
def test_a_cluster_that_is_not_there(tmp_path, address, words):
    command = [*COMMAND, "--rounds", "1", "--engine", "ray", "--ray-address", address]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert words in done.stderr


DYING = """
import sys
from fedkin.engine.ray_cluster import cluster, ray_module
ray = ray_module()
from ray._private.node import Node

start, started = Node.start_raylet, []

def start_and_die(node, *arguments, **options):
    start(node, *arguments, **options)
    started.append(node)
    if len(started) <= int(sys.argv[1]):
        for info in node.all_processes["raylet"]:
            info.process.kill()
            info.process.wait()

Node.start_raylet = start_and_die
with cluster(workers=1):
    print(len(started), ray.cluster_resources()["CPU"])
"""


@needs_ray
@pytest.mark.slow
def test_agents_that_are_slow_to_start_do_not_end_the_cluster(tmp_path):
    """A raylet that must wait for its agents' ports aborts after 30 s."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, time\nif any('agent' in word for word in sys.orig_argv):\n    time.sleep(40)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", DYING, "0"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert (done.returncode, done.stdout) == (0, "1 1.0\n"), done.stderr


@needs_ray
@pytest.mark.parametrize(
    ("deaths", "code", "out", "word"),
    [
        (1, 0, "2 1.0\n", ""),
        pytest.param(3, 1, "", "ended 3 times while it was starting", marks=pytest.mark.slow),  # three starts of Ray
    ],
)
def test_a_cluster_whose_raylet_ends_is_started_again(tmp_path, deaths, code, out, word):
    """A raylet aborts if its agent is slow to start, as on an overloaded machine."""
    done = subprocess.run([sys.executable, "-c", DYING, str(deaths)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (code, out), done.stderr
    assert word in done.stderr
    assert "is started again" in done.stderr
