"""Ray clusters: join or start one, and send the user's code to its workers."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import shutil
import signal
import socket
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

import fedkin
from fedkin.engine.runner import RunSpec

START_LIMIT = 600.0  # seconds to start a cluster or a worker; on a busy machine it can take minutes
ATTEMPTS = 3  # to start a cluster
UNUSED_SERVICES = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")  # Ray's names

logger = logging.getLogger(__name__)
_idle: list[Any] | None = None


def idle() -> list[Any] | None:
    """Idle workers of the cluster started or joined here, for the next run: starting one takes seconds. None if
    the cluster belongs to somebody else."""
    return _idle


def versions() -> dict[str, str]:
    return {"fedkin": fedkin.__version__, "torch": str(torch.__version__), "numpy": np.__version__}


@contextlib.contextmanager
def cluster(address: str = "", workers: int = 0) -> Iterator[None]:
    """Connect to a Ray cluster: this process's own if it has one, that of `address` or RAY_ADDRESS, or else a new one
    on this machine, on loopback only, that ends with the block."""
    global _idle
    ray = ray_module()
    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS", "")
    if address.startswith("ray://"):
        raise ValueError(
            f"{address} is for Ray's client, which has no object store: run fedkin on a machine of the "
            "cluster, with --ray-address auto or host:port."
        )
    folder = None
    quiet = {"include_dashboard": None, "log_to_driver": False, "logging_level": "ERROR"}
    handler = signal.getsignal(signal.SIGTERM)
    try:
        if address and address != "local":
            try:
                _check_address(address)
                ray.init(address=address, **quiet)
            except (OSError, RuntimeError, ValueError) as error:
                raise ValueError(
                    f"There is no Ray cluster at '{address}': {short(error)}. Start one with `ray start --head`, or "
                    "leave --ray-address and RAY_ADDRESS out for one on this machine."
                ) from error
        else:
            # a folder of its own: other programs' ray.init() must not find this cluster. Sockets need a short path.
            folder = tempfile.mkdtemp(prefix="fedkin-ray-", dir="/tmp")
            _start_here(workers or os.cpu_count() or 1, folder, {**quiet, "include_dashboard": False})
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray has installed its own
        _idle = []
        yield
    finally:
        _idle = None
        ray.shutdown()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


class _RayletEnded(Exception):
    """Ray's own process on this machine ended while the cluster was starting."""


def _start_here(cores: int, folder: str, settings: dict[str, Any]) -> None:
    """Start a cluster on loopback. Ray's own limits are too short on a busy machine: it looks for its raylet for 30 s,
    and the raylet aborts if its agents take 30 s to say on which ports they listen. So look longer, settle the ports
    here, and start again if the raylet has ended all the same (somebody else may have taken the port)."""
    for attempt in range(1, ATTEMPTS + 1):
        with _patient() as nodes, on_loopback():
            try:
                ray_module().init(
                    address="local", num_cpus=cores, _node_ip_address="127.0.0.1", _temp_dir=folder, **settings
                )
                return
            except _RayletEnded as error:
                said = _last_words(Path(folder))
                for node in nodes:
                    node.kill_all_processes(check_alive=False)
                ray_module().shutdown()
                if attempt == ATTEMPTS:
                    raise RuntimeError(
                        f"Ray's process on this machine ended {ATTEMPTS} times while it was starting. Is the machine "
                        f"overloaded? Use --engine pool, which gives identical results. Ray's log: {said}"
                    ) from error
                logger.warning("Ray ended while it was starting, and is started again. Its log: %s", said)


def _last_words(folder: Path) -> str:
    """The fatal message in the logs of the newest cluster that was starting in this folder."""
    for name in ("raylet.out", "gcs_server.out"):
        for log in sorted(folder.glob(f"session_2*/logs/{name}"), reverse=True):  # named by the time of their start
            for line in log.read_text(errors="replace").splitlines():
                if re.search(r" [CF] \d+ \d+\] |Check failed", line):
                    return f"{name}: …{line.strip()[-300:]}"
    return "no fatal message"


