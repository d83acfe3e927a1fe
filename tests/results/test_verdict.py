"""The verdict rule: its error rates on made data with a known effect, and hand-computed cases."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedkin.results.verdict import REDRAWN_SHARE, Judgment, half_width, judge, spread

POINT = 0.01


def made(rng, draws: int, seeds: int, clients: int, effect: float, seed_sd: float = 0.2 * POINT) -> np.ndarray:
    """Two methods' accuracies [draws, 2, seeds, clients] as an experiment would give them: seeds and clients that are
    easy or hard for both, a difference that varies from seed to seed and from client to client, and test sets of 200
    examples of which the two methods disagree on about one in ten."""
    both = 0.85 + rng.normal(0, POINT, (draws, 1, seeds, 1)) + rng.normal(0, 5 * POINT, (draws, 1, seeds, clients))
    noise = np.sqrt(0.1 / 200 / 2)
    varies = rng.normal(0, seed_sd, (draws, seeds, 1)) + rng.normal(0, 1.5 * POINT, (draws, seeds, clients))
    gain = np.stack([(effect + varies) / 2, -(effect + varies) / 2], axis=1)
    return both + gain + rng.normal(0, noise, (draws, 2, seeds, clients))


def intervals(differences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and half intervals of many tables of differences [..., seeds, clients] at once, as `judge` has them of one:
    see `test_judge_is_the_formula`."""
    seeds, clients = differences.shape[-2:]
    by_seed, by_client = differences.mean(-1), differences.mean(-2)
    halves = half_width(by_seed.var(-1, ddof=1) / seeds, by_client.var(-1, ddof=1) / clients, seeds, clients)
    return by_seed.mean(-1), halves


def test_it_finds_two_points_and_rarely_cries_wolf():
    """3 seeds x 50 clients, 1,000 draws."""
    rng = np.random.default_rng(0)
    null, real = made(rng, 1000, 3, 50, 0.0), made(rng, 1000, 3, 50, 2 * POINT)
    means, halves = intervals(null[:, 0] - null[:, 1])
    assert np.mean(np.abs(means) > halves) <= 0.05
    means, halves = intervals(real[:, 0] - real[:, 1])
    assert np.mean(means > halves) >= 0.97
    assert np.mean(means) == pytest.approx(2 * POINT, rel=0.02)


@pytest.mark.parametrize("seed_sd", [0.0, 0.5, 1.0, 2.0, 5.0])
def test_seeds_that_disagree_do_not_fool_it(seed_sd):
    """However much the difference varies from seed to seed, false alarms stay close to 5 %; pairs of (seed, client)
    taken as independent would cry wolf most of the time."""
    rng = np.random.default_rng(1)
    values = made(rng, 4000, 3, 50, 0.0, seed_sd * POINT)
    difference = values[:, 0] - values[:, 1]
    means, halves = intervals(difference)
    assert np.mean(np.abs(means) > halves) <= 0.08
    if seed_sd == 2.0:
        naive = stats.ttest_1samp(difference.reshape(len(difference), -1), 0, axis=1).pvalue
        assert np.mean(naive < 0.05) > 0.5


def test_the_same_clients_in_every_seed():
    """Natural clients are the same people in every seed: what one of them gains, it gains in all seeds."""
    rng = np.random.default_rng(2)
    difference = rng.normal(0, 3 * POINT, (2000, 1, 30)) + rng.normal(0, POINT, (2000, 3, 30))
    means, halves = intervals(difference)
    assert np.mean(np.abs(means) > halves) <= 0.05


def test_judge_is_the_formula():
    rng = np.random.default_rng(3)
    a, b = rng.random((3, 5)), rng.random((3, 5))
    found = judge(a, b)
    difference = a - b
    by_seed = difference.mean(1).var(ddof=1) / 3
    by_client = difference.mean(0).var(ddof=1) / 5
    freedom = (by_seed + by_client) ** 2 / (by_seed**2 / 2 + by_client**2 / 4)
    half = stats.t.ppf(0.975, freedom) * np.sqrt(by_seed + by_client)
    assert found.mean == pytest.approx(difference.mean())
    assert (found.low, found.high) == pytest.approx((found.mean - half, found.mean + half))
    means, halves = intervals(difference[None])
    assert (means[0], halves[0]) == pytest.approx((found.mean, half))


