"""Client functions and models on an accelerator, simulated: no GPU is needed, and none was tried."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import fedkin
from fedkin.engine import device as devices
from fedkin.engine import loop, pool, serial
from fedkin.engine.device import Device
from fedkin.methods import METHODS, method
from fedkin.models import MODELS
from fedkin.results.store import equal

sys.path.insert(0, str(Path(__file__).parent))
from simulated import Simulated, Tagged

SETTINGS = {"rounds": 2, "epochs": 1, "lr": 0.05, "batch_size": 8, "evaluate_every": 1, "participation": 0.8}


@pytest.fixture
def simulated(monkeypatch):
    """`device="sim"` is the simulated device, in all engines of this machine."""
    made = []

    def opened(name):
        made.append(Simulated(name) if name.startswith("sim") else Device(name))
        return made[-1]

    for module in (serial, pool):
        monkeypatch.setattr(module, "open_device", opened)
    monkeypatch.setattr(loop, "check_device", lambda option, amp: option.split(","))
    return made


@pytest.fixture(scope="module")
def few():
    return fedkin.federate("digits", partition="dirichlet", clients=4, samples_per_client=40, alpha=0.5, seed=3)


def outcome(run):
    records = [(r.round, r.client, r.metric, r.value) for r in run.history]
    return records, run.state


@pytest.mark.parametrize("name", METHODS)
def test_every_method_computes_on_the_device(name, few, simulated):
    """All tensors of a client function are on its device, and the numbers are those of the CPU."""
    chosen = method(name)
    here = fedkin.run(chosen, few, model="mlp_small", engine="serial", **SETTINGS)
    there = fedkin.run(chosen, few, model="mlp_small", engine="serial", device="sim", **SETTINGS)
    assert [type(d) for d in simulated] == [Device, Simulated]
    assert not list(there.history.select("dropped"))
    assert equal(here.state, there.state)
    assert here.history.values("personal", round=2) == there.history.values("personal", round=2)


def image_data(channels, side, count=36):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((count, channels, side, side)).astype(np.float32)
    return fedkin.federate(fedkin.from_arrays(x, rng.integers(0, 3, count), client=np.repeat([0, 1], count // 2)))


def windows():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((36, 9, 128)).astype(np.float32)
    return fedkin.federate(fedkin.from_arrays(x, rng.integers(0, 3, 36), client=np.repeat([0, 1], 18)))


@pytest.mark.parametrize("name", MODELS)
def test_every_model_computes_on_the_device(name, simulated):
    data = windows() if "har" in name else image_data(3, 32)
    options = {"width": 0.25} if name != "logistic" and "width" in fedkin_options(name) else {}
    settings = {**SETTINGS, "rounds": 1, "engine": "serial", "model": name, "model_options": options}
    here = fedkin.run("fedavg", data, **settings)
    there = fedkin.run("fedavg", data, device="sim", **settings)
    assert torch.equal(here.state["model"], there.state["model"])


def fedkin_options(name):
    import inspect

    return inspect.signature(MODELS[name].load()).parameters


def test_workers_are_spread_over_devices_and_replies_come_home(few, simulated):
    here = fedkin.run("scaffold", few, workers=2, **SETTINGS)
    there = fedkin.run("scaffold", few, workers=2, device="sim:0,sim:1", **SETTINGS)
    assert equal(here.state, there.state)
    assert not simulated, "the parent opens no device: its workers do"
    assert not any(isinstance(value, Tagged) for value in there.state.values())


def test_a_pool_gives_each_worker_its_device(few, monkeypatch):
    from fedkin.engine.runner import RunSpec
    from fedkin.protocol import Training

    started = []
    monkeypatch.setattr(pool.Pool, "_start", lambda self, up, number: started.append(self._devices[number % 2]))
    spec = RunSpec(method("fedavg"), few, lambda: None, None, Training(), 0)
    pool.Pool(spec, 5, devices=["cuda:0", "cuda:3"])
    assert started == ["cuda:0", "cuda:3", "cuda:0", "cuda:3", "cuda:0"]


def test_data_is_placed_once(few, simulated, monkeypatch):
    placed = []
    original = Simulated.to_device
    monkeypatch.setattr(
        Simulated, "to_device", lambda self, array: (placed.append(tuple(array.shape)), original(self, array))[1]
    )
    fedkin.run("fedavg", few, engine="serial", device="sim", **{**SETTINGS, "rounds": 3, "participation": 1.0})
    for client in range(len(few)):
        shape = tuple(few.data(client).x.shape)
        same = sum(tuple(few.data(other).x.shape) == shape for other in range(len(few)))
        assert 1 <= placed.count(shape) <= 3 * same, shape  # train, validation and test may have equal sizes


def test_mixed_precision_is_entered_around_the_network_alone(few, simulated):
    fedkin.run("fedavg", few, model="mlp_small", engine="serial", device="sim", amp=True, **SETTINGS)
    assert simulated[0].entered > 10
    plain = Simulated()
    assert plain.entered == 0


def test_mixed_tensors_raise():
    with pytest.raises(RuntimeError, match="one is on the CPU"):
        Tagged(torch.ones(3)) + torch.ones(3)
    assert float((Tagged(torch.ones(3)) + torch.tensor(1.0)).sum()) == 6.0
    assert torch.equal(Tagged(torch.arange(3.0))[torch.tensor([2, 0])].cpu(), torch.tensor([2.0, 0.0]))


def test_client_code_that_forgets_the_device_is_found(few, simulated):
    """The simulated device is of use: a tensor put on the CPU by name is refused, as on a GPU."""
    kind = type(method("fedavg"))

    class Forgets(kind):
        def local(self, client, message):
            reply = super().local(client, message)
            return reply._replace(body=(reply.body[0] + torch.zeros(len(reply.body[0]), device="cpu"),))

    fedkin.run(Forgets(), few, engine="serial", **SETTINGS)
    with pytest.raises(RuntimeError, match="one is on the CPU"):
        fedkin.run(Forgets(), few, engine="serial", device="sim", **SETTINGS)


# ---- which devices there are


def test_names(monkeypatch):
    assert devices.names("cpu") == ["cpu"]
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert devices.names("auto") == ["cpu"]
    for option in ("cuda", "cuda:1", "mps"):
        with pytest.raises(ValueError, match="finds no"):
            devices.names(option)
    with pytest.raises(ValueError, match="must be one of auto, cpu"):
        devices.names("gpu")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert devices.names("auto") == ["mps"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert devices.names("auto") == devices.names("cuda") == ["cuda:0", "cuda:1", "cuda:2"]
    assert devices.names("cuda:2,0") == ["cuda:2", "cuda:0"]
    with pytest.raises(ValueError, match="no CUDA device 3; there are 3"):
        devices.names("cuda:3")


def test_what_cannot_be_is_refused(few, monkeypatch):
    with pytest.raises(ValueError, match="amp=True is for accelerators"):
        fedkin.run("fedavg", few, amp=True, **SETTINGS)
    with pytest.raises(ValueError, match="finds no CUDA device"):
        fedkin.run("fedavg", few, device="cuda", **SETTINGS)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    devices.check_fork(["cpu"])
    with pytest.raises(RuntimeError, match="before anything on the GPU"):
        devices.check_fork(["cuda:0"])


def test_the_parent_does_not_initialize_cuda(few):
    devices.names("auto")
    fedkin.run("fedavg", few, **SETTINGS)
    assert not torch.cuda.is_initialized()


def test_deterministic_kernels_are_asked_for_in_the_worker(few):
    try:
        fedkin.run("fedavg", few, engine="serial", deterministic=True, **SETTINGS)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_shares_of_gpus_for_ray():
    from fedkin.engine.ray import gpus_per_worker

    assert [gpus_per_worker(*pair) for pair in ((4, 2), (2, 2), (1, 2), (2, 3), (2, 8))] == [2, 1, 0.5, 0.5, 0.25]