@contextlib.contextmanager
def _patient() -> Iterator[list[Any]]:
    """Inside this block, Ray looks for its raylet until START_LIMIT or until the raylet has ended, and the raylet does
    not wait for the ports of its agents. Yields the list of Ray's nodes that are started."""
    from ray import _raylet
    from ray._private import services
    from ray._private.node import Node

    persist_port = getattr(_raylet, "persist_port", None)  # an older Ray has no such ports to wait for
    look, start = services.get_node, Node.start_raylet
    nodes: list[Any] = []

    def start_noted(node: Any, *arguments: Any, **options: Any) -> Any:
        nodes.append(node)
        if persist_port is not None:
            for name in UNUSED_SERVICES:
                persist_port(node.get_session_dir_path(), node.node_id, name, -1)  # Ray's own sign for "not in use"
            node._ray_params.runtime_env_agent_port = _free_port()
        return start(node, *arguments, **options)

    def look_longer(*arguments: Any) -> Any:
        deadline = time.monotonic() + START_LIMIT
        while True:
            try:
                return look(*arguments)
            except RuntimeError as error:
                raylets = [info.process for node in nodes for info in node.all_processes.get("raylet", ())]
                if any(process.poll() is not None for process in raylets):
                    raise _RayletEnded from error
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    services.get_node, Node.start_raylet = look_longer, start_noted
    try:
        yield nodes
    finally:
        services.get_node, Node.start_raylet = look, start


def _free_port() -> int:
    """A port on loopback that nobody uses now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _check_address(address: str) -> None:
    """Raise if nobody listens there. Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()


@contextlib.contextmanager
def on_loopback() -> Iterator[None]:
    """On Linux, Ray replaces 127.0.0.1 by an address that others can reach; inside this block it does not."""
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@functools.cache
def ray_module() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # without it, Ray warns of a future change
    # Ray gives up on its own processes after 30 or 60 s; on a busy machine they take longer to start
    os.environ.setdefault("RAY_agent_register_timeout_ms", str(int(1000 * START_LIMIT)))
    os.environ.setdefault("RAY_worker_register_timeout_seconds", str(int(START_LIMIT)))
    try:
        import ray
    except ImportError as error:
        raise ImportError(
            f"--engine ray needs Ray, which cannot be imported ({error}): pip install 'fedkin[ray]', or use "
            "--engine pool."
        ) from error
    return ray


def short(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]


@contextlib.contextmanager
def by_value(spec: RunSpec) -> Iterator[None]:
    """Inside this block, code of the user's own files is pickled with the run: a worker could not import it."""
    from ray import cloudpickle

    modules = [sys.modules[name] for name in sorted(_modules_of(spec)) if name in sys.modules]
    own = [
        module
        for module in modules
        if _is_own(module) and module.__name__ not in cloudpickle.list_registry_pickle_by_value()
    ]
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)


def _modules_of(spec: RunSpec) -> set[str]:
    """Where the method's classes, and the model's function or classes, are defined."""
    names = {kind.__module__ for kind in type(spec.method).__mro__}
    seen: set[int] = set()
    todo: list[Any] = [spec.make]
    while todo:
        thing = todo.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, nn.Module):
            names |= {kind.__module__ for part in thing.modules() for kind in type(part).__mro__}
        elif callable(thing) and isinstance(getattr(thing, "__module__", None), str):
            names.add(thing.__module__)
            todo += [cell.cell_contents for cell in getattr(thing, "__closure__", None) or ()]
            todo += [getattr(thing, "func", None)]
    return names


def _is_own(module: ModuleType) -> bool:
    """Neither installed nor part of Python or fedkin."""
    path = getattr(module, "__file__", None)
    if module.__name__ == "__main__" or module.__name__.split(".")[0] == "fedkin" or not path:
        return False
    installed = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return not any(Path(path).resolve().is_relative_to(Path(folder).resolve()) for folder in installed)
