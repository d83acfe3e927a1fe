"""Bytes, FLOPs and simulated seconds, by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedkin.engine.costs import Device, Tally, message_bytes, nbytes
from fedkin.protocol import Message


def test_bytes_are_counted_by_size_and_type():
    assert nbytes([torch.zeros(3), torch.zeros(2, dtype=torch.float16), torch.zeros(5, dtype=torch.bool)]) == 12 + 4 + 5
    assert nbytes([[torch.zeros(3), torch.zeros(1)], torch.zeros(0)]) == 16
    assert nbytes([]) == 0


def test_a_client_pays_for_what_is_shared_and_for_its_own_rows():
    message = Message(
        shared=(torch.zeros(10), torch.zeros(1, dtype=torch.int64)),
        own=(torch.zeros(3, 7), [torch.zeros(1), torch.zeros(2), torch.zeros(4)]),
    )
    assert [message_bytes(message, i) for i in range(3)] == [40 + 8 + 28 + 4 * n for n in (1, 2, 4)]
    assert message_bytes(Message(), 0) == 0


def test_seconds_are_those_of_the_slowest_client():
    device = Device(link_rate=1000.0, device_rate=50.0, spread=0.0, seed=0)
    tally = Tally()
    assert tally.seconds(device) == (0.0, 0.0)
    tally.add(4, down=100, up=25, flops=200.0)  # 4 s of work, 8 * 125 / 1000 = 1 s on the link
    tally.add(9, down=500, flops=10.0)  # 0.2 s and 4 s
    tally.add(9, up=0, flops=15.0)  # a second exchange: 0.5 s and 4 s
    assert tally.seconds(device) == pytest.approx((4.0, 1.0))
    tally.add(9, flops=40.0)  # 1.3 s and 4 s: now the slowest in total
    assert tally.seconds(device) == pytest.approx((1.3, 4.0))
    assert (tally.down, tally.up) == ({4: 100, 9: 500}, {4: 25, 9: 0})


def test_devices_differ_by_the_spread_and_stay_the_same():
    plain = Device(2e6, 1e10, 0.0, seed=0)
    assert plain.rates(3) == (2e6, 1e10)
    device = Device(2e6, 1e10, 0.5, seed=0)
    rates = np.array([device.rates(c) for c in range(2000)])
    assert device.rates(3) == device.rates(3) != device.rates(4)
    assert Device(2e6, 1e10, 0.5, seed=1).rates(3) != device.rates(3)
    logs = np.log(rates / [2e6, 1e10])
    np.testing.assert_allclose(logs.std(0), 0.5, atol=0.03)
    np.testing.assert_allclose(logs.mean(0), 0.0, atol=0.05)
