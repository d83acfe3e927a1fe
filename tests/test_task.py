"""Tasks: losses and metrics by hand, directions, and what is said where a name is wrong."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torch.nn import functional as F

from fedkin.task import TASKS, Classification, Metric, MultiLabel, Regression, Task, from_config, task

GENERATOR = torch.Generator().manual_seed(4)
LOGITS, LABELS = torch.randn(60, 2, generator=GENERATOR), torch.randint(2, (60,), generator=GENERATOR)
MANY, CLASSES = torch.randn(80, 4, generator=GENERATOR), torch.randint(4, (80,), generator=GENERATOR)


def test_binary_metrics_are_scikit_learns():
    got = Classification(metrics=tuple(Classification.known)).scores(LOGITS, LABELS)
    chances, labels = torch.softmax(LOGITS.double(), 1).numpy(), LABELS.numpy()
    assert got["accuracy"] == pytest.approx(sk.accuracy_score(labels, chances.argmax(1)))
    assert got["balanced_accuracy"] == pytest.approx(sk.balanced_accuracy_score(labels, chances.argmax(1)))
    assert got["f1"] == pytest.approx(sk.f1_score(labels, chances.argmax(1)))
    assert got["auc"] == pytest.approx(sk.roc_auc_score(labels, chances[:, 1]))
    assert got["log_loss"] == pytest.approx(sk.log_loss(labels, chances))


def test_metrics_of_several_classes():
    got = Classification(metrics=("auc", "f1")).scores(MANY, CLASSES)
    chances = torch.softmax(MANY.double(), 1).numpy()
    assert got["auc"] == pytest.approx(sk.roc_auc_score(CLASSES.numpy(), chances, multi_class="ovr", average="macro"))
    assert got["f1"] == pytest.approx(sk.f1_score(CLASSES.numpy(), chances.argmax(1), average="macro"))


def test_calibration_error_by_hand():
    sure = torch.tensor([[10.0, -10.0]] * 4)
    half = Classification(headline="calibration_error").scores(sure, torch.tensor([0, 0, 1, 1]))
    assert half["calibration_error"] == pytest.approx(0.5, abs=1e-6)


def test_auc_of_one_class_is_not_defined():
    one = Classification(headline="auc").scores(LOGITS, torch.zeros(60, dtype=torch.long))
    assert np.isnan(one["auc"])


def test_regression_by_hand():
    outputs, targets = torch.tensor([[1.0], [2.0], [5.0]]), torch.tensor([1.0, 4.0, 6.0])
    got = Regression(metrics=("mae", "rmse", "r2")).scores(outputs, targets)
    assert got["mae"] == pytest.approx(1.0)
    assert got["rmse"] == pytest.approx(np.sqrt(5 / 3))
    assert got["r2"] == pytest.approx(sk.r2_score(targets, outputs))
    assert float(Regression().loss(outputs, targets)) == pytest.approx(5 / 3)
    assert not Regression().higher_is_better
    assert Regression(headline="r2").higher_is_better
    assert Regression().predictions(outputs).shape == (3,)


def test_a_regression_learns_standardized_numbers_and_is_measured_in_units():
    targets = np.array([[1000.0, 5.0], [3000.0, 5.0]])
    made = Regression(metrics=("mae",)).fitted(targets)
    assert (made.center, made.scale) == ((2000.0, 5.0), (1000.0, 1.0))
    assert made.fitted(targets * 2) == made, "given ones stay"
    assert from_config(made.to_config()) == made
    outputs = torch.tensor([[-1.0, 0.0], [1.0, 0.0]])
    assert float(made.loss(outputs, torch.tensor(targets))) == 0
    assert made.predictions(outputs).tolist() == targets.tolist()
    assert made.scores(outputs + torch.tensor([0.5, 0.0]), torch.tensor(targets)) == {"mae": 250.0}
    with pytest.raises(ValueError, match="one number for each output, the scale above 0"):
        Regression(center=(1.0,), scale=(0.0,))


def test_multilabel():
    outputs, targets = torch.tensor([[2.0, -1.0], [-1.0, 3.0]]), torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    got = MultiLabel(metrics=("accuracy", "f1", "auc")).scores(outputs, targets)
    assert got["accuracy"] == pytest.approx(0.75)
    assert got["f1"] == pytest.approx(0.8)
    assert got["auc"] == pytest.approx(1.0), "the second label has one value alone"
    assert float(MultiLabel().loss(outputs, targets)) == pytest.approx(
        float(F.binary_cross_entropy_with_logits(outputs, targets))
    )


def test_class_weights():
    weighted = Classification(class_weights=(1.0, 3.0))
    each = F.cross_entropy(LOGITS, LABELS, reduction="none") * torch.tensor([1.0, 3.0])[LABELS]
    assert float(weighted.loss(LOGITS, LABELS)) == pytest.approx(float(each.mean()), rel=1e-5)
    assert float(weighted.loss(LOGITS, LABELS, "sum")) == pytest.approx(float(each.sum()), rel=1e-5)
    assert not weighted.is_cross_entropy
    assert Classification().is_cross_entropy
    with pytest.raises(ValueError, match="class_weights has 2 entries; there are 4 classes"):
        weighted.loss(MANY, CLASSES)


def test_names():
    assert Classification(metrics=("f1", "auc"), headline="auc").metrics == ("auc", "f1")
    assert Classification(metrics=("f1", "auc")).headline == "f1"
    with pytest.raises(ValueError, match="There is no metric auk for classification; known: accuracy, "):
        Classification(metrics=("auk",))
    with pytest.raises(ValueError, match=r"There is no task .ranking.\. Known: classification, regression, multilabel"):
        task("ranking")


@pytest.mark.parametrize("name", TASKS)
def test_config_round_trip(name):
    made = task(name)
    assert from_config(made.to_config()) == made


@dataclass(frozen=True)
class Quantile(Task):
    kind = "quantile"
    known = {"pinball": Metric(lambda o, t: float(np.maximum(0.9 * (t - o[:, 0]), 0.1 * (o[:, 0] - t)).mean()), False)}

    def loss(self, outputs, targets, reduction="mean"):
        gap = targets - outputs[:, 0]
        return getattr(torch.maximum(0.9 * gap, -0.1 * gap), reduction)()

    def predictions(self, outputs):
        return outputs[:, 0]


def test_a_task_of_ones_own():
    made = Quantile()
    assert made.scores(torch.zeros(2, 1), torch.tensor([1.0, -1.0])) == {"pinball": pytest.approx(0.5)}
    assert from_config(made.to_config()) == made
    with pytest.raises(ValueError, match="A quantile has no probabilities"):
        made.probabilities(torch.zeros(1, 1))