def test_words():
    base = np.array([[0.80, 0.70, 0.61], [0.82, 0.71, 0.60], [0.81, 0.69, 0.62]])
    assert judge(base + 0.1, base).word == "above"
    assert judge(base, base + 0.1).word == "below"
    assert judge(base, base, margin=0.0).word == "level"  # the same to the last digit
    wobble = np.array([[1, -1, 1], [-1, 1, -1], [1, -1, 0]])
    assert judge(base + 0.0005 * wobble, base, margin=0.005).word == "level"
    assert judge(base + 0.0005 * wobble, base).word == "undecided"
    assert judge(base + 0.05 * wobble, base, margin=0.005).word == "undecided"


def test_fewer_than_three_seeds_decide_nothing():
    base = np.full((2, 4), 0.5)
    assert judge(base + 0.4, base) == Judgment("too few seeds", pytest.approx(0.4), seeds=2)
    gone = np.vstack([base, np.full((1, 4), np.nan)])
    assert judge(gone + 0.4, gone).seeds == 2
    assert judge(np.full((3, 4), np.nan), np.zeros((3, 4))).word == "not measured"


def test_one_number_for_each_seed():
    # Student's t over three seeds: 2 ± 4.3027 · 1/√3
    found = judge([11.0, 12.0, 13.0], [10.0, 10.0, 10.0])
    assert found.high - found.mean == pytest.approx(4.302653 / np.sqrt(3), rel=1e-5)
    assert judge([5.0, 6.0, 7.0], [4.0, 5.0, 6.0]).word == "above"  # always one more


def test_a_statistic_of_clients():
    """Standard deviations over clients: the interval comes from drawing clients anew."""
    rng = np.random.default_rng(4)
    wide, narrow = rng.normal(0.8, 0.10, (3, 50)), rng.normal(0.8, 0.02, (3, 50))
    found = judge(wide, narrow, statistic=spread)
    assert found.word == "above"
    assert found.mean == pytest.approx(wide.std(1).mean() - narrow.std(1).mean())
    assert judge(narrow, wide, statistic=spread).word == "below"
    again = judge(wide, narrow, statistic=spread)
    assert (again.low, again.high) == (found.low, found.high)


def test_gaps_and_shapes():
    a, b = np.random.default_rng(5).random((3, 4)), np.zeros((3, 4))
    a[1, 2] = np.nan
    assert judge(a, b).mean == pytest.approx(np.mean([np.nanmean(row) for row in a]))
    with pytest.raises(ValueError, match=r"shapes \[seeds, clients\] are \(3, 4\) and \(3, 5\)"):
        judge(a, np.zeros((3, 5)))


@pytest.mark.parametrize(("seeds", "limit"), [(3, 0.08), (4, 0.065), (6, 0.06)])
@pytest.mark.parametrize("seed_sd", [0.0, 0.5, 1.0, 3.0])
def test_clients_that_are_drawn_anew(seeds, limit, seed_sd):
    """A random partition has other clients in each seed. However large the variance between seeds is beside that of
    the clients' mean (here 1), false alarms stay where those of the whole rule are, and intervals are not wider."""
    rng = np.random.default_rng(6)
    difference = rng.normal(0, seed_sd, (8000, seeds, 1)) + rng.normal(0, np.sqrt(10), (8000, seeds, 10))
    by_seed = difference.mean(2).var(1, ddof=1) / seeds
    by_client = difference.mean(1).var(1, ddof=1) / 10
    halves = half_width(by_seed, REDRAWN_SHARE * by_client, seeds, 10)
    assert np.mean(np.abs(difference.mean((1, 2))) > halves) <= limit
    if seed_sd == 0.0:
        assert np.mean(halves) < np.mean(half_width(by_seed, by_client, seeds, 10))


def test_drawn_anew_is_a_quarter_of_the_clients_variance():
    difference = np.random.default_rng(7).random((4, 6))
    found = judge(difference, np.zeros((4, 6)), redrawn=True)
    by_seed = difference.mean(1).var(ddof=1) / 4
    by_client = difference.mean(0).var(ddof=1) / 6 / 4
    freedom = (by_seed + by_client) ** 2 / (by_seed**2 / 3 + by_client**2 / 5)
    assert found.high - found.mean == pytest.approx(stats.t.ppf(0.975, freedom) * np.sqrt(by_seed + by_client))
