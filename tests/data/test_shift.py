"""Feature shift: each client's images in a color, contrast, sharpness and noise of its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedkin.data import Arrays, from_arrays
from fedkin.data.federation import federate
from fedkin.data.partition import FeatureShift, Iid
from fedkin.data.shift import Shift, draw, shifted

MEAN, STD = np.array([100.0, 110.0, 120.0]), np.array([50.0, 40.0, 60.0])
PLAIN = Shift((1.0, 1.0, 1.0), (0.0, 0.0, 0.0), 1.0, 0.0, 0.0, (0,))


def images(count: int = 200, channels: int = 3) -> Arrays:
    rng = np.random.default_rng(0)
    x = rng.integers(30, 200, (count, 8, 8, channels), dtype=np.uint8)
    return Arrays(x, np.arange(count) % 4, 4, image=True, mean=tuple(MEAN[:channels]), std=tuple(STD[:channels]))


def see(x: np.ndarray, shift: Shift) -> np.ndarray:
    return shifted(x, shift, mean=MEAN, std=STD, bounds=(0, 255))


def test_each_part_by_hand():
    x = images(5).x
    np.testing.assert_array_equal(see(x, PLAIN), x)
    darker = see(x, PLAIN._replace(offset=(-0.2, 0.0, 0.0)))
    np.testing.assert_array_equal(darker[..., 0], x[..., 0] - 10)
    np.testing.assert_array_equal(darker[..., 1:], x[..., 1:])
    flat = see(x, PLAIN._replace(contrast=0.5, gain=(1.0, 2.0, 1.0)))
    np.testing.assert_array_equal(flat[..., 0], np.rint(MEAN[0] + (x[..., 0] - MEAN[0]) / 2))
    np.testing.assert_array_equal(flat[..., 1], x[..., 1])
    blurred = see(x, PLAIN._replace(blur=1.0)).astype(float)
    assert blurred.std() < 0.6 * x.std()
    assert abs(blurred.mean() - x.mean()) < 3
    noisy = see(x, PLAIN._replace(noise=0.2)).astype(float) - x
    np.testing.assert_allclose(noisy.std((0, 1, 2)), 0.2 * STD, rtol=0.15)
    assert see(x, PLAIN._replace(offset=(90.0, 90.0, 90.0))).max() == 255


def test_a_pure_function_of_seed_and_client():
    assert draw(1, 2, 1.0) == draw(1, 2, 1.0)
    assert len({draw(s, c, 1.0).contrast for s in range(4) for c in range(4)}) == 16
    assert draw(1, 2, 0.0)[:5] == PLAIN[:5]
    made, more = (FeatureShift()(np.zeros(100, np.int64), n, 7) for n in (4, 8))
    assert made.shifts == more.shifts[:4], "a client's shift does not depend on how many there are"


@pytest.mark.parametrize("channels", [1, 3])
def test_clients_see_their_images_shifted(channels):
    arrays = images(channels=channels)
    base = federate(arrays, partition="iid", clients=4, seed=3)
    fed = federate(arrays, partition="feature_shift", clients=4, seed=3)
    assert all(np.array_equal(a, b) for a, b in zip(fed.partition.indices, base.partition.indices))
    assert fed.arrays.x.dtype == np.uint8
    for client in range(4):
        own, plain = fed.data(client).x, base.data(client).x
        assert own.shape == plain.shape
        assert not torch.allclose(own, plain, atol=0.05)
        assert torch.equal(fed.test(client).y, base.test(client).y)
    assert arrays.x is base.arrays.x, "the data itself is not changed"
    assert fed.fingerprint() == federate(arrays, partition="feature_shift", clients=4, seed=3).fingerprint()
    assert fed.fingerprint() != base.fingerprint()
    calm = federate(arrays, partition="feature_shift", clients=4, seed=3, strength=0.0)
    assert calm.fingerprint() == base.fingerprint()
    facts = [value for _, metric, value in fed.facts() if metric == "feature_shift"]
    assert [set(f) for f in facts] == [{"gain", "offset", "contrast", "blur", "noise"}] * 4


def test_labels_iid_or_dirichlet():
    labels = np.arange(400) % 10
    even, skewed = (FeatureShift(labels=how, alpha=0.1)(labels, 8, 0) for how in ("iid", "dirichlet"))
    spread = [np.std(p.counts(labels, 10)) for p in (even, skewed)]
    assert spread[1] > 3 * spread[0]
    assert all(np.array_equal(a, b) for a, b in zip(even.indices, Iid()(labels, 8, 0).indices))
    with pytest.raises(ValueError, match="labels='odd' must be"):
        FeatureShift(labels="odd")(labels, 8, 0)
    with pytest.raises(ValueError, match="strength=-1 must be"):
        FeatureShift(strength=-1)(labels, 8, 0)


def test_own_images_are_shifted_too():
    x = np.random.default_rng(0).random((60, 3, 8, 8)).astype(np.float32)
    fed = federate(from_arrays(x, np.arange(60) % 2), partition="feature_shift", clients=3)
    assert fed.shape == (3, 8, 8)
    assert fed.arrays.x.dtype == np.float32
    assert 0 <= fed.arrays.x.min() < fed.arrays.x.max() <= 1
    assert np.abs(fed.arrays.x - x).max() > 0.1


def test_only_images_can_be_shifted():
    with pytest.raises(ValueError, match="feature_shift changes images"):
        federate("synthetic", partition="feature_shift")
    x = np.zeros((40, 1, 8, 8))
    numbers = from_arrays(x, np.zeros(40), task="regression")
    assert len(federate(numbers, partition="feature_shift", clients=2)) == 2
    with pytest.raises(ValueError, match="spreads classes"):
        federate(numbers, partition="feature_shift", clients=2, labels="dirichlet")
