"""Intervals over examples: fast resampling is the slow one, and coverage on made data is what is promised."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from fedkin.results.interval import Predictions, Resamples, interval, too_few
from fedkin.task import Classification, Metric, Regression

ACCURACY, AUC = Classification.known["accuracy"], Classification.known["auc"]


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("name", ["accuracy", "balanced_accuracy", "f1", "auc"])
def test_draws_at_once_are_the_metric_on_each_draw(name, classes):
    rng = np.random.default_rng(1)
    targets = rng.integers(classes, size=14)
    outputs = rng.normal(size=(14, classes)).round(1)  # with ties
    counts = rng.multinomial(14, np.full(14, 1 / 14), size=60)
    metric = Classification.known[name]
    slow = Metric(metric.compute).on_draws(outputs, targets, counts)
    np.testing.assert_allclose(metric.on_draws(outputs, targets, counts), slow, atol=1e-12)


def test_a_draw_without_a_class_has_no_auc():
    targets, outputs = np.array([0, 0, 1]), np.array([[0.0, 0.2], [0.0, 0.1], [0.0, 0.9]])
    found = AUC.on_draws(outputs, targets, np.array([[2, 1, 0], [1, 1, 1]]))
    assert np.isnan(found[0])
    assert found[1] == 1


def logits(score: np.ndarray) -> np.ndarray:
    return np.stack([-score, score], 1)


NOISE = 0.7  # of an example for both models, and of each model


def pair(rng, examples, better):
    """Two models on the same examples: the second one sees the class more clearly by `better`."""
    targets = np.arange(examples) % 2
    shared = rng.normal(size=examples)
    return targets, *(
        logits(clear * (targets - 0.5) + NOISE * (shared + rng.normal(size=examples))) for clear in (1.0, 1.0 + better)
    )


def true_score(metric, clear):
    deviation = NOISE * np.sqrt(2)
    return norm.cdf(clear / 2 / deviation) if metric is ACCURACY else norm.cdf(clear / (np.sqrt(2) * deviation))


@pytest.mark.parametrize("metric", [ACCURACY, AUC], ids=["accuracy", "auc"])
@pytest.mark.parametrize("better", [0.0, 1.0])
@pytest.mark.parametrize("examples", [26, 80])
def test_coverage_with_one_seed(metric, better, examples):
    rng = np.random.default_rng(5)
    true = true_score(metric, 1 + better) - true_score(metric, 1.0)
    held, ids = [], np.arange(examples)
    for k in range(300):
        y, a, b = pair(rng, examples, better)
        resamples = Resamples([ids], draws=500, seed=k)
        draws = resamples.scores(metric, [Predictions(ids, b, y)]) - resamples.scores(metric, [Predictions(ids, a, y)])
        low, high = interval(draws, resamples.examples)
        held.append(low <= true <= high)
    assert np.mean(held) > 0.92, "of a nominal 95 %, with 300 draws of the data"


def test_coverage_with_several_seeds():
    """A site's people are tested in three splits, with models that differ from seed to seed. The interval is of the
    mean difference over people and seeds, and must not treat a person who is tested twice as two."""
    rng = np.random.default_rng(3)
    # the sign of a normal number: margins of 1 with these standard deviations
    true = norm.cdf(1 / np.sqrt(0.5**2 + 0.8**2 + 0.1**2 + 0.3**2)) - norm.cdf(1 / np.sqrt(0.5**2 + 0.3**2))
    people, held, naive = 90, [], []
    for k in range(300):
        hard = rng.normal(size=people)  # a person is hard for every model, and harder for one of the methods
        taste = 0.8 * rng.normal(size=people)
        y = rng.integers(2, size=people)
        ones, twos = [], []
        for _ in range(3):
            ids = rng.choice(people, 45, replace=False)
            sign, luck = 2 * y[ids] - 1, 0.1 * rng.normal()
            noise = rng.normal(size=(2, len(ids)))
            a = sign * (1 + 0.5 * hard[ids] + 0.3 * noise[0])
            b = sign * (1 + 0.5 * hard[ids] + taste[ids] + luck + 0.3 * noise[1])
            ones.append(Predictions(ids, logits(a), y[ids]))
            twos.append(Predictions(ids, logits(b), y[ids]))
        resamples = Resamples([t.examples for t in ones], draws=600, seed=k)
        draws = resamples.scores(ACCURACY, twos) - resamples.scores(ACCURACY, ones)
        low, high = interval(draws, resamples.examples)
        held.append(low <= true <= high)
        right = [[t.outputs.argmax(1) == t.targets for t in models] for models in (twos, ones)]
        each = np.concatenate(right[0]) * 1.0 - np.concatenate(right[1])
        half = 1.96 * each.std(ddof=1) / np.sqrt(len(each))
        naive.append(abs(each.mean() - true) <= half)
    assert np.mean(held) > 0.93
    assert np.mean(held) > np.mean(naive), "an interval over (seed, example) pairs is too narrow"


def test_the_same_models_differ_by_nothing():
    rng = np.random.default_rng(0)
    ids, outputs, y = np.arange(30), rng.normal(size=(30, 2)), rng.integers(2, size=30)
    resamples = Resamples([ids])
    draws = resamples.scores(AUC, [Predictions(ids, outputs, y)]) - resamples.scores(
        AUC, [Predictions(ids, outputs, y)]
    )
    assert interval(draws, 30) == (0, 0)


def test_too_few_examples_are_said():
    def tested(y):
        return [Predictions(np.arange(len(y)), np.zeros((len(y), 2)), np.array(y))]

    assert too_few(ACCURACY, tested([0, 1] * 9), classes=True) == "fewer than 20 test examples"
    assert too_few(ACCURACY, tested([0] * 20), classes=True) == ""
    assert too_few(AUC, tested([0] * 30 + [1] * 4), classes=True) == "fewer than 5 test examples of one class"
    assert too_few(AUC, tested([0] * 30), classes=True) == "fewer than 5 test examples of one class"
    assert too_few(AUC, tested([0] * 30 + [1] * 5), classes=True) == ""
    assert too_few(Regression.known["rmse"], tested([0.5] * 20), classes=False) == ""
