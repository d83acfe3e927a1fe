"""The same work as `speed.py` through other libraries, where they are installed."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import fedkin
from fedkin.engine.ray import on_loopback

for name in ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"):
    os.environ.setdefault(name, "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("FLWR_HOME", os.path.join(tempfile.gettempdir(), "fedkin-flwr-home"))


def train(net: nn.Module, x: torch.Tensor, y: torch.Tensor, epochs: int, batch: int, lr: float) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    net.train()
    for _ in range(epochs):
        order = torch.randperm(len(y))
        for at in order.split(batch):
            optimizer.zero_grad()
            F.cross_entropy(net(x[at]), y[at]).backward()
            optimizer.step()


def flower(
    make: Callable[[], nn.Module],
    federation: fedkin.Federation,
    *,
    epochs: int,
    batch: int,
    chosen: int,
    rounds: int,
    lr: float = 0.01,
    workers: int = 2,
    evaluate: bool = True,
) -> list[float]:
    """Seconds of each round of Flower's Ray simulation, one thread a client, after a first round that starts it."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    size = len(federation)
    data = [federation.data(c).train for c in range(size)]
    tests = [federation.test(c) for c in range(size)]
    client = ClientApp()

    @client.train()
    def fit(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        who = int(context.node_config["partition-id"])
        net = make()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        train(net, data[who].x, data[who].y, epochs, batch, lr)
        content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": len(data[who].y)})}
        return Message(content=RecordDict(content), reply_to=message)

    @client.evaluate()
    def test(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        who = int(context.node_config["partition-id"])
        net = make()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        net.eval()
        with torch.no_grad():
            right = int((net(tests[who].x).argmax(1) == tests[who].y).sum())
        numbers = {"accuracy": right / len(tests[who].y), "num-examples": len(tests[who].y)}
        return Message(content=RecordDict({"metrics": MetricRecord(numbers)}), reply_to=message)

    ends: list[float] = []

    class Timed(FedAvg):
        """A round ends when its last reply has been worked in."""

        def aggregate_train(self, *arguments, **named):
            out = super().aggregate_train(*arguments, **named)
            if not evaluate:
                ends.append(time.perf_counter())
            return out

        def aggregate_evaluate(self, *arguments, **named):
            out = super().aggregate_evaluate(*arguments, **named)
            if evaluate:
                ends.append(time.perf_counter())
            return out

    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = Timed(fraction_train=chosen / size, fraction_evaluate=float(evaluate), min_available_nodes=size)
        strategy.start(grid=grid, initial_arrays=ArrayRecord(make().state_dict()), num_rounds=rounds + 1)

    with tempfile.TemporaryDirectory(dir="/tmp") as folder, on_loopback():
        init = {"num_cpus": workers, "_node_ip_address": "127.0.0.1", "_temp_dir": folder, "include_dashboard": False}
        resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": init}
        run_simulation(server, client, num_supernodes=size, backend_config=resources)
    return np.diff(ends).tolist()
