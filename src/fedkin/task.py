"""The problem that a federation learns: its loss, its metrics, and the headline metric that results are judged by.

`run(..., task=Classification(metrics=("accuracy", "auc"), headline="auc"))`, `Regression()`, `MultiLabel()`, or your
own: a subclass of `Task` with a `loss` and a table of metrics. Everything that reports a result takes the metric's name
and direction from here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fedkin.maths import metrics

Array = NDArray[Any]
Reduction = Literal["mean", "sum"]


class Metric(NamedTuple):
    """`compute(outputs, targets)` of all examples of a client. `higher`: is more better?"""

    compute: Callable[[Array, Array], float]
    higher: bool = True
    percent: bool = True
    """Is it a fraction, shown as a percentage?"""
    resampled: Callable[[Array, Array, Array], Array] | None = None
    """`resampled(outputs, targets, counts)`: the metric on many resamples at once, where `counts[draw, example]` says
    how often each example is in a draw. Without it, `compute` is called for each draw."""
    both: bool = False
    """Does it compare classes, so that it needs several examples of each?"""
    least: float = -np.inf
    most: float = np.inf
    """The range of a metric that is not a fraction."""

    @property
    def range(self) -> tuple[float, float]:
        return (0.0, 1.0) if self.percent else (self.least, self.most)

    def on_draws(self, outputs: Array, targets: Array, counts: Array) -> Array:
        """The metric on each draw of the examples; NaN if it is not defined."""
        with np.errstate(all="ignore"):
            if self.resampled is not None:
                return np.asarray(self.resampled(outputs, targets, counts), float)
            drawn = (np.repeat(np.arange(len(targets)), count) for count in counts)
            return np.array([self.compute(outputs[i], targets[i]) if len(i) else np.nan for i in drawn])


@dataclass(frozen=True)
class Task(ABC):
    """A problem to learn. `known` are the metrics that can be requested; `metrics` are those that are computed."""

    known: ClassVar[Mapping[str, Metric]] = {}
    kind: ClassVar[str] = ""
    """The name of the task on the command line and in a run's config."""
    has_classes: ClassVar[bool] = False
    """Are the outputs scores of classes, one of which is right? Some methods need that."""

    metrics: tuple[str, ...] = ()
    headline: str = ""
    """The metric that results are judged by; by default the first one."""

    def __post_init__(self) -> None:
        unknown = [name for name in (*self.metrics, self.headline) if name and name not in self.known]
        if unknown:
            other = next((kind for kind, task in TASKS.items() if unknown[0] in task.known), "")
            hint = f" {unknown[0]} is for a {other}: task='{other}', --task {other}." if other else ""
            raise ValueError(
                f"There is no metric {', '.join(unknown)} for {self.kind}; known: {', '.join(self.known)}.{hint}"
            )
        wanted = self.metrics or ((self.headline,) if self.headline else tuple(self.known)[:1])
        object.__setattr__(self, "headline", self.headline or wanted[0])
        object.__setattr__(self, "metrics", tuple(dict.fromkeys((self.headline, *wanted))))

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor, reduction: Reduction = "mean") -> Tensor:
        """What training minimizes, over a batch."""

    @abstractmethod
    def predictions(self, outputs: Tensor) -> Tensor:
        """What a user of the model wants to know: labels, or numbers."""

    def in_units(self, outputs: Tensor) -> Tensor:
        """The network's outputs in the units of the targets."""
        return outputs

    def probabilities(self, outputs: Tensor) -> Tensor:
        raise ValueError(f"A {self.kind} has no probabilities: use predict.")

    @property
    def least_loss(self) -> float | None:
        """The smallest value of the loss; None if it is not known, as for a task of your own."""
        return 0.0 if type(self) in TASKS.values() else None

    @property
    def higher_is_better(self) -> bool:
        return self.known[self.headline].higher

    @property
    def is_cross_entropy(self) -> bool:
        """Is the loss plain cross entropy, whose gradient some networks have in closed form?"""
        return False

    def scores(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Every metric on all examples of one client; NaN where it is not defined (AUC of one class)."""
        found = {}
        outputs = self.in_units(outputs).detach().cpu()
        for name in self.metrics:
            with np.errstate(all="ignore"):
                found[name] = float(self.known[name].compute(outputs.numpy(), targets.cpu().numpy()))
        return found

    def to_config(self) -> dict[str, Any]:
        own = f"{type(self).__module__}:{type(self).__qualname__}"
        name = self.kind if type(self) in TASKS.values() else own
        return {
            "kind": name,
            "higher_is_better": self.higher_is_better,
            "percent": self.known[self.headline].percent,
            **{f.name: list(v) if isinstance(v := getattr(self, f.name), tuple) else v for f in fields(self)},
        }


@dataclass(frozen=True)
class Classification(Task):
    """One of several classes is right; outputs are logits or log-probabilities [examples, classes]."""

    kind = "classification"
    has_classes = True
    known = {
        "accuracy": Metric(metrics.accuracy, resampled=metrics.accuracy_on),
        "balanced_accuracy": Metric(metrics.balanced_accuracy, resampled=metrics.balanced_accuracy_on, both=True),
        "f1": Metric(metrics.f1, resampled=metrics.f1_on, both=True),
        "auc": Metric(metrics.auc, resampled=metrics.auc_on, both=True),
        "log_loss": Metric(metrics.log_loss, higher=False, percent=False, least=0.0),
        "calibration_error": Metric(metrics.calibration_error, higher=False),
    }

    class_weights: tuple[float, ...] = ()
    """Weight of each class in the training loss; by default all equal."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(not (np.isfinite(w) and w >= 0) for w in self.class_weights):
            raise ValueError(f"class_weights={self.class_weights} must be numbers of at least 0.")

    @property
    def is_cross_entropy(self) -> bool:
        return not self.class_weights

    def loss(self, outputs: Tensor, targets: Tensor, reduction: Reduction = "mean") -> Tensor:
        if not self.class_weights:
            return F.cross_entropy(outputs, targets, reduction=reduction)
        if len(self.class_weights) != outputs.shape[1]:
            raise ValueError(
                f"class_weights has {len(self.class_weights)} entries; there are {outputs.shape[1]} classes."
            )
        weight = torch.tensor(self.class_weights, dtype=outputs.dtype, device=outputs.device)
        total = F.cross_entropy(outputs, targets, weight, reduction="sum")
        # divided by the number of examples, not by their weights: batches then count by their size, as everywhere
        return total / len(targets) if reduction == "mean" else total

    def predictions(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(1)

    def probabilities(self, outputs: Tensor) -> Tensor:
        return torch.softmax(outputs, 1)


@dataclass(frozen=True)
class Regression(Task):
    """Numbers are predicted; the loss is the squared error.

    The network learns (target - center) / scale: with targets in the thousands, training would diverge. Metrics and
    predictions are in the targets' own units.
    """

    kind = "regression"
    known = {
        "rmse": Metric(metrics.rmse, higher=False, percent=False, least=0.0),
        "mae": Metric(metrics.mae, higher=False, percent=False, least=0.0),
        "r2": Metric(metrics.r2, percent=False, most=1.0),
    }

    center: tuple[float, ...] = ()
    """One number for each output. Where not given, the mean of the training targets if the data is a table, else 0."""
    scale: tuple[float, ...] = ()
    """One number above 0 for each output. Where not given, the standard deviation likewise, else 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.center) != len(self.scale) or any(not (np.isfinite(s) and s > 0) for s in self.scale):
            raise ValueError(
                f"center={self.center} and scale={self.scale} need one number for each output, the scale above 0."
            )

    def fitted(self, targets: Array) -> Regression:
        """The same task with the center and scale of these targets, unless it has them."""
        if self.scale:
            return self
        columns = targets.reshape(len(targets), -1).astype(float)
        center, spread = columns.mean(0), columns.std(0)
        return replace(self, center=tuple(center.tolist()), scale=tuple(np.where(spread > 0, spread, 1.0).tolist()))

    def in_units(self, outputs: Tensor) -> Tensor:
        if not self.scale:
            return outputs
        center, scale = self._affine(outputs)
        return outputs * scale + center

    def _affine(self, like: Tensor) -> tuple[Tensor, Tensor]:
        center, scale = (torch.tensor(v, dtype=like.dtype, device=like.device) for v in (self.center, self.scale))
        return center, scale

    def loss(self, outputs: Tensor, targets: Tensor, reduction: Reduction = "mean") -> Tensor:
        wanted = targets.reshape(len(targets), -1).to(outputs.dtype)
        if self.scale:
            center, scale = self._affine(wanted)
            wanted = (wanted - center) / scale
        error = (outputs.flatten(1) - wanted).square().mean(1)
        return error.mean() if reduction == "mean" else error.sum()

    def predictions(self, outputs: Tensor) -> Tensor:
        outputs = self.in_units(outputs)
        return outputs.squeeze(1) if outputs.dim() == 2 and outputs.shape[1] == 1 else outputs


@dataclass(frozen=True)
class MultiLabel(Task):
    """Each of several labels is there or not; outputs are logits [examples, labels], targets 0 or 1."""

    kind = "multilabel"
    known = {
        "accuracy": Metric(metrics.label_accuracy),
        "f1": Metric(metrics.label_f1),
        "auc": Metric(metrics.label_auc),
    }

    def loss(self, outputs: Tensor, targets: Tensor, reduction: Reduction = "mean") -> Tensor:
        error = F.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype), reduction="none").mean(1)
        return error.mean() if reduction == "mean" else error.sum()

    def predictions(self, outputs: Tensor) -> Tensor:
        return (outputs > 0).long()

    def probabilities(self, outputs: Tensor) -> Tensor:
        return torch.sigmoid(outputs)


TASKS: dict[str, type[Task]] = {kind.kind: kind for kind in (Classification, Regression, MultiLabel)}


def task(name: str, **settings: Any) -> Task:
    """A task by its name, or by `module:Class` for your own."""
    from fedkin.registry import load_path

    if name not in TASKS and ":" not in name:
        raise ValueError(f"There is no task '{name}'. Known: {', '.join(TASKS)}, or your own as file.py:Class.")
    made: Task = (TASKS[name] if name in TASKS else load_path(name))(**settings)
    return made


def from_config(config: Mapping[str, Any]) -> Task:
    """The task of a run's config.json."""
    settings: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in config.items()}
    name = str(settings.pop("kind"))
    for derived in ("higher_is_better", "percent"):
        settings.pop(derived, None)
    return task(name, **settings)


def task_of(given: Task | str | None, federation: Any, method: Any) -> Task:
    """The task of a run, checked against its data and its method."""
    arrays = getattr(federation, "arrays", None)
    if given is None:
        several = getattr(arrays, "multilabel", False)
        given = Classification() if federation.classes else MultiLabel() if several else Regression()
    made = task(given) if isinstance(given, str) else given
    if made.has_classes and not federation.classes:
        raise ValueError(
            f"The task is a {made.kind}, but the data has numbers to predict, not classes: use regression."
        )
    if made.kind == "multilabel" and arrays is not None and (arrays.y.ndim != 2 or not np.isin(arrays.y, (0, 1)).all()):
        raise ValueError("The targets of a multi-label task must be 0 or 1 for each label: task='multilabel'.")
    if federation.classes and made.kind == "regression":
        raise ValueError("The task is a regression, but the data has classes: load it with task='regression'.")
    if getattr(method, "needs_classes", False) and not made.has_classes:
        raise ValueError(f"{type(method).__name__} needs classes; it cannot learn a {made.kind}.")
    if isinstance(made, Regression) and getattr(federation, "preprocessing", None) is not None:
        trained = np.concatenate([split.train for split in federation.splits])
        made = made.fitted(federation.arrays.y[trained])
    return made
