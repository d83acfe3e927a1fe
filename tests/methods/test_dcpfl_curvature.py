"""The end of a rapid decrease on curves whose radius of curvature is known, and convergence."""

from __future__ import annotations

import numpy as np
import pytest

from fedkin.experiments.convergence import convergence_round
from fedkin.methods.dcpfl.curvature import radius, rapid_decrease_end, smoothed


def first_end(curve, window, patience):
    """The round in which the end is noticed, and the end itself, with the curve known bit by bit."""
    for t in range(1, len(curve) + 1):
        if (end := rapid_decrease_end(curve[:t], window, patience)) is not None:
            return t, end
    return None


def test_smoothing_is_the_mean_of_the_last_values():
    assert smoothed([4.0, 2.0, 0.0, 6.0], 2).tolist() == [4, 3, 1, 3]
    assert smoothed([4.0, 2.0], 5).tolist() == [4, 3]
    assert radius([], 5).tolist() == []


def test_radius_is_equation_4_after_round_s_and_infinite_where_the_curve_is_not_convex():
    losses = [3.0, 2.0, 1.5, 1.3, 1.35, 1.1]
    r = radius(losses, 1)
    assert np.isinf(r[:2]).all()  # two differences need three values
    assert r[2] == pytest.approx((1 + 0.5**2) ** 1.5 / 0.5)
    assert r[4] == pytest.approx((1 + 0.05**2) ** 1.5 / 0.25)
    assert np.isinf(r[5])  # l'' < 0
    assert np.isinf(radius(losses, 4)[:4]).all()
    assert np.isinf(radius([3.0, 2.0, 1.0, 0.0], 1)).all()  # a straight line has l'' = 0


@pytest.mark.parametrize("knee", [12, 20, 30])
@pytest.mark.parametrize("window", [1, 5])
def test_on_a_hyperbola_the_end_is_where_the_slope_is_minus_one(knee, window):
    """l = A/t: r is smallest where A/t² = 1, so at t = √A."""
    curve = [knee**2 / t for t in range(1, 101)]
    noticed, end = first_end(curve, window, 3)
    assert abs(end - knee) <= window
    assert noticed == end + 3


@pytest.mark.parametrize(("height", "rate"), [(100.0, 0.1), (60.0, 0.15), (400.0, 0.08)])
@pytest.mark.parametrize("window", [1, 5])
def test_on_an_exponential_the_end_is_where_the_slope_is_minus_one_over_root_two(height, rate, window):
    """l = A e^(-kt): with u = A k e^(-kt), r = (1+u²)^(3/2) / (k u) is smallest at u = 1/√2."""
    knee = np.log(np.sqrt(2) * height * rate) / rate
    assert knee > 10
    noticed, end = first_end([height * np.exp(-rate * t) for t in range(1, 121)], window, 3)
    assert abs(end - knee) <= window
    assert noticed == end + 3


def test_the_smallest_radius_must_stand_for_the_patience():
    curve = [400 / t for t in range(1, 60)]
    at = [first_end(curve, 5, patience) for patience in (1, 3, 6)]
    assert [noticed - end for noticed, end in at] == [1, 3, 6]
    assert rapid_decrease_end(curve[:5], 5, 1) is None
    assert rapid_decrease_end([40.0 - t for t in range(40)], 5, 3) is None  # never convex: no end


# ---- convergence
def test_converged_is_the_round_after_which_twenty_more_bring_less_than_a_tenth_of_a_point():
    rising = [0.5 + 0.01 * t for t in range(1, 31)]
    assert convergence_round(rising, window=1) is None
    assert convergence_round(rising + [0.8] * 19, window=1) is None
    assert convergence_round(rising + [0.8] * 20, window=1) == 30
    assert convergence_round(rising + [0.8] * 20 + [0.9] * 30, window=1) == 30
    assert convergence_round([0.5] * 21) == 1
    assert convergence_round([]) is None


def test_a_slow_rise_that_adds_up_has_not_converged_and_a_slower_one_has():
    assert convergence_round([0.5 + 0.00006 * t for t in range(60)], window=1) is None
    assert convergence_round([0.5 + 0.00004 * t for t in range(60)], window=1) == 1


def test_one_lucky_round_is_smoothed_away():
    values = [0.7] * 60
    values[25] = 0.702
    assert convergence_round(values[10:], window=1) == 16
    assert convergence_round(values[10:], window=5) == 1


def test_rounds_between_measurements_count():
    rounds = list(range(5, 105, 5))
    values = [0.5, 0.6, 0.7, *[0.75] * 17]
    assert convergence_round(values, rounds, window=1) == 20
    with pytest.raises(ValueError, match="rounds must increase"):
        convergence_round([0.1, 0.2], [3, 3])
