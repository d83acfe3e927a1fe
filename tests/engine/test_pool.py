"""The pool's shared memory: what a message costs there."""

from __future__ import annotations

import pytest
import torch

import fedkin
from fedkin.engine.pool import Pool, _message
from fedkin.engine.runner import RunSpec
from fedkin.protocol import Message
from fedkin.results.store import equal

pytestmark = pytest.mark.processes


@pytest.fixture
def pool(digits):
    made = Pool(RunSpec(fedkin.method("fedavg"), digits, lambda: None, None, fedkin.Training(), 0), 1)
    yield made
    made.close()


def test_an_array_that_many_clients_are_sent_is_copied_once(pool):
    """As by LG-FedAvg, PFLIC and DC-PFL: a list with one array for each client, most of them the same."""
    one, table = torch.randn(1000), torch.randn(3, 1000)
    message = Message((), ([one] * 100 + [table[2]] * 50 + [table[0], one.view(10, 100), one[:0]],))
    pool.post(message)
    assert pool._down._at == 4 * 4032  # one, table[2], table[0], one in another shape; 4,000 bytes come to 63 × 64
    for index in (0, 99, 100, 149, 150, 151, 152):
        assert equal(_message(pool._down, pool._header, index).own[0], message.own[0][index])


def test_views_of_the_same_memory_are_told_apart(pool):
    square = torch.arange(9.0).view(3, 3)
    message = Message((), ([square, square.T, square[:, 0], square[0], square.view(torch.int32)],))
    pool.post(message)
    for index, array in enumerate(message.own[0]):
        assert equal(_message(pool._down, pool._header, index).own[0], array.contiguous())


def test_dcpfl_sends_a_group_one_array(digits):
    from fedkin.engine.loop import run

    method = fedkin.method("dcpfl", tau=1)
    state = run(method, digits, rounds=1, engine="serial").state
    state["held"][:, 0] = 1 << 30  # nobody lacks the first layer, so that the rest is picked out
    parts = method.send(state, torch.arange(6)).own[0]
    assert {len(part) for part in parts} == {650}
    assert len({part.data_ptr() for part in parts}) == 1
