"""Metrics of outputs against targets, on numpy arrays; by scikit-learn where it has them.

A name with `_on` is the same metric on many resamples at once: `counts[draw, example]` says how often each example is
in a draw.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

Array = NDArray[Any]
BINS = 15  # bins of the calibration error


def softmax(outputs: Array) -> Array:
    return torch.softmax(torch.from_numpy(outputs).double(), 1).numpy()


def accuracy(outputs: Array, targets: Array) -> float:
    return float((outputs.argmax(1) == targets).mean())


def balanced_accuracy(outputs: Array, targets: Array) -> float:
    from sklearn.metrics import recall_score

    # not balanced_accuracy_score, which warns of classes that are predicted and absent
    return float(recall_score(targets, outputs.argmax(1), average="macro", labels=np.unique(targets), zero_division=0))


def f1(outputs: Array, targets: Array) -> float:
    from sklearn.metrics import f1_score

    average = "binary" if outputs.shape[1] == 2 else "macro"
    labels = None if average == "binary" else np.unique(targets)
    return float(f1_score(targets, outputs.argmax(1), average=average, labels=labels, zero_division=0))


def auc(outputs: Array, targets: Array) -> float:
    """Area under the ROC curve; of more than two classes, the mean over those that occur, each against the rest."""
    from sklearn.metrics import roc_auc_score

    if len(np.unique(targets)) < 2:
        return float("nan")
    chances = softmax(outputs)
    if outputs.shape[1] == 2:
        return float(roc_auc_score(targets, chances[:, 1]))
    return float(np.mean([roc_auc_score(targets == c, chances[:, c]) for c in np.unique(targets)]))


def log_loss(outputs: Array, targets: Array) -> float:
    return float(F.cross_entropy(torch.from_numpy(outputs).double(), torch.from_numpy(targets)))


def calibration_error(outputs: Array, targets: Array) -> float:
    """Mean gap between confidence and accuracy over equal bins of confidence (expected calibration error)."""
    chances = softmax(outputs)
    confidence, right = chances.max(1), chances.argmax(1) == targets
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = [abs(right[bins == b].sum() - confidence[bins == b].sum()) for b in np.unique(bins)]
    return float(np.sum(gaps) / len(targets))


# ---- the same on many resamples at once
def accuracy_on(outputs: Array, targets: Array, counts: Array) -> Array:
    return np.asarray(counts @ (outputs.argmax(1) == targets) / counts.sum(1))


def confusion_on(outputs: Array, targets: Array, counts: Array) -> Array:
    """How often each class was predicted for each: [draws, class, predicted class]."""
    classes = outputs.shape[1]
    pairs = np.eye(classes**2)[targets * classes + outputs.argmax(1)]
    return np.asarray((counts @ pairs).reshape(len(counts), classes, classes))


def balanced_accuracy_on(outputs: Array, targets: Array, counts: Array) -> Array:
    table = confusion_on(outputs, targets, counts)
    return np.asarray(np.nanmean(np.diagonal(table, axis1=1, axis2=2) / table.sum(2), axis=1))


def f1_on(outputs: Array, targets: Array, counts: Array) -> Array:
    table = confusion_on(outputs, targets, counts)
    right, there, predicted = np.diagonal(table, axis1=1, axis2=2), table.sum(2), table.sum(1)
    each = np.where(there + predicted > 0, 2 * right / (there + predicted), 0.0)
    if outputs.shape[1] == 2:
        return np.asarray(each[:, 1])
    return np.asarray(np.nanmean(np.where(there > 0, each, np.nan), axis=1))


def auc_on(outputs: Array, targets: Array, counts: Array) -> Array:
    chances = softmax(outputs)
    found = []
    for c in [1] if outputs.shape[1] == 2 else np.unique(targets).tolist():
        own, rest = chances[targets == c, c], chances[targets != c, c]
        ahead = (own[:, None] > rest) + 0.5 * (own[:, None] == rest)
        of_own, of_rest = counts[:, targets == c], counts[:, targets != c]
        found.append(((of_own @ ahead) * of_rest).sum(1) / (of_own.sum(1) * of_rest.sum(1)))
    return np.asarray(np.nanmean(np.stack(found, 1), axis=1) if len(found) > 1 else found[0])


def flat(outputs: Array, targets: Array) -> tuple[Array, Array]:
    return outputs.reshape(len(outputs), -1).astype(float), targets.reshape(len(targets), -1).astype(float)


def mae(outputs: Array, targets: Array) -> float:
    a, b = flat(outputs, targets)
    return float(np.abs(a - b).mean())


def rmse(outputs: Array, targets: Array) -> float:
    a, b = flat(outputs, targets)
    return float(np.sqrt(((a - b) ** 2).mean()))


def r2(outputs: Array, targets: Array) -> float:
    from sklearn.metrics import r2_score

    a, b = flat(outputs, targets)
    return float(r2_score(b, a)) if len(b) > 1 else float("nan")


def label_accuracy(outputs: Array, targets: Array) -> float:
    return float(((outputs > 0) == (targets > 0.5)).mean())


def label_f1(outputs: Array, targets: Array) -> float:
    from sklearn.metrics import f1_score

    return float(f1_score(targets > 0.5, outputs > 0, average="micro", zero_division=0))


def label_auc(outputs: Array, targets: Array) -> float:
    """Mean over the labels of which a client has both values."""
    from sklearn.metrics import roc_auc_score

    both = [k for k in range(targets.shape[1]) if len(np.unique(targets[:, k])) == 2]
    return float(np.mean([roc_auc_score(targets[:, k], outputs[:, k]) for k in both])) if both else float("nan")
