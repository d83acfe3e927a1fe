"""Trackers: a run reports its progress to them. TensorBoard, MLflow, Weights & Biases, or your own."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class Tracker:
    """Override the hooks you need; the defaults do nothing."""

    def start(self, config: dict[str, Any], done: int) -> None:
        """Before the first remaining round; `done` rounds of a resumed run are finished."""

    def round(self, round: int, metrics: dict[str, float]) -> None:
        """After each round: seconds, the number of clients that answered, and mean scores over all clients if they
        were evaluated after this round."""

    def participants(self, round: int, metrics: dict[str, float]) -> None:
        """Mean scores of the state after `round`, over the participants of the next round. Called during that next
        round, for rounds after which not all clients are evaluated; `round` 0 is the initial model."""

    def warn(self, text: str) -> None:
        """A client was dropped from a round, or the method says before round 1 why it cannot act."""

    def finish(self, summary: dict[str, Any]) -> None:
        """After the last round."""


class TensorBoard(Tracker):
    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ImportError("TensorBoard is not installed: pip install 'fedkin[tensorboard]'.") from None
        self._writer = SummaryWriter(str(folder))

    def round(self, round: int, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, round)

    def participants(self, round: int, metrics: dict[str, float]) -> None:
        self.round(round, metrics)

    def finish(self, summary: dict[str, Any]) -> None:
        self._writer.close()


class MLflow(Tracker):
    def __init__(self, experiment: str = "fedkin") -> None:
        try:
            import mlflow
        except ImportError:
            raise ImportError("MLflow is not installed: pip install 'fedkin[mlflow]'.") from None
        self._mlflow = mlflow
        mlflow.set_experiment(experiment)

    def start(self, config: dict[str, Any], done: int) -> None:
        self._mlflow.start_run()
        self._mlflow.log_params(flat(config))

    def round(self, round: int, metrics: dict[str, float]) -> None:
        self._mlflow.log_metrics(metrics, step=round)

    def participants(self, round: int, metrics: dict[str, float]) -> None:
        self.round(round, metrics)

    def finish(self, summary: dict[str, Any]) -> None:
        self._mlflow.log_metrics({k: v for k, v in flat(summary).items() if isinstance(v, int | float)})
        self._mlflow.end_run()


class WandB(Tracker):
    def __init__(self, project: str = "fedkin") -> None:
        try:
            import wandb
        except ImportError:
            raise ImportError("Weights & Biases is not installed: pip install 'fedkin[wandb]'.") from None
        self._wandb, self._project = wandb, project

    def start(self, config: dict[str, Any], done: int) -> None:
        self._run = self._wandb.init(project=self._project, config=config)

    def round(self, round: int, metrics: dict[str, float]) -> None:
        self._run.log(metrics, step=round)

    def participants(self, round: int, metrics: dict[str, float]) -> None:
        self.round(round, metrics)

    def finish(self, summary: dict[str, Any]) -> None:
        self._run.summary.update(flat(summary))
        self._run.finish()


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        out.update(flat(value, f"{name}.") if isinstance(value, dict) else {name: value})
    return out
