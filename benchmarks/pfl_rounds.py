"""Rounds of pfl-research on the work of speed.py, in an environment of its own: speed.py starts it.

    PFL_PYTHON -m torch.distributed.run --nproc-per-node=2 benchmarks/pfl_rounds.py MODEL EPOCHS BATCH ROUNDS

Each process prints the wall seconds and its own CPU seconds of every round, the first one left out.
"""

from __future__ import annotations

import json
import os
import sys
import time

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from torch import nn
from torch.nn import functional as F

CLIENTS, TRAIN, TEST, CHOSEN = 100, 480, 120, 30


class Net(nn.Module):
    def __init__(self, model: str) -> None:
        super().__init__()
        if model == "cnn3":
            layers: list[nn.Module] = []
            for before, after in ((1, 32), (32, 64), (64, 64)):
                layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
            self.net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(576, 128), nn.ReLU(), nn.Linear(128, 10))
        else:
            self.net = nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def loss(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> torch.Tensor:
        self.eval() if eval else self.train()
        return F.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor, eval: bool = True) -> dict[str, Weighted]:
        self.eval()
        right = (self(x).argmax(1) == y).float().sum().item()
        return {"accuracy": Weighted(right, len(y))}


class Times(TrainingProcessCallback):
    def __init__(self) -> None:
        self.marks = [(time.perf_counter(), time.process_time())]

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.marks.append((time.perf_counter(), time.process_time()))
        return False, type(aggregate_metrics)()


def main() -> None:
    model, epochs, batch, rounds = sys.argv[1], *map(int, sys.argv[2:])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    data = {}
    for client in range(CLIENTS):
        x = torch.randn(TRAIN + TEST, 1, 28, 28, generator=generator)
        y = torch.randint(0, 10, (TRAIN + TEST,), generator=generator)
        data[client] = x, y
    users = list(range(CLIENTS))

    def part(span: slice, sampler: str) -> FederatedDataset:
        def make(user: int) -> Dataset:
            x, y = data[user]
            return Dataset(raw_data=[x[span], y[span]], user_id=str(user))

        return FederatedDataset(make, get_user_sampler(sampler, users))

    np.random.seed(0)  # noqa: NPY002 (pfl draws from it)
    backend = SimulatedBackend(
        training_data=part(slice(0, TRAIN), "random"), val_data=part(slice(TRAIN, None), "minimize_reuse")
    )
    net = Net(model)
    wrapped = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    times = Times()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds + 1, evaluation_frequency=1, train_cohort_size=CHOSEN, val_cohort_size=CLIENTS
        ),
        backend,
        wrapped,
        NNTrainHyperParams(local_num_epochs=epochs, local_learning_rate=0.01, local_batch_size=batch),
        NNEvalHyperParams(local_batch_size=600),
        [times],
        send_metrics_to_platform=False,
    )
    each = [(b[0] - a[0], b[1] - a[1]) for a, b in zip(times.marks[1:-1], times.marks[2:])]
    print("RESULT " + json.dumps(each), flush=True)
    torch.distributed.barrier()
    os._exit(0)  # gloo's threads sometimes abort the process while Python shuts down


if __name__ == "__main__":
    main()
