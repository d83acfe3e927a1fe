"""The problem that a federation learns: its loss, its metrics, and the headline metric that results are judged by.

`run(..., task=Classification(metrics=("accuracy", "auc"), headline="auc"))`, `Regression()`, `MultiLabel()`, or your
own: a subclass of `Task` with a `loss` and a table of metrics. Everything that reports a result takes the metric's name
and direction from here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

Array = NDArray[Any]
Reduction = Literal["mean", "sum"]
BINS = 15  # bins of the calibration error


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
            raise ValueError(
                f"There is no metric {', '.join(unknown)} for {self.kind}; known: {', '.join(self.known)}."
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

    def probabilities(self, outputs: Tensor) -> Tensor:
        raise ValueError(f"A {self.kind} has no probabilities: use predict.")

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
        for name in self.metrics:
            with np.errstate(all="ignore"):
                found[name] = float(self.known[name].compute(outputs.detach().cpu().numpy(), targets.cpu().numpy()))
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


# ---- metrics on numpy arrays, by scikit-learn where it has them
def _softmax(outputs: Array) -> Array:
    return torch.softmax(torch.from_numpy(outputs).double(), 1).numpy()


def _accuracy(outputs: Array, targets: Array) -> float:
    return float((outputs.argmax(1) == targets).mean())


def _balanced_accuracy(outputs: Array, targets: Array) -> float:
    from sklearn.metrics import recall_score

    # not balanced_accuracy_score, which warns of classes that are predicted and absent
    return float(recall_score(targets, outputs.argmax(1), average="macro", labels=np.unique(targets), zero_division=0))


def _f1(outputs: Array, targets: Array) -> float:
    from sklearn.metrics import f1_score

    average = "binary" if outputs.shape[1] == 2 else "macro"
    labels = None if average == "binary" else np.unique(targets)
    return float(f1_score(targets, outputs.argmax(1), average=average, labels=labels, zero_division=0))


def _auc(outputs: Array, targets: Array) -> float:
    """Area under the ROC curve; of more than two classes, the mean over those that occur, each against the rest."""
    from sklearn.metrics import roc_auc_score

    if len(np.unique(targets)) < 2:
        return float("nan")
    chances = _softmax(outputs)
    if outputs.shape[1] == 2:
        return float(roc_auc_score(targets, chances[:, 1]))
    return float(np.mean([roc_auc_score(targets == c, chances[:, c]) for c in np.unique(targets)]))


def _log_loss(outputs: Array, targets: Array) -> float:
    return float(F.cross_entropy(torch.from_numpy(outputs).double(), torch.from_numpy(targets)))


def _calibration_error(outputs: Array, targets: Array) -> float:
    """Mean gap between confidence and accuracy over equal bins of confidence (expected calibration error)."""
    chances = _softmax(outputs)
    confidence, right = chances.max(1), chances.argmax(1) == targets
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = [abs(right[bins == b].sum() - confidence[bins == b].sum()) for b in np.unique(bins)]
    return float(np.sum(gaps) / len(targets))


# ---- the same on many resamples at once
def _accuracy_on(outputs: Array, targets: Array, counts: Array) -> Array:
    return np.asarray(counts @ (outputs.argmax(1) == targets) / counts.sum(1))


def _confusion_on(outputs: Array, targets: Array, counts: Array) -> Array:
    """How often each class was predicted for each: [draws, class, predicted class]."""
    classes = outputs.shape[1]
    pairs = np.eye(classes**2)[targets * classes + outputs.argmax(1)]
    return np.asarray((counts @ pairs).reshape(len(counts), classes, classes))


def _balanced_accuracy_on(outputs: Array, targets: Array, counts: Array) -> Array:
    table = _confusion_on(outputs, targets, counts)
    return np.asarray(np.nanmean(np.diagonal(table, axis1=1, axis2=2) / table.sum(2), axis=1))


def _f1_on(outputs: Array, targets: Array, counts: Array) -> Array:
    table = _confusion_on(outputs, targets, counts)
    right, there, predicted = np.diagonal(table, axis1=1, axis2=2), table.sum(2), table.sum(1)
    each = np.where(there + predicted > 0, 2 * right / (there + predicted), 0.0)
    if outputs.shape[1] == 2:
        return np.asarray(each[:, 1])
    return np.asarray(np.nanmean(np.where(there > 0, each, np.nan), axis=1))


def _auc_on(outputs: Array, targets: Array, counts: Array) -> Array:
    chances = _softmax(outputs)
    found = []
    for c in [1] if outputs.shape[1] == 2 else np.unique(targets).tolist():
        own, rest = chances[targets == c, c], chances[targets != c, c]
        ahead = (own[:, None] > rest) + 0.5 * (own[:, None] == rest)
        of_own, of_rest = counts[:, targets == c], counts[:, targets != c]
        found.append(((of_own @ ahead) * of_rest).sum(1) / (of_own.sum(1) * of_rest.sum(1)))
    return np.asarray(np.nanmean(np.stack(found, 1), axis=1) if len(found) > 1 else found[0])


def _flat(outputs: Array, targets: Array) -> tuple[Array, Array]:
    return outputs.reshape(len(outputs), -1).astype(float), targets.reshape(len(targets), -1).astype(float)


def _mae(outputs: Array, targets: Array) -> float:
    a, b = _flat(outputs, targets)
    return float(np.abs(a - b).mean())


def _rmse(outputs: Array, targets: Array) -> float:
    a, b = _flat(outputs, targets)
    return float(np.sqrt(((a - b) ** 2).mean()))


def _r2(outputs: Array, targets: Array) -> float:
    from sklearn.metrics import r2_score

    a, b = _flat(outputs, targets)
    return float(r2_score(b, a)) if len(b) > 1 else float("nan")


def _label_accuracy(outputs: Array, targets: Array) -> float:
    return float(((outputs > 0) == (targets > 0.5)).mean())


def _label_f1(outputs: Array, targets: Array) -> float:
    from sklearn.metrics import f1_score

    return float(f1_score(targets > 0.5, outputs > 0, average="micro", zero_division=0))


def _label_auc(outputs: Array, targets: Array) -> float:
    """Mean over the labels of which a client has both values."""
    from sklearn.metrics import roc_auc_score

    both = [k for k in range(targets.shape[1]) if len(np.unique(targets[:, k])) == 2]
    return float(np.mean([roc_auc_score(targets[:, k], outputs[:, k]) for k in both])) if both else float("nan")


@dataclass(frozen=True)
class Classification(Task):
    """One of several classes is right; outputs are logits or log-probabilities [examples, classes]."""

    kind = "classification"
    has_classes = True
    known = {
        "accuracy": Metric(_accuracy, resampled=_accuracy_on),
        "balanced_accuracy": Metric(_balanced_accuracy, resampled=_balanced_accuracy_on, both=True),
        "f1": Metric(_f1, resampled=_f1_on, both=True),
        "auc": Metric(_auc, resampled=_auc_on, both=True),
        "log_loss": Metric(_log_loss, higher=False, percent=False),
        "calibration_error": Metric(_calibration_error, higher=False),
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
    """Numbers are predicted; the loss is the squared error."""

    kind = "regression"
    known = {
        "rmse": Metric(_rmse, higher=False, percent=False),
        "mae": Metric(_mae, higher=False, percent=False),
        "r2": Metric(_r2, percent=False),
    }

    def loss(self, outputs: Tensor, targets: Tensor, reduction: Reduction = "mean") -> Tensor:
        error = (outputs.flatten(1) - targets.reshape(len(targets), -1).to(outputs.dtype)).square().mean(1)
        return error.mean() if reduction == "mean" else error.sum()

    def predictions(self, outputs: Tensor) -> Tensor:
        return outputs.squeeze(1) if outputs.dim() == 2 and outputs.shape[1] == 1 else outputs


@dataclass(frozen=True)
class MultiLabel(Task):
    """Each of several labels is there or not; outputs are logits [examples, labels], targets 0 or 1."""

    kind = "multilabel"
    known = {"accuracy": Metric(_label_accuracy), "f1": Metric(_label_f1), "auc": Metric(_label_auc)}

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
    if given is None:
        given = Classification() if federation.classes else Regression()
    made = task(given) if isinstance(given, str) else given
    if made.has_classes and not federation.classes:
        raise ValueError(
            f"The task is a {made.kind}, but the data has numbers to predict, not classes: use regression."
        )
    if federation.classes and made.kind == "regression":
        raise ValueError("The task is a regression, but the data has classes: load it with task='regression'.")
    if getattr(method, "needs_classes", False) and not made.has_classes:
        raise ValueError(f"{type(method).__name__} needs classes; it cannot learn a {made.kind}.")
    return made
