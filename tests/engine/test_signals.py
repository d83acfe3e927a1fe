"""When a signal stops what is being done, and when it waits."""

from __future__ import annotations

import signal
import threading

import pytest

from fedkin.engine.signals import SIGNALS, Stopped, check, interruptible, protected, stoppable


@pytest.fixture(autouse=True)
def _usual_handlers():
    """Those of a process that nobody has told anything, as after `nohup` or in a terminal."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    usual = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    assert {number: signal.getsignal(number) for number in SIGNALS} == usual, "the handlers are back"
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_an_interruptible_block_at_once(number):
    done = []
    with pytest.raises(Stopped) as stop, stoppable():
        done.append("opened")
        with interruptible():
            signal.raise_signal(number)
            done.append("went on")
    assert done == ["opened"]
    assert stop.value.number == number


def test_a_signal_waits_while_a_run_is_opened():
    done = []
    with pytest.raises(Stopped), stoppable():
        signal.raise_signal(signal.SIGTERM)
        done.append("opened")
        with interruptible():
            done.append("round 1")
    assert done == ["opened"]


def test_closing_is_not_disturbed():
    """Neither by a first signal nor by more of them."""
    done = []

    def close(*numbers: int) -> None:
        for number in numbers:
            signal.raise_signal(number)
        done.append("closed")

    with pytest.raises(Stopped) as stop, stoppable():
        close(signal.SIGTERM, signal.SIGINT)
    assert done == ["closed"]
    assert stop.value.number == signal.SIGTERM, "the first counts"

    def interrupted() -> None:
        with stoppable():
            try:
                with interruptible():
                    signal.raise_signal(signal.SIGINT)
            finally:
                close(signal.SIGINT, signal.SIGHUP)

    with pytest.raises(Stopped) as stop:
        interrupted()
    assert done == ["closed", "closed"]
    assert stop.value.number == signal.SIGINT


def test_what_is_protected_inside_a_round_is_finished():
    done = []
    with pytest.raises(Stopped), stoppable(), interruptible():
        with protected():
            signal.raise_signal(signal.SIGINT)
            done.append("a worker was started and is known")
        done.append("went on")
    assert done == ["a worker was started and is known"]


def test_a_stop_that_was_swallowed_is_raised_again():
    """Python drops what is raised inside a destructor."""
    with pytest.raises(Stopped), stoppable():
        with interruptible(), pytest.raises(Stopped):
            signal.raise_signal(signal.SIGTERM)
        with interruptible():
            raise AssertionError("the next round began")


def test_a_run_inside_a_comparison():
    """The signal that came while a run was closed stops the comparison after it, once."""
    done = []
    with pytest.raises(Stopped), stoppable(), interruptible():
        with stoppable():
            signal.raise_signal(signal.SIGHUP)
            done.append("first run closed")
        done.append("second run")
    assert done == ["first run closed"]
    with stoppable(), interruptible():
        check()  # the next one begins without it


def test_other_handlers_stay_in_force():
    seen = []
    signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with stoppable(), interruptible():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGHUP)
    assert seen == [signal.SIGTERM]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def test_in_another_thread_there_is_nothing_to_handle():
    done = []

    def work() -> None:
        with stoppable(), interruptible(), protected():
            done.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [signal.SIG_DFL]
